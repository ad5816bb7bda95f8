"""quantize_aware, quantization_report and strip on real Keras 3 models that are trained."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from dense_nets import assert_same, compiled, loaded
from dense_nets import fit as fit_rows
from keras import layers

from tfopt.compress.quantize_aware import quantization_report, quantize_aware
from tfopt.compress.strip import strip
from tfopt.errors import UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6, 6, 2)).astype("float32")
Y = RNG.normal(size=(64, 3)).astype("float32")
ROWS = X[:, :3, 0, :].reshape(64, 6)


def small_model(**settings):
    return compiled(
        keras.Input((6, 6, 2)),
        layers.Conv2D(4, 3, use_bias=False, name="conv"),
        layers.BatchNormalization(name="norm"),
        layers.ReLU(name="relu"),
        layers.Flatten(name="flat"),
        layers.Dense(5, "swish", name="hidden"),
        layers.Dense(3, name="out"),
        **settings,
    )


def fit(*models, data=(X, Y)):
    for model in models:
        fit_rows(model, data=data)


def rows(model):
    return {row.path: row for row in quantization_report(model)}


def assert_trained(model, batches):
    assert model.quantization_awareness.step == batches
    assert all(np.isfinite(w).all() for w in model.get_weights())
    for path, row in rows(model).items():
        assert row.output is not None or row.remark or row.precision, path


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
        {"steps_per_execution": 4},
        {"run_eagerly": True},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_ranges_are_learned_however_the_step_is_compiled(settings):
    model = small_model(**settings)
    assert quantize_aware(model) is model
    fit(model)
    assert_trained(model, 8)
    low, high = rows(model)["inputs"].output
    assert X.min() <= low < 0 < high <= X.max()
    lines = str(quantization_report(model)).splitlines()
    assert lines[1].startswith("inputs")
    assert f"{low:.4g} to {high:.4g}" in lines[1]
    assert rows(model)["relu"].output[0] == 0


def test_each_layer_is_reported_as_the_converter_fuses_it_and_strip_leaves_a_plain_model():
    model = small_model()
    weights = len(model.weights)
    fit(quantize_aware(model))
    found = rows(model)
    assert [path for path, row in found.items() if row.precision] == ["conv", "hidden", "out"]
    ranges = [path for path, row in found.items() if row.output]
    assert ranges == ["inputs", "relu", "hidden", "out"]
    assert "rounded once, together with norm" in found["conv"].remark
    assert "rounded once, together with relu" in found["norm"].remark
    assert "passes its input's values on" in found["flat"].remark
    assert strip(model) is model
    assert type(model) is keras.Sequential
    assert len(model.weights) == weights
    assert all("call" not in vars(layer) for layer in model.layers)
    kernel = model.get_layer("conv").kernel.numpy().reshape(-1, 4)
    assert max(len(np.unique(channel)) for channel in kernel.T) <= 255
    assert "tfopt" not in model.to_json()
    with pytest.raises(UserError, match="not quantization-aware"):
        quantization_report(model)
    found = rows(quantize_aware(model, layers="^out"))
    assert found["out"].precision == "int8"
    assert "not chosen" in found["conv"].remark
    assert found["conv"].precision is None


def test_the_warm_up_computes_in_float_and_observes_already():
    plain, aware = small_model(), small_model()
    aware.set_weights(plain.get_weights())
    quantize_aware(aware, begin_step=8)
    fit(plain, aware)
    np.testing.assert_array_equal(plain(X), aware(X))
    assert rows(aware)["relu"].output is not None
    fit(plain, aware)
    assert np.abs(plain(X) - aware(X)).max() > 1e-4
    # Before any batch there are no ranges, and kernels alone are rounded.
    unseen = quantize_aware(small_model())
    assert rows(unseen)["relu"].output is None
    before = strip(unseen)(X)
    np.testing.assert_allclose(quantize_aware(unseen)(X), before, atol=1e-5)


def test_ranges_keep_up_with_outputs_that_grow_in_the_first_steps():
    model = keras.Sequential([keras.Input((72,)), layers.Dense(3, kernel_initializer="zeros")])
    model.compile(keras.optimizers.Adam(1.0), "mse", jit_compile=False)
    quantize_aware(model).fit(X.reshape(64, 72), Y + 30, batch_size=8, epochs=8, verbose=0)
    means = model.predict(X.reshape(64, 72), verbose=0).mean(0)
    np.testing.assert_allclose(means, 30, atol=5)


def test_ranges_of_a_part_that_is_called_alone_are_those_of_all_batches():
    part = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    inputs = keras.Input((6,))
    model = quantize_aware(keras.Model(inputs, part(inputs)))
    for scale in (1, 1, 1, 10, 0.01):
        part(ROWS * scale, training=True)
    (low, high), *_ = (row.output for row in quantization_report(model) if row.output)
    assert high - low > 1


def test_batch_normalization_is_frozen_from_its_step_on():
    model = quantize_aware(small_model(), freeze_batchnorm_step=8)
    mean = model.get_layer("norm").moving_mean
    start = mean.numpy()
    fit(model)
    frozen = mean.numpy()
    assert np.abs(frozen - start).max() > 0
    fit(model)
    np.testing.assert_allclose(mean, frozen, rtol=1e-6)
    # The model now trains as it serves.
    np.testing.assert_allclose(model(X, training=True), model(X, training=False), atol=1e-5)


def test_a_saved_model_goes_on_where_it_was(tmp_path):
    model = quantize_aware(small_model(optimizer=keras.optimizers.SGD(0.01)), begin_step=3)
    fit(model)
    again = loaded(model, tmp_path)
    assert quantization_report(again) == quantization_report(model)
    fit(model, again)
    assert_trained(again, 16)
    assert_same(model, again)


def test_a_loop_of_ones_own_trains_it():
    model = quantize_aware(small_model())
    optimizer = keras.optimizers.Adam()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    for start in range(0, 64, 16):
        step(X[start : start + 16], Y[start : start + 16])
    assert_trained(model, 4)


class Autoencoder(keras.Model):
    """Trains its parts, and is never called itself, as the tutorials' VAE and GAN are."""

    def __init__(self):
        super().__init__()
        self.down = keras.Sequential([keras.Input((6,)), layers.Dense(2, "tanh")])
        self.up = keras.Sequential([keras.Input((2,)), layers.Dense(4, "relu"), layers.Dense(6)])

    def call(self, x, training=None):
        return self.up(self.down(x))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((self.up(self.down(x, training=True), training=True) - x) ** 2)
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        return {"loss": loss}


