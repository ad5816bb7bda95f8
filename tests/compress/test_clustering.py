"""cluster, clustering_report and strip on real Keras 3 models that are trained."""

import keras
import numpy as np
import pytest
from keras import layers

import tfopt
from tfopt.compress.cluster import cluster, clustering_report
from tfopt.compress.prune import prune
from tfopt.compress.strip import strip
from tfopt.errors import UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 12)).astype("float32")
Y = RNG.normal(size=(64, 4)).astype("float32")


def dense_model(**compile_arguments):
    model = keras.Sequential(
        [keras.Input((12,)), layers.Dense(16, "tanh", name="hidden"), layers.Dense(4, name="out")]
    )
    # Compiling by XLA takes longer than these trainings; it has a case of its own.
    settings = {"optimizer": "adam", "loss": "mse", "jit_compile": False, **compile_arguments}
    model.compile(**settings)
    return model


def fit(model, epochs=1, **arguments):
    return model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, **arguments)


def clustered(model):
    return [row for row in clustering_report(model) if row.clusters is not None]


def values_of(layer):
    return np.unique(layer.kernel.numpy())


def prune_weights(model, share):
    for layer in model.layers:
        kernel = layer.kernel.numpy()
        layer.kernel.assign(
            np.where(np.abs(kernel) < np.quantile(np.abs(kernel), share), 0, kernel)
        )


@pytest.mark.parametrize(
    "compile_arguments",
    [
        {"optimizer": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)},
        {"optimizer": lambda: keras.optimizers.AdamW(0.01, clipnorm=1.0)},
        {"jit_compile": True},
        {"steps_per_execution": 4},
        {"run_eagerly": True},
        {"optimizer": lambda: keras.optimizers.Adam(gradient_accumulation_steps=2)},
    ],
    ids=lambda arguments: ",".join(arguments),
)
@pytest.mark.parametrize("begin_step", [0, 3])
def test_there_are_never_more_values_than_clusters_however_the_step_is_compiled(
    compile_arguments, begin_step
):
    made = {key: make() if callable(make) else make for key, make in compile_arguments.items()}
    model = dense_model(**made)
    assert cluster(model, 5, begin_step=begin_step) is model
    fit(model)
    before = values_of(model.layers[0])
    fit(model)
    assert len(values_of(model.layers[0])) == len(before) == 5
    # All five have been trained.
    assert not np.isin(before, values_of(model.layers[0])).any()


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16", "bfloat16"])
def test_in_low_precision_the_values_of_a_cluster_are_equal_too(policy):
    keras.config.set_dtype_policy(policy)
    try:
        model = dense_model()
    finally:
        keras.config.set_dtype_policy("float32")
    cluster(model, 6)
    fit(model)
    assert [row.values <= 6 for row in clustering_report(model)] == [True, True]


def test_a_cluster_moves_by_the_mean_of_what_its_weights_would_have_moved():
    model, free = (dense_model(optimizer=keras.optimizers.SGD(0.1)) for _ in range(2))
    free.set_weights(model.get_weights())
    cluster(model, 4)
    free.set_weights(model.get_weights())
    before = model.layers[0].kernel.numpy()
    for each in (model, free):
        each.train_on_batch(X, Y)
    after, alone = (each.layers[0].kernel.numpy() for each in (model, free))
    for value in np.unique(before):
        own = before == value
        np.testing.assert_allclose(after[own], alone[own].mean(), rtol=1e-5)


def test_a_step_without_gradients_changes_no_bit():
    model = dense_model(optimizer=keras.optimizers.SGD(0.0))
    cluster(model, 5)
    before = model.get_weights()
    fit(model)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_each_channel_has_values_of_its_own():
    model = dense_model()
    cluster(model, 3, per_channel=True)
    fit(model)
    for layer in model.layers:
        kernel = layer.kernel.numpy()
        assert [len(np.unique(column)) for column in kernel.T] == [3] * kernel.shape[1]
        assert len(np.unique(kernel)) > 6
    assert [row.values for row in clustering_report(model)] == [3, 3]


@pytest.mark.parametrize("per_channel", [False, True])
def test_zeros_of_a_pruned_model_stay_and_nothing_else_becomes_zero(tmp_path, per_channel):
    model = dense_model()
    prune_weights(model, 0.6)
    model.layers[0].kernel.assign(model.layers[0].kernel.numpy() + (np.arange(16) == 3))
    zeros = [layer.kernel.numpy() == 0 for layer in model.layers]
    assert not zeros[0][:, 3].any()
    cluster(model, 4, per_channel=per_channel)
    fit(model)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    fit(loaded)
    for each in (model, loaded):
        for layer, expected in zip(each.layers, zeros, strict=True):
            np.testing.assert_array_equal(layer.kernel.numpy() == 0, expected)
        assert all(row.values <= 4 for row in clustering_report(each))


