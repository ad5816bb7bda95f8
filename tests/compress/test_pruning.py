"""prune, pruning_report and strip on real Keras 3 models that are trained."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt.compress.prune import prune, pruning_report
from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity
from tfopt.compress.strip import strip
from tfopt.errors import UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 12)).astype("float32")
Y = RNG.normal(size=(64, 4)).astype("float32")
POLYNOMIAL = PolynomialSparsity(0.8, end_step=6, frequency=2)


def dense_model(**compile_arguments):
    model = keras.Sequential(
        [keras.Input((12,)), layers.Dense(16, "relu", name="hidden"), layers.Dense(4, name="out")]
    )
    # Compiling by XLA takes longer than these trainings; it has a case of its own.
    settings = {"optimizer": "adam", "loss": "mse", "jit_compile": False, **compile_arguments}
    model.compile(**settings)
    return model


def fit(model, x=X, y=Y, epochs=1):
    return model.fit(x, y, batch_size=8, epochs=epochs, shuffle=False, verbose=0)


def assert_at_target(model, sparsity=0.8):
    masked = [row for row in pruning_report(model) if row.target is not None]
    assert masked
    for row in masked:
        assert row.target == sparsity
        assert abs(row.zeros - sparsity * row.weights) <= 1, row


@pytest.mark.parametrize(
    "compile_arguments",
    [
        {"optimizer": keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)},
        {"optimizer": keras.optimizers.AdamW(0.01, clipnorm=1.0)},
        {"jit_compile": True},
        {"steps_per_execution": 4},
        {"run_eagerly": True},
        {"optimizer": keras.optimizers.Adam(gradient_accumulation_steps=2)},
    ],
    ids=lambda arguments: ",".join(arguments),
)
def test_the_target_is_reached_however_the_step_is_compiled(compile_arguments):
    model = dense_model(**compile_arguments)
    assert prune(model, POLYNOMIAL) is model
    fit(model)
    assert_at_target(model)


def test_the_target_is_reached_in_mixed_float16():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = dense_model()
    finally:
        keras.config.set_dtype_policy("float32")
    # float16's first steps may overflow and be skipped, and those do not count.
    prune(model, POLYNOMIAL)
    fit(model, epochs=3)
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    assert_at_target(model)


def test_a_plain_number_is_in_force_at_once_and_stays():
    model = dense_model()
    prune(model, 0.8)
    assert_at_target(model)
    before = model.layers[0].kernel.numpy()
    fit(model)
    after = model.layers[0].kernel.numpy()
    assert ((before == 0) == (after == 0)).all()
    # Units that relu has switched off do not train; the others do.
    assert (before != after)[before != 0].any()


def test_sparsity_zero_changes_no_weight():
    plain, masked = dense_model(), dense_model()
    masked.set_weights(plain.get_weights())
    prune(masked, 0.0)
    fit(plain)
    fit(masked)
    for one, other in zip(plain.get_weights(), masked.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_model_trained_before_is_pruned_from_its_next_fit_on():
    model = dense_model()
    fit(model)
    iterations = int(model.optimizer.iterations)
    prune(model, POLYNOMIAL)
    fit(model)
    assert int(model.optimizer.iterations) == iterations + 8
    assert_at_target(model)


def test_before_the_first_step_due_no_weight_is_touched():
    model = dense_model()
    before = model.get_weights()
    prune(model, ConstantSparsity(0.5, begin_step=5))
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(row.zeros == 0 for row in pruning_report(model))


def test_pruning_again_starts_a_new_schedule_without_stacking_masks():
    model = dense_model()
    prune(model, 0.5)
    fit(model)
    prune(model, 0.8)
    assert_at_target(model)
    assert model.layers[0].kernel.constraint.inner is None
    fit(model)
    assert_at_target(model)


def test_a_saved_model_goes_on_where_its_schedule_was(tmp_path):
    model = dense_model(optimizer=keras.optimizers.SGD(0.05))
    prune(model, PolynomialSparsity(0.8, end_step=14, frequency=3))
    fit(model)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert loaded.layers[0].kernel.constraint.step == 9
    fit(model)
    fit(loaded)
    assert_at_target(loaded)
    for one, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("across", ["layer", "model"])
def test_a_training_resumed_from_weights_goes_on_with_their_zeros(tmp_path, across):
    model = prune(dense_model(optimizer=keras.optimizers.SGD(0.1)), 0.8, across=across)
    fit(model)
    model.save_weights(tmp_path / "m.weights.h5")
    again = prune(dense_model(optimizer=keras.optimizers.SGD(0.1)), 0.8, across=across)
    again.load_weights(tmp_path / "m.weights.h5")
    again.optimizer.learning_rate = 0.0
    fit(again)
    for one, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "how",
    [{}, {"across": "model"}, {"pattern": "4x4"}, {"criterion": "lamp"}],
    ids=["layer", "model", "block", "lamp"],
)
def test_weights_restored_into_fresh_masks_tell_where_the_schedule_was(tmp_path, how):
    schedule = PolynomialSparsity(0.8, end_step=30, frequency=2)
    whole = prune(dense_model(optimizer=keras.optimizers.SGD(0.05)), schedule, **how)
    fit(whole)  # 8 steps
    whole.save_weights(tmp_path / "m.weights.h5")
    again = prune(dense_model(optimizer=keras.optimizers.SGD(0.05)), schedule, **how)
    again.load_weights(tmp_path / "m.weights.h5")
    for model in (whole, again):
        fit(model)
    assert all(row.zeros > 0 for row in pruning_report(again))
    # In all, since a step between two choices is not to be seen, and ranks may differ by it.
    zeros = sum(row.zeros for row in pruning_report(again))
    assert zeros == sum(row.zeros for row in pruning_report(whole))
    for model in (whole, again):
        fit(model, epochs=3)
    zeros = sum(row.zeros for row in pruning_report(again))
    assert zeros == sum(row.zeros for row in pruning_report(whole))


@pytest.mark.parametrize("across", ["layer", "model"])
@pytest.mark.parametrize(
    "schedule",
    [
        PolynomialSparsity(0.8, end_step=10),
        PolynomialSparsity(0.8, begin_step=2, end_step=16, frequency=1),
        PolynomialSparsity(0.9, end_step=40, frequency=10),
        ConstantSparsity(0.8, begin_step=5, end_step=5),
        ConstantSparsity(0.8, begin_step=2, end_step=16),
    ],
    ids=["past the end", "every step", "between two choices", "once", "late"],
)
def test_zeros_of_restored_weights_stay_whatever_step_comes_next(tmp_path, schedule, across):
    whole = prune(dense_model(optimizer=keras.optimizers.SGD(0.05)), schedule, across=across)
    fit(whole, epochs=3)
    whole.save_weights(tmp_path / "m.weights.h5")
    again = prune(dense_model(optimizer=keras.optimizers.SGD(0.05)), schedule, across=across)
    again.load_weights(tmp_path / "m.weights.h5")
    masks = [layer.kernel.numpy() != 0 for layer in again.layers]
    again.fit(X[:8], Y[:8], verbose=0)
    for layer, mask in zip(again.layers, masks, strict=True):
        assert not np.any(layer.kernel.numpy()[~mask])
    for model in (whole, again):
        fit(model, epochs=4)
    zeros = [sum(row.zeros for row in pruning_report(each)) for each in (whole, again)]
    assert zeros[1] == pytest.approx(zeros[0], abs=1)


def test_a_weight_that_is_zero_by_chance_does_not_move_the_schedule():
    weights = dense_model().get_weights()
    weights[0][0, 0] = 0
    schedule = PolynomialSparsity(0.8, begin_step=50, end_step=100, frequency=10)
    model = prune(dense_model(), schedule)
    model.set_weights(weights)
    fit(model)
    assert model.layers[0].kernel.constraint.step == 9


def test_a_backup_restored_in_a_new_process_goes_on_with_the_schedule(tmp_path):
    schedule = PolynomialSparsity(0.8, end_step=30, frequency=2)

    def trained(epochs):
        model = prune(dense_model(optimizer=keras.optimizers.SGD(0.05)), schedule)
        backup = keras.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
        settings = {"batch_size": 8, "shuffle": False, "verbose": 0}
        model.fit(X, Y, epochs=epochs, callbacks=[backup], **settings)
        return model

    trained(1)
    resumed = trained(2)
    assert int(resumed.optimizer.iterations) == 16
    reached = float(schedule.at(16, "float32"))
    for row in pruning_report(resumed):
        assert row.zeros == pytest.approx(reached * row.weights, abs=1)


def test_numbers_may_be_the_optimizers_and_numpys(tmp_path):
    model = dense_model()
    fit(model)
    schedule = PolynomialSparsity(np.float32(0.75), end_step=np.int64(20), frequency=4)
    prune(model, schedule, step=model.optimizer.iterations)
    # The step to come.
    assert model.layers[0].kernel.constraint.step == 1 + int(model.optimizer.iterations) == 9
    fit(model)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert loaded.layers[0].kernel.constraint.schedule == PolynomialSparsity(
        0.75, end_step=20, frequency=4
    )


def test_zeros_that_were_there_before_do_not_hurry_a_schedule():
    model = dense_model()
    sparse = strip(prune(model, 0.5))
    prune(sparse, PolynomialSparsity(0.8, begin_step=100, end_step=200))
    fit(sparse)
    assert sparse.layers[0].kernel.constraint.step == 9


def test_a_model_saved_before_its_masks_are_due_loads_with_all_its_weights(tmp_path):
    model = dense_model()
    model.layers[1].kernel.assign(np.zeros((16, 4)))
    prune(model, ConstantSparsity(0.5, begin_step=30))
    # Zeros in, zero gradient: the kernel is saved while it is zero by itself.
    model.train_on_batch(np.zeros_like(X), Y)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert not loaded.layers[1].kernel.numpy().any()
    fit(loaded)
    assert np.count_nonzero(loaded.layers[1].kernel.numpy()) > 0.9 * 16 * 4


def test_a_loaded_model_trained_eagerly_keeps_its_sparsity(tmp_path):
    model = dense_model()
    prune(model, 0.8)
    fit(model)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    loaded.compile("adam", "mse", run_eagerly=True)
    fit(loaded)
    assert_at_target(loaded)


def test_a_clone_has_masks_of_its_own():
    model = dense_model()
    prune(model, 0.8)
    clone = keras.models.clone_model(model)
    clone.compile("sgd", "mse", jit_compile=False)
    fit(clone)
    assert_at_target(clone)
    assert clone.layers[0].kernel.constraint is not model.layers[0].kernel.constraint


def test_a_users_constraint_is_obeyed_saved_and_given_back(tmp_path):
    own = keras.constraints.NonNeg()
    model = keras.Sequential(
        [keras.Input((12,)), layers.Dense(16, kernel_constraint=own), layers.Dense(4)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    prune(model, 0.5)
    fit(model)
    model.save(tmp_path / "m.keras")
    for each in (model, keras.models.load_model(tmp_path / "m.keras")):
        fit(each)
        kernel = each.layers[0].kernel
        assert kernel.numpy().min() >= 0
        assert np.count_nonzero(kernel.numpy()) <= 12 * 16 / 2
        strip(each)
        assert type(kernel.constraint) is keras.constraints.NonNeg
        assert each.layers[0].kernel_constraint is kernel.constraint
        assert each.layers[1].kernel_constraint is None
    assert model.layers[0].kernel_constraint is own


def test_strip_makes_the_zeros_final_and_lets_the_weights_go():
    model = dense_model()
    prune(model, 0.8)
    fit(model)
    # Weights put back from elsewhere need not obey the masks.
    model.set_weights([np.ones_like(w) for w in model.get_weights()])
    with pytest.warns(UserWarning, match=r"strip\(\) changes weights of .*hidden/kernel, out/"):
        assert strip(model) is model
    assert [row.zeros for row in pruning_report(model)] == [154, 51]
    fit(model)
    assert all(row.zeros < 10 and row.target is None for row in pruning_report(model))


def test_a_stripped_model_loads_without_tfopt(tmp_path, fresh_python):
    model = dense_model()
    prune(model, 0.8)
    fit(model)
    strip(model).save(tmp_path / "m.keras")
    np.save(tmp_path / "expected.npy", model.predict(X, verbose=0))
    fresh_python(f"""
        import sys
        sys.modules["tfopt"] = None
        import keras, numpy as np
        model = keras.models.load_model({str(tmp_path / "m.keras")!r})
        assert np.mean(model.layers[0].get_weights()[0] == 0) > 0.79
        x = np.random.default_rng(0).normal(size=(64, 12)).astype("float32")
        expected = np.load({str(tmp_path / "expected.npy")!r})
        np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-6)
    """)


def test_strip_leaves_a_model_without_masks_as_it_is():
    model = dense_model()
    fit(model)
    compiled = model.train_function
    assert strip(model) is model
    assert model.train_function is compiled


def test_it_works_on_two_replicas(tmp_path, fresh_python):
    fresh_python(
        """
        import keras, numpy as np, tensorflow as tf
        import tfopt
        from tfopt.compress.schedules import PolynomialSparsity
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(64, 12)).astype("f"), rng.normal(size=(64, 4)).astype("f")

        def reached(model):
            for row in tfopt.compress.pruning_report(model):
                assert abs(row.zeros - 0.8 * row.weights) <= 1, row
            for kernel in (layer.kernel.value for layer in model.layers):
                copies = [c.numpy() for c in strategy.experimental_local_results(kernel)]
                np.testing.assert_array_equal(*copies)

        def fit(model):
            model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)

        def build():
            keras.utils.set_random_seed(1)
            model = keras.Sequential(
                [keras.Input((12,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(4)]
            )
            # Without XLA on either side: two replicas cannot have it.
            model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
            return tfopt.prune(model, PolynomialSparsity(0.8, end_step=6, frequency=2))

        single = build()
        with strategy.scope():
            model = build()
        fit(model)
        fit(single)
        reached(model)
        for one, other in zip(single.get_weights(), model.get_weights()):
            np.testing.assert_array_equal(one == 0, other == 0)
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        model.save("%s")
        with strategy.scope():
            loaded = keras.models.load_model("%s")
        fit(loaded)
        reached(loaded)
        assert loaded.layers[0].kernel.constraint.step == 17
    """.replace("%s", str(tmp_path / "m.keras"))
    )


def every_kind():
    """A model with one layer of each kind that has kernels, and its input and output."""
    image = keras.Input((8, 8, 3))
    y = layers.Conv2D(6, 3, padding="same")(image)
    y = layers.DepthwiseConv2D(3, padding="same")(y)
    y = layers.SeparableConv2D(6, 3, padding="same")(y)
    y = layers.Conv2DTranspose(4, 3, padding="same")(y)
    y = layers.BatchNormalization()(y)
    rows = layers.Reshape((8, 32))(y)
    y = layers.Conv1D(6, 3, padding="same")(rows)
    y = layers.DepthwiseConv1D(3, padding="same")(y)
    y = layers.SeparableConv1D(6, 3, padding="same")(y)
    y = layers.Conv1DTranspose(6, 3, padding="same")(y)
    y = layers.TimeDistributed(layers.Dense(8, name="inner"))(y)
    y = layers.MultiHeadAttention(2, 4)(y, y)
    y = layers.EinsumDense("abc,cd->abd", (None, 6))(y)
    y = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(y)
    y = layers.GRU(5)(y)
    cubes = layers.Reshape((4, 4, 4, 3))(image)
    z = layers.Conv3D(3, 2, padding="same")(cubes)
    z = layers.Conv3DTranspose(2, 2, padding="same")(z)
    z = layers.ConvLSTM2D(3, 2)(z)
    words = keras.Input((5,), dtype="int32")
    w = layers.Embedding(20, 7)(words)
    out = layers.Dense(2)(layers.Concatenate()([y, layers.Flatten()(z), layers.Flatten()(w)]))
    model = keras.Model([image, words], out)
    model.compile("adam", "mse", jit_compile=False)
    x = (RNG.normal(size=(8, 8, 8, 3)).astype("float32"), RNG.integers(0, 20, (8, 5)))
    return model, x, RNG.normal(size=(8, 2)).astype("float32")


def test_every_kind_of_kernel_is_masked_saved_and_trained_further(tmp_path):
    model, x, y = every_kind()
    prune(model, 0.6, layers=lambda layer: True)
    masked = [row for row in pruning_report(model) if row.target is not None]
    alone = [row for row in pruning_report(model) if row.target is None]
    # 8 convolutions with one kernel, 2 separable ones with two, attention with four, LSTM in two
    # directions, GRU, ConvLSTM with two each, Dense twice, EinsumDense, Embedding.
    assert len(masked) == 8 + 2 * 2 + 4 + 2 * 2 + 2 + 2 + 2 + 1 + 1
    assert [row.path for row in alone] == [
        layer.name for layer in model.layers if isinstance(layer, layers.BatchNormalization)
    ]
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras", compile=False)
    loaded.compile("adam", "mse", jit_compile=False)
    loaded.fit(x, y, verbose=0)
    assert len([row for row in pruning_report(loaded) if row.target is not None]) == len(masked)
    assert_at_target(loaded, 0.6)
    assert "WeightMask" not in strip(loaded).to_json()


def test_depthwise_kernels_are_pruned_where_they_are_named():
    """A few weights for each channel, of which tfmot masks none either."""
    model, _, _ = every_kind()
    prune(model, 0.6)
    left = {row.path: row.remark for row in pruning_report(model) if row.target is None}
    depthwise = {path for path, remark in left.items() if remark.startswith("depthwise")}
    assert {path.partition("/")[0].rpartition("conv")[0] for path in depthwise} == {
        "depthwise_",
        "separable_",
    }
    assert len(depthwise) == 4
    alone = keras.Sequential([keras.Input((8, 8, 3)), layers.DepthwiseConv2D(3, name="thin")])
    with pytest.raises(UserError, match=r"depthwise, which loses much.*by layers="):
        prune(alone, 0.5)
    with pytest.raises(UserError, match=r"(?s)sparsity says already.*leave layers= out"):
        prune(alone, {"thin": 0.5}, layers="thin")
    prune(alone, {"thin": 0.5})
    assert pruning_report(alone)[0].target == 0.5


def test_nested_models_and_shared_layers_are_masked_once(tmp_path):
    shared = layers.Dense(12, name="shared")
    block = keras.Sequential([keras.Input((12,)), layers.Dense(12, name="deep")], name="block")
    inputs = keras.Input((12,))
    model = keras.Model(inputs, layers.Dense(4, name="out")(shared(block(shared(inputs)))))
    model.compile("sgd", "mse", jit_compile=False)
    prune(model, POLYNOMIAL)
    paths = [row.path for row in pruning_report(model)]
    assert sorted(paths) == ["block/deep/kernel", "out/kernel", "shared/kernel"]
    fit(model)
    # A shared layer is one kernel updated once a step.
    assert shared.kernel.constraint.step == 9
    assert_at_target(model)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    fit(loaded)
    assert_at_target(loaded)


def test_mobilenet_reaches_its_target():
    model = keras.applications.MobileNetV2((96, 96, 3), alpha=0.35, weights=None, classes=4)
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    prune(model, PolynomialSparsity(0.7, end_step=2, frequency=1))
    model.fit(RNG.normal(size=(6, 96, 96, 3)), np.arange(6) % 4, batch_size=2, verbose=0)
    assert_at_target(model, 0.7)
    rows = pruning_report(model)
    assert len([row for row in rows if row.target is not None]) == 36
    left = [row.remark for row in rows if row.target is None]
    assert len([remark for remark in left if remark.startswith("depthwise")]) == 17
    assert set(left) == {
        "BatchNormalization has no kernel",
        "depthwise, which loses much accuracy: choose it by layers= to prune it",
    }


def test_layers_of_a_users_own_class_are_masked():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = layers.Dense(8, name="first"), layers.Dense(4, name="second")

        def call(self, x):
            return self.second(self.first(x))

    model = Own()
    model.compile("sgd", "mse", jit_compile=False)
    model(X)
    prune(model, POLYNOMIAL)
    fit(model)
    assert_at_target(model)


def test_weights_that_become_no_numbers_are_in_the_report():
    model = dense_model()
    prune(model, 0.5)
    kernel = model.layers[0].kernel.numpy()
    kernel[0, :3] = np.nan, np.inf, -np.inf
    model.layers[0].kernel.assign(kernel)
    hidden, out = pruning_report(model)
    assert hidden.remark == "3 NaN or infinite weights, which stay"
    assert out.remark is None
    assert (~np.isfinite(model.layers[0].kernel.numpy())).sum() == 3


def test_layers_are_chosen_by_path_or_by_function():
    for choice in ("^hid", lambda layer: layer.name == "hidden"):
        model = dense_model()
        prune(model, 0.5, layers=choice)
        hidden, out = pruning_report(model)
        assert (hidden.target, out.target) == (0.5, None)
        assert out.remark == "not among the layers that were chosen"


def test_frozen_layers_are_left_alone_with_the_reason():
    model = dense_model()
    model.layers[0].trainable = False
    before = model.layers[0].kernel.numpy()
    prune(model, 0.5)
    fit(model)
    hidden, out = pruning_report(model)
    assert hidden.target is None
    assert "set trainable = True" in hidden.remark
    assert out.target == 0.5
    np.testing.assert_array_equal(before, model.layers[0].kernel.numpy())


def test_partly_frozen_attention_is_left_alone_with_the_reason():
    x = keras.Input((4, 6))
    attention = layers.MultiHeadAttention(2, 3)
    model = keras.Model(x, layers.Dense(2)(attention(x, x)))
    attention.query_dense.trainable = False
    prune(model, 0.5)
    rows = {row.path: row for row in pruning_report(model)}
    left = [row for path, row in rows.items() if path.startswith(attention.name)]
    assert len(left) == 4
    assert all("share one constraint" in row.remark and row.target is None for row in left)


def frozen_model():
    model = dense_model()
    model.trainable = False
    return model


class Stopped(layers.Dense):
    """Ctrl-C, as it comes when this layer is given its constraint."""

    def __setattr__(self, name, value):
        if name == "kernel_constraint" and value is not None:
            raise KeyboardInterrupt
        super().__setattr__(name, value)


@pytest.mark.parametrize("across", ["layer", "model"])
def test_a_model_is_masked_whole_or_not_at_all(across):
    model = keras.Sequential([keras.Input((12,)), layers.Dense(16), Stopped(4)])
    before = model.get_weights()
    with pytest.raises(KeyboardInterrupt):
        prune(model, 0.5, across=across)
    assert all(v.constraint is None for v in model.variables)
    assert all(layer.kernel_constraint is None for layer in model.layers)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (dense_model, {"sparsity": 1.5}, "0 <= sparsity < 1"),
        (dense_model, {"sparsity": 0.5, "layers": "nowhere"}, "hidden, out"),
        (dense_model, {"sparsity": 0.5, "layers": "("}, "not a regular expression"),
        (dense_model, {"sparsity": 0.5, "layers": 3}, "does not choose layers"),
        (dense_model, {"sparsity": 0.5, "layers": layers.Dense(1)}, "does not choose layers"),
        (frozen_model, {"sparsity": 0.5}, "not trainable"),
        (lambda: keras.Sequential([layers.Dense(3)]), {"sparsity": 0.5}, "not built"),
        (lambda: "model", {"sparsity": 0.5}, "Keras 3 model"),
    ],
)
def test_bad_input_changes_nothing(make, arguments, words):
    model = make()
    before = model.get_weights() if isinstance(model, keras.Model) else []
    with pytest.raises(UserError, match=words):
        prune(model, **arguments)
    if isinstance(model, keras.Model):
        assert all(v.constraint is None for v in model.variables)
        for one, other in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_stripping_before_the_end_of_a_schedule_is_told():
    model = prune(dense_model(), PolynomialSparsity(0.8, end_step=1000))
    fit(model)
    assert {row.remark for row in pruning_report(model)} == {
        "at step 8 of a schedule that ends at 1000"
    }
    with pytest.warns(UserWarning, match="masks of .* before their time .*at step 8 of"):
        strip(model)


def test_strip_tells_where_an_earlier_epoch_had_fewer_zeros():
    model = prune(dense_model(), PolynomialSparsity(0.8, end_step=10, frequency=1))
    fit(model)
    early = model.get_weights()
    fit(model)
    model.set_weights(early)
    with pytest.warns(UserWarning, match=r"strip\(\) changes weights of .*hidden/kernel"):
        strip(model)


@pytest.mark.parametrize("change", ["frozen", "pruned anew"])
def test_one_ranking_goes_on_without_a_kernel_that_left_it(change):
    schedule = PolynomialSparsity(0.8, end_step=12, frequency=2)
    model = prune(dense_model(), schedule, across="model")
    fit(model)
    hidden, out = model.layers
    if change == "frozen":
        hidden.trainable = False
        model.compile("adam", "mse", jit_compile=False)
    else:
        prune(model, 0.3, layers="hidden")
    left = np.count_nonzero(hidden.kernel) if change == "frozen" else 134
    fit(model, epochs=2)
    assert np.count_nonzero(hidden.kernel) == left
    assert np.mean(out.kernel.numpy() == 0) == pytest.approx(0.8, abs=0.01)


def test_a_second_matrix_of_a_layer_is_told():
    embedding = layers.ReversibleEmbedding(50, 8, tie_weights=False, name="words")
    words = keras.Input((4,), dtype="int32")
    model = keras.Model(words, embedding(embedding(words), reverse=True))
    prune(model, 0.5)
    held, other = pruning_report(model)
    assert (held.path, held.target) == ("words/embeddings", 0.5)
    assert (other.path, other.weights, other.target) == ("words/reverse_embeddings", 400, None)
    assert "no constraint" in other.remark


def test_a_loop_of_ones_own_is_traced_without_complaint(caplog):
    model = prune(dense_model(), 0.5)

    @tf.function
    def step(x):
        for variable in model.trainable_variables:
            variable.assign_sub(tf.ones_like(variable))
        tfopt.compress.hold(model)
        return model(x)

    step(X)
    assert "AutoGraph" not in caplog.text
    assert_at_target(model, 0.5)


def test_after_strip_the_report_still_tells_the_zeros():
    model = strip(prune(dense_model(), 0.8))
    assert [row.remark for row in pruning_report(model)] == [
        "no mask is held; 80.2% zeros",
        "no mask is held; 79.7% zeros",
    ]
    assert pruning_report(dense_model())[0].remark == "no mask is held"


@pytest.mark.parametrize(
    "compress", [lambda model: tfopt.prune(model, 0.5), lambda model: tfopt.cluster(model, 4)]
)
def test_weights_that_are_no_numbers_are_refused_by_name(compress):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="lost")])
    model.layers[0].kernel.assign(np.full((3, 4), np.nan))
    with pytest.raises(tfopt.UserError, match="lost/kernel"):
        compress(model)
    assert model.layers[0].kernel_constraint is None