def test_a_training_step_that_never_calls_the_model_counts_its_batches():
    model = Autoencoder()
    model(ROWS)
    model.compile("sgd", jit_compile=False)
    quantize_aware(model, begin_step=3)
    fit(model, data=(ROWS,))
    assert model.quantization_awareness.step == 8
    assert len(np.unique(model.down(ROWS))) <= 256
    model(ROWS, training=True)
    assert model.quantization_awareness.step == 9


@keras.saving.register_keras_serializable("test_quantization_aware")
class Own(keras.Model):
    """Its ``call`` takes no ``training``, so Keras never says it."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.first, self.second = layers.Conv2D(4, 3), layers.Dense(3)
        self.block = keras.Sequential([layers.Dense(4, "relu"), layers.Dropout(0.1)])

    def call(self, x):
        y = self.first(x)
        y = self.block(y) + y
        return self.second(keras.ops.mean(y, axis=(1, 2)))

    def train_step(self, data):
        self.batches = getattr(self, "batches", 0) + 1
        return super().train_step(data)


def test_a_subclassed_model_with_its_own_train_step_comes_back_from_a_file(tmp_path):
    model = Own()
    model.compile("sgd", "mse", jit_compile=False)
    model(X)
    assert isinstance(quantize_aware(model), Own)
    fit(model)
    assert model.batches
    # What is not training does not count.
    model.predict(X, verbose=0)
    model(X[:2])
    assert_trained(model, 8)
    assert sum(row.precision is not None for row in quantization_report(model)) == 3
    again = loaded(model, tmp_path)
    ranges = [row.output for row in quantization_report(again)]
    assert ranges == [row.output for row in quantization_report(model)]
    np.testing.assert_array_equal(again(X), model(X))
    fit(again)
    assert_trained(again, 16)


def test_nested_and_shared_layers_have_one_range_and_operations_have_theirs(tmp_path):
    keras.utils.clear_session()  # operations are named by how many there were before
    shared = layers.Dense(6, name="shared")
    block = keras.Sequential([keras.Input((6,)), layers.Dense(6, "relu", name="deep")], name="in")
    x = keras.Input((6,))
    y = block(shared(x))
    model = keras.Model(x, layers.Dense(3, name="out")(keras.ops.tanh(y * shared(y))))
    model.compile("sgd", "mse", jit_compile=False)
    fit(quantize_aware(model), data=(ROWS, Y))
    paths = sorted(row.path for row in quantization_report(model))
    assert paths == ["in/deep", "inputs", "multiply", "out", "shared", "tanh"]
    assert rows(model)["tanh"].output == (-1, 127 / 128)
    assert_trained(model, 8)
    np.testing.assert_array_equal(loaded(model, tmp_path)(ROWS), model(ROWS))
    inner = keras.Model(model.inputs, model.get_layer("shared").output)
    outer = keras.Sequential([keras.Input((6,)), inner, model])
    with pytest.raises(UserError, match=r"already, in it or in another(.|\n)*shared"):
        quantize_aware(outer)
    strip(model)
    assert "call" not in vars(shared)


def test_a_model_that_takes_whole_numbers_counts_its_steps():
    words = [layers.Embedding(9, 4, name="words"), layers.GlobalAveragePooling1D(name="mean")]
    model = compiled(keras.Input((6,), dtype="int32"), *words, layers.Dense(3, name="out"))
    data = RNG.integers(0, 9, (64, 6))
    fit(quantize_aware(model, begin_step=8), data=(data, Y))
    assert_trained(model, 8)
    in_float = model(data)
    model(data, training=True)
    assert np.abs(model(data) - in_float).max() > 0, "the warm-up never ends"


def test_each_input_has_a_row_with_its_own_range():
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    x = layers.Concatenate()([a, b])
    model = keras.Model({"a": a, "b": b}, [layers.Dense(2, name="p")(x), layers.Dense(1)(x)])
    quantize_aware(model)
    model({"a": np.full((4, 2), 1.0), "b": np.full((4, 3), -5.0)}, training=True)
    assert rows(model)["inputs/0"].output == (0.0, 1.0)
    assert rows(model)["inputs/1"].output == (-5.0, 0.0)


def test_a_column_of_categories_is_not_rounded_to_its_neighbours():
    x = keras.Input((4,))
    words = layers.Flatten()(layers.Embedding(1000, 4)(x[:, 3:]))
    model = keras.Model(x, layers.Dense(3)(layers.Concatenate()([x[:, :3], words])))
    found = rows(quantize_aware(model))["inputs"]
    assert found.output is None
    assert "indices" in found.remark


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (lambda: quantize_aware(small_model()), {}, "already"),
        (small_model, {"precision": "int2"}, '"int8" or "int4"'),
        (small_model, {"begin_step": -1}, "begin_step"),
        (small_model, {"freeze_batchnorm_step": 1.5}, "freeze_batchnorm_step"),
        (small_model, {"momentum": 1}, "momentum"),
        (small_model, {"layers": "nowhere"}, "conv, norm, relu"),
        (small_model, {"layers": "("}, "not a regular expression"),
        (lambda: keras.Sequential([layers.Dense(3)]), {}, "not built"),
    ],
)
def test_bad_input_changes_nothing(make, arguments, words):
    model = make()
    before = model.get_weights()
    with pytest.raises(UserError, match=words):
        quantize_aware(model, **arguments)
    assert_same(before, model)