def test_zeros_are_let_go_where_asked_and_few_of_them_are_no_cluster():
    model = dense_model()
    prune_weights(model, 0.6)
    cluster(model, 4, keep_zeros=False)
    fit(model)
    assert (model.layers[0].kernel.numpy() != 0).all()
    model = dense_model()
    prune_weights(model, 0.05)
    cluster(model, 4)
    assert (model.layers[0].kernel.numpy() != 0).all()


@pytest.mark.parametrize("begin_step", [0, 6, 12])
@pytest.mark.parametrize("compiled", [{}, {"jit_compile": True}])
def test_zeros_stay_also_until_there_are_clusters(tmp_path, begin_step, compiled):
    model = dense_model(**compiled)
    prune_weights(model, 0.6)
    zeros = [layer.kernel.numpy() == 0 for layer in model.layers]
    cluster(model, 4, begin_step=begin_step)
    fit(model)  # 8 steps
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    fit(loaded)
    for each in (model, loaded):
        for layer, expected in zip(each.layers, zeros, strict=True):
            np.testing.assert_array_equal(layer.kernel.numpy() == 0, expected)
    assert all(row.values <= 4 for row in clustered(loaded))


def test_an_average_written_at_the_end_does_not_fill_the_zeros_of_clusters_to_come():
    model = dense_model(optimizer=keras.optimizers.Adam(use_ema=True, ema_momentum=0.5))
    prune_weights(model, 0.6)
    zeros = model.layers[0].kernel.numpy() == 0
    cluster(model, 4, begin_step=100)
    model.layers[0].kernel.assign(np.ones((12, 16)))
    with (
        pytest.warns(UserWarning, match="changes weights"),
        pytest.warns(match="before their time"),
    ):
        strip(model)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy() == 0, zeros)


def depthwise_model():
    model = keras.Sequential(
        [
            keras.Input((6, 6, 4)),
            layers.DepthwiseConv2D(3, name="depthwise"),
            layers.Conv2D(8, 1, name="pointwise"),
            layers.Flatten(),
            layers.Dense(3, name="out"),
        ]
    )
    model.compile("adam", "mse", jit_compile=False)
    return model


@pytest.mark.parametrize("settings", [{}, {"layers": "pointwise"}])
def test_kernels_without_clusters_keep_their_zeros_too(tmp_path, settings):
    model = depthwise_model()
    for layer in (model.get_layer(name) for name in ("depthwise", "pointwise", "out")):
        kernel = layer.kernel.numpy()
        layer.kernel.assign(np.where(np.abs(kernel) < np.median(np.abs(kernel)), 0, kernel))
    zeros = [np.asarray(variable) == 0 for variable in model.trainable_variables]
    cluster(model, 4, **settings)
    remarks = {row.path: row.remark or "" for row in clustering_report(model)}
    assert remarks["depthwise/kernel"].endswith("its zeros are kept")
    images, targets = np.ones((32, 6, 6, 4), "float32"), np.ones((32, 3), "float32")
    model.fit(images, targets, verbose=0)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    loaded.fit(images, targets, verbose=0)
    for each in (loaded, strip(loaded), strip(model)):
        for variable, expected in zip(each.trainable_variables, zeros, strict=True):
            if len(variable.shape) > 1:
                np.testing.assert_array_equal(np.asarray(variable) == 0, expected)
    assert all(layer.kernel.constraint is None for layer in model.layers if layer.weights)


def test_zeros_of_kernels_without_clusters_are_let_go_where_asked():
    model = depthwise_model()
    kernel = model.get_layer("depthwise").kernel
    kernel.assign(np.where(np.abs(kernel) < np.median(np.abs(kernel)), 0, kernel))
    cluster(model, 4, keep_zeros=False)
    assert kernel.constraint is None


@pytest.mark.parametrize("begin_step", [0, 4, 12])
def test_a_saved_model_goes_on_as_if_it_had_not_been_saved(tmp_path, begin_step):
    model = dense_model(optimizer=keras.optimizers.SGD(0.05))
    cluster(model, 5, begin_step=begin_step)
    fit(model)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    fit(model)
    fit(loaded)
    assert len(values_of(loaded.layers[0])) == 5
    for one, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)


@pytest.mark.parametrize("share", [0, 0.6])
def test_a_loaded_model_trained_eagerly_keeps_its_clusters(tmp_path, share):
    model = dense_model()
    prune_weights(model, share)
    cluster(model, 5)
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras", compile=False)
    loaded.compile(keras.optimizers.SGD(1e-3), "mse", run_eagerly=True)
    fit(loaded)
    before, after = model.layers[0].kernel.numpy(), loaded.layers[0].kernel.numpy()
    for value in np.unique(before):
        assert len(np.unique(after[before == value])) == 1
    assert (after == 0).sum() == (before == 0).sum()


def test_weights_alone_are_saved_and_a_loop_of_ones_own_holds_them(tmp_path):
    model = dense_model()
    cluster(model, 5)
    fit(model)
    model.save_weights(tmp_path / "m.weights.h5")
    again = cluster(dense_model(), 5)
    fit(again)
    again.load_weights(tmp_path / "m.weights.h5")
    # It trained already, in a step compiled with clusters that were those of other weights.
    cluster(strip(again), 5)
    np.testing.assert_array_equal(values_of(model.layers[0]), values_of(again.layers[0]))
    for kernel in (layer.kernel for layer in again.layers):
        kernel.assign(kernel.numpy() + RNG.normal(size=kernel.shape) * 1e-3)
    tfopt.compress.hold(again)
    assert [row.values for row in clustering_report(again)] == [5, 5]


def without_rate(model):
    model.compile(keras.optimizers.SGD(0.0), "mse", jit_compile=False)
    return model


@pytest.mark.parametrize("share", [0, 0.6])
def test_a_training_resumed_from_weights_goes_on_with_their_clusters(tmp_path, share):
    model = dense_model()
    prune_weights(model, share)
    cluster(model, 5)
    backup = {"backup_dir": tmp_path / "backup", "delete_checkpoint": False}
    fit(without_rate(model), callbacks=[keras.callbacks.BackupAndRestore(**backup)])
    again = dense_model()
    prune_weights(again, share)
    cluster(again, 5)
    callbacks = [keras.callbacks.BackupAndRestore(**backup)]
    fit(without_rate(again), epochs=2, callbacks=callbacks)
    for one, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_clusters_are_formed_anew_for_float_weights_that_are_loaded(tmp_path):
    model = dense_model()
    model.save_weights(tmp_path / "m.weights.h5")
    expected = cluster(model, 5).layers[0].kernel.numpy()
    again = cluster(dense_model(), 5)
    again.load_weights(tmp_path / "m.weights.h5")
    fit(without_rate(again))
    np.testing.assert_array_equal(again.layers[0].kernel.numpy(), expected)


def test_a_users_constraint_is_obeyed_saved_and_given_back(tmp_path):
    own = keras.constraints.NonNeg()
    model = keras.Sequential(
        [keras.Input((12,)), layers.Dense(16, kernel_constraint=own), layers.Dense(4)]
    )
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    cluster(model, 5)
    fit(model)
    model.save(tmp_path / "m.keras")
    for each in (model, keras.models.load_model(tmp_path / "m.keras")):
        fit(each)
        kernel = each.layers[0].kernel
        assert kernel.numpy().min() >= 0
        assert len(np.unique(kernel.numpy())) <= 5
        strip(each)
        assert type(kernel.constraint) is keras.constraints.NonNeg
        assert each.layers[1].kernel_constraint is None
    assert model.layers[0].kernel_constraint is own


def test_a_training_resumed_from_weights_goes_on_with_clusters_that_came_late(tmp_path):
    first = cluster(dense_model(optimizer="sgd"), 5, begin_step=6)
    fit(first, epochs=2)
    first.save_weights(tmp_path / "m.weights.h5")
    again = cluster(dense_model(optimizer="sgd"), 5, begin_step=6)
    again.load_weights(tmp_path / "m.weights.h5")
    again.fit(X[:8], Y[:8], verbose=0)
    assert [row.values for row in clustering_report(again)] == [5, 5]
    assert [row.remark for row in clustering_report(again)] == [None, None]


def test_strip_gives_a_plain_model_with_few_values_whatever_was_put_into_it(tmp_path, fresh_python):
    model = dense_model()
    cluster(model, 5)
    fit(model)
    kept = model.get_weights()
    assert strip(model) is model
    for one, other in zip(kept, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    cluster(model, 5)
    model.set_weights([w + RNG.normal(size=w.shape) * 1e-3 for w in model.get_weights()])
    with pytest.warns(UserWarning, match="changes weights"):
        strip(model).save(tmp_path / "m.keras")
    fresh_python(f"""
        import sys
        sys.modules["tfopt"] = None
        import keras, numpy as np
        model = keras.models.load_model({str(tmp_path / "m.keras")!r})
        assert [len(np.unique(layer.kernel.numpy())) for layer in model.layers] == [5, 5]
    """)
    fit(model)
    assert all(row.clusters is None and row.values > 50 for row in clustering_report(model))


def test_it_works_on_two_replicas(tmp_path, fresh_python):
    fresh_python(
        """
        import keras, numpy as np, tensorflow as tf
        import tfopt
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(64, 12)).astype("f"), rng.normal(size=(64, 4)).astype("f")

        def fit(model):
            model.fit(x, y, batch_size=8, epochs=1, shuffle=False, verbose=0)

        def build(**options):
            keras.utils.set_random_seed(1)
            model = keras.Sequential(
                [keras.Input((12,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(4)]
            )
            # Without XLA on either side: two replicas cannot have it.
            model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
            return tfopt.cluster(model, 5, **options)

        def held(model, per_channel=False):
            for kernel in (layer.kernel.value for layer in model.layers):
                copies = [c.numpy() for c in strategy.experimental_local_results(kernel)]
                np.testing.assert_array_equal(*copies)
                for part in copies[0].T if per_channel else copies:
                    assert len(np.unique(part)) == 5

        for options in ({}, {"begin_step": 4}, {"per_channel": True}):
            single = build(**options)
            with strategy.scope():
                model = build(**options)
            fit(model)
            fit(single)
            held(model, "per_channel" in options)
            for one, other in zip(single.get_weights(), model.get_weights()):
                np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
        model = build()
        model.save("%s")
        with strategy.scope():
            loaded = keras.models.load_model("%s")
        fit(loaded)
        held(loaded)
    """.replace("%s", str(tmp_path / "m.keras"))
    )


def every_kind():
    """A model with most kinds of kernels, and its input and output."""
    image = keras.Input((6, 6, 3))
    y = layers.Conv2D(6, 3, padding="same")(image)
    y = layers.DepthwiseConv2D(3, padding="same")(y)
    y = layers.SeparableConv2D(6, 3, padding="same")(y)
    y = layers.Conv2DTranspose(4, 3, padding="same")(y)
    y = layers.BatchNormalization()(y)
    y = layers.Reshape((6, 24))(y)
    y = layers.TimeDistributed(layers.Dense(8, name="inner"))(y)
    y = layers.MultiHeadAttention(2, 4)(y, y)
    y = layers.EinsumDense("abc,cd->abd", (None, 6))(y)
    y = layers.Bidirectional(layers.LSTM(4))(y)
    words = keras.Input((5,), dtype="int32")
    w = layers.Flatten()(layers.Embedding(20, 7)(words))
    out = layers.Dense(2, name="tiny")(layers.Dense(4)(layers.Concatenate()([y, w])))
    model = keras.Model([image, words], out)
    model.compile("adam", "mse", jit_compile=False)
    x = (RNG.normal(size=(8, 6, 6, 3)).astype("float32"), RNG.integers(0, 20, (8, 5)))
    return model, x, RNG.normal(size=(8, 2)).astype("float32")


def test_every_kind_of_kernel_is_clustered_saved_and_trained_further(tmp_path):
    model, x, y = every_kind()
    cluster(model, 8)
    # Convolution, pointwise, transposed, inner, attention with four, EinsumDense, LSTM with two in
    # two directions, Embedding, Dense.
    assert len(clustered(model)) == 1 + 1 + 1 + 1 + 4 + 1 + 4 + 1 + 1
    alone = [row.remark for row in clustering_report(model) if row.clusters is None]
    assert [remark.split()[0] for remark in alone] == [
        "depthwise,",
        "depthwise,",
        "BatchNormalization",
        "it",
    ]
    assert alone[-1] == "it has 8 weights for 8 clusters"
    model.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras", compile=False)
    loaded.compile("adam", "mse", jit_compile=False)
    loaded.fit(x, y, verbose=0)
    rows = clustered(loaded)
    assert len(rows) == 15
    assert {row.values for row in rows} == {8}
    assert {row.bits for row in rows} == {3}
    assert "WeightClusters" not in strip(loaded).to_json()


def test_nested_models_shared_layers_and_a_users_own_class():
    shared = layers.Dense(12, name="shared")
    block = keras.Sequential([keras.Input((12,)), layers.Dense(12, name="deep")], name="block")

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.shared, self.block, self.out = shared, block, layers.Dense(4, name="out")

        def call(self, x):
            return self.out(self.shared(self.block(self.shared(x))))

    model = Own()
    model.compile("sgd", "mse", jit_compile=False)
    model(X)
    cluster(model, 5)
    fit(model)
    rows = clustering_report(model)
    assert sorted(row.path for row in rows) == ["block/deep/kernel", "out/kernel", "shared/kernel"]
    assert {row.values for row in rows} == {5}
    assert all(row.remark is None for row in rows)


def test_layers_are_chosen_also_those_left_out_else():
    model = dense_model()
    cluster(model, 5, layers="^hid")
    hidden, out = clustering_report(model)
    assert (hidden.clusters, out.clusters) == (5, None)
    assert out.remark == "not among the layers that were chosen"
    model = keras.Sequential([keras.Input((6, 6, 3)), layers.DepthwiseConv2D(3)])
    with pytest.raises(UserError, match="depthwise"):
        cluster(model, 4)
    (row,) = clustering_report(cluster(model, 4, layers=layers.DepthwiseConv2D))
    assert row.values == 4


def test_clusters_that_wait_change_nothing_and_are_told():
    model = dense_model()
    before = model.get_weights()
    cluster(model, 5, begin_step=9)
    assert "formed at step 9" in clustering_report(model)[0].remark
    with pytest.warns(UserWarning, match="clusters of .* before their time .*at step 9"):
        strip(model)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def frozen_model():
    model = dense_model()
    model.trainable = False
    return model


def diverged_model():
    model = dense_model()
    model.layers[1].kernel.assign(np.full((16, 4), np.nan))
    return model


class Stopped(layers.Dense):
    """Ctrl-C, as it comes when this layer is given its constraint."""

    def __setattr__(self, name, value):
        if name == "kernel_constraint" and value is not None:
            raise KeyboardInterrupt
        super().__setattr__(name, value)


def test_a_model_is_clustered_whole_or_not_at_all():
    model = keras.Sequential([keras.Input((12,)), layers.Dense(16), Stopped(4)])
    before = model.get_weights()
    with pytest.raises(KeyboardInterrupt):
        cluster(model, 4)
    assert all(v.constraint is None for v in model.variables)
    assert all(layer.kernel_constraint is None for layer in model.layers)
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (dense_model, {"clusters": 1}, "at least 2"),
        (dense_model, {"clusters": 2.5}, "not a count"),
        (dense_model, {"clusters": 2**20}, "65536"),
        (dense_model, {"clusters": 192}, "192 weights for 192 clusters"),
        (dense_model, {"clusters": 16, "per_channel": True}, "12 weights in a channel"),
        (dense_model, {"initial": "best"}, "kmeans"),
        (dense_model, {"begin_step": -1}, "begin_step"),
        (dense_model, {"layers": "nowhere"}, "hidden, out"),
        (dense_model, {"layers": "("}, "not a regular expression"),
        (frozen_model, {}, "not trainable"),
        (diverged_model, {}, "out/kernel.*not all its weights are numbers"),
        (lambda: keras.Sequential([layers.Dense(3)]), {}, "not built"),
        (lambda: "model", {}, "Keras 3 model"),
    ],
)
def test_bad_input_changes_nothing(make, arguments, words):
    model = make()
    before = model.get_weights() if isinstance(model, keras.Model) else []
    with pytest.raises(UserError, match=words):
        cluster(model, **{"clusters": 8, **arguments})
    if isinstance(model, keras.Model):
        assert all(v.constraint is None for v in model.variables)
        for one, other in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_two_things_are_never_held_at_once():
    model = cluster(dense_model(), 8)
    with pytest.raises(UserError, match=r"WeightClusters on hidden(.|\n)*strip"):
        cluster(model, 4)
    with pytest.raises(UserError, match=r"WeightClusters on hidden(.|\n)*strip"):
        prune(model, 0.5)
    model = prune(dense_model(), 0.5)
    with pytest.raises(UserError, match=r"WeightMask on hidden(.|\n)*strip"):
        cluster(model, 4)
    cluster(strip(model), 4)
    fit(model)
    assert abs(np.mean(model.layers[0].kernel.numpy() == 0) - 0.5) < 0.01
