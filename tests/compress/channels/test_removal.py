"""remove_channels and channels_report: what is chosen, what is refused, what stays with a reason."""

import re

import keras
import numpy as np
import pytest
from dense_nets import assert_same, kernel_layers
from keras import layers
from masked_twin import difference, masked_twin

import tfopt
from tfopt.compress.remove_channels import ChannelOptions, channels_report, remove_channels
from tfopt.errors import UserError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 8, 8, 3)).astype("float32")
Y = RNG.integers(0, 4, size=48)


def small_cnn(**compile_arguments):
    convolved = [
        layers.Conv2D(32, 3, activation="relu", name="first"),
        layers.BatchNormalization(name="norm"),
        layers.Conv2D(64, 3, activation="relu", name="second"),
    ]
    dense = layers.Dense(40, "relu", name="hidden"), layers.Dense(4, name="out")
    parts = [keras.Input((8, 8, 3)), *convolved, layers.GlobalAveragePooling2D(), *dense]
    model = keras.Sequential(parts, name="cnn")
    if compile_arguments:
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(loss=loss, metrics=["accuracy"], jit_compile=False, **compile_arguments)
    return model


def widths(model):
    return {layer.name: layer.kernel.shape[-1] for layer in kernel_layers(model)}


def test_the_model_is_new_plain_and_compiled_alike():
    model = small_cnn(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    model.fit(X, Y, verbose=0)
    small = remove_channels(model)
    # Relative to the largest output: float32 sums of other lengths, which may round alike.
    assert 0 <= difference(small, masked_twin(model)) < 1e-5
    assert widths(model) == {"first": 32, "second": 64, "hidden": 40, "out": 4}
    assert widths(small) == {"first": 16, "second": 32, "hidden": 24, "out": 4}
    assert "tfopt" not in small.to_json()
    assert float(small.optimizer.momentum) == 0.9
    assert int(small.optimizer.iterations) == 0 != int(model.optimizer.iterations)
    first = small.evaluate(X, Y, verbose=0)[0]
    small.fit(X, Y, batch_size=8, epochs=3, verbose=0)
    assert small.evaluate(X, Y, verbose=0)[0] < first
    assert not remove_channels(small_cnn()).compiled


def test_the_smallest_filters_go():
    model = small_cnn()
    kernel, bias = model.get_layer("first").get_weights()
    weak = [3, 4, 10, 11, 12, 17, 20, 31]
    kernel[..., weak] *= 1e-3
    model.get_layer("first").set_weights([kernel, bias])
    taking = model.get_layer("second").get_weights()
    taking[0][:, :, weak] *= 1e-3
    model.get_layer("second").set_weights(taking)
    small = remove_channels(model, 0.25, layers="first")
    left = np.delete(kernel, weak, axis=-1)
    np.testing.assert_array_equal(small.get_layer("first").get_weights()[0], left)


def test_the_score_by_batch_normalization_looks_at_its_scale():
    model = small_cnn()
    weak = np.arange(0, 32, 2)
    gamma = np.ones(32)
    gamma[weak] = -0.01
    norm = model.get_layer("norm")
    norm.set_weights([gamma, *norm.get_weights()[1:]])
    small = remove_channels(model, 0.5, score="batchnorm", layers="first")
    np.testing.assert_array_equal(small.get_layer("norm").get_weights()[0], np.ones(16))


def test_the_score_by_taylor_keeps_what_the_loss_depends_on():
    import tensorflow as tf

    model = small_cnn(optimizer="sgd")
    useless = np.arange(0, 40, 2)
    kernel, _ = model.get_layer("out").get_weights()
    # What comes in is positive, so all units are switched on, but for those with a large offset.
    hidden, offset = map(np.abs, model.get_layer("hidden").get_weights())
    hidden[:, useless] *= 10
    offset[useless] = -1e4
    model.get_layer("hidden").set_weights([hidden, offset])
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    options = ChannelOptions(multiple=1)
    settings = {"layers": "hidden", "options": options}
    small = remove_channels(model, 0.5, score="taylor", data=data, **settings)
    kept = np.delete(kernel, useless, axis=0)
    np.testing.assert_array_equal(small.get_layer("out").get_weights()[0], kept)
    by_norm = remove_channels(model, 0.5, **settings)
    assert not np.array_equal(by_norm.get_layer("out").get_weights()[0], kept)
    np.testing.assert_allclose(small.predict(X, verbose=0), model.predict(X, verbose=0), atol=1e-5)


def test_the_score_by_taylor_takes_what_fit_takes():
    one, two = keras.Input((4,)), keras.Input((3,))
    hidden = layers.Dense(32, "relu")(layers.Concatenate()([one, two]))
    model = keras.Model([one, two], layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    x, y = [RNG.normal(size=(40, n)) for n in (4, 3)], RNG.normal(size=(40, 1))
    small = remove_channels(model, score="taylor", data=(x, y, np.ones(40)))
    assert small.layers[-2].units == 16


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (X, "cannot be computed on data="),
        ((X, Y[:5]), "x has 48, y has 5"),
        ((X[:, :3], Y), "cannot be computed on data="),
        ((np.full_like(X, np.nan), Y), "no finite gradients"),
        ((batch for batch in [(X, Y)]), "read only once"),
    ],
)
def test_data_without_a_loss_is_refused(data, words):
    with pytest.raises(UserError, match=words):
        remove_channels(small_cnn(optimizer="sgd"), score="taylor", data=data)


@pytest.mark.parametrize(("target", "ranking"), [("parameters", "global"), ("flops", "layer")])
def test_a_target_is_met_and_not_missed_by_far(target, ranking):
    model = small_cnn()
    settings = {"target": target, "options": ChannelOptions(ranking, multiple=1)}
    report = channels_report(model, 0.6, **settings)
    small = remove_channels(model, 0.6, **settings)
    assert small.count_params() == report.parameters_after
    left = {
        "parameters": report.parameters_after / report.parameters_before,
        "flops": report.flops_after / report.flops_before,
    }
    assert 0.3 < left[target] <= 0.4
    small = remove_channels(model, 0.5, target=lambda m: float(m.get_layer("first").filters))
    assert small.get_layer("first").filters == 16


def test_layers_that_are_not_followed_are_named_and_their_work_is_not_guessed():
    class Block(layers.Layer):
        def __init__(self):
            super().__init__(name="block")
            self.wide, self.back = layers.Dense(32), layers.Dense(8)

        def call(self, x):
            return x + self.back(self.wide(x))

    inputs = keras.Input((8,))
    hidden = layers.Dense(16, "relu", name="hidden")(Block()(inputs))
    model = keras.Model(inputs, layers.Dense(2)(hidden))
    report = channels_report(model, 0.5)
    assert list(report.unfollowed) == ["block"]
    printed = str(report)
    assert re.search("left whole: block.*unsupported type", printed)
    assert "FLOPs of products with kernels become 160, without those of block" in printed
    with pytest.raises(UserError, match=r"(?s)FLOPs of .* are unknown.*block"):
        remove_channels(model, 0.5, target="flops")


def test_layers_are_chosen_and_the_report_says_who_was_not():
    by_type = (layers.Conv2D, layers.Embedding)
    for choice in ("second", lambda layer: layer.name == "second", layers.Conv2D, by_type):
        report = channels_report(small_cnn(), 0.5, layers=choice)
        rows = {group.layers[0]: group for group in report.groups}
        assert rows["second"].after == 32
        assert rows["hidden"].after == 40
        assert "not chosen" in rows["hidden"].remark


def test_widths_are_multiples_where_there_is_room():
    hidden = (layers.Dense(width, "relu") for width in (100, 20, 12, 3, 1, 24))
    model = keras.Sequential([keras.Input((4,)), *hidden, layers.Dense(2)])
    report = channels_report(model, 0.5)
    assert [group.after for group in report.groups] == [48, 8, 6, 2, 16, 2]
    assert all(group.after for group in channels_report(model, 0.99).groups)
    rows = {group.layers[0]: group for group in channels_report(small_cnn(), 0.1).groups}
    assert (rows["second"].after, rows["second"].remark) == (56, None)
    assert rows["first"].after == 32
    assert "rounds to 0 (multiples of 8)" in rows["first"].remark
    # A layer of one unit is in no group, having nothing to choose from.
    assert [len(group.layers) for group in report.groups] == [1] * 6


class MyDense(layers.Dense):
    """A user's class under a Keras base: its call may do anything."""

    def call(self, x):
        return super().call(x)[..., ::-1]


def test_word_vectors_lose_their_columns_and_a_file_of_it_loads(tmp_path):
    vectors = RNG.normal(size=(9, 16))
    words = keras.Input((None,), dtype="int32")
    of_words = keras.initializers.Constant(vectors)
    x = layers.Embedding(9, 16, of_words, trainable=False, name="words")(words)
    model = keras.Model(words, layers.Dense(2)(layers.GlobalMaxPooling1D()(x)))
    model.get_layer("words").set_weights([vectors])
    small = remove_channels(model, 0.5)
    left = small.get_layer("words").get_weights()[0]
    assert left.shape == (9, 8)
    assert all(any(np.allclose(column, each) for each in vectors.T) for column in left.T)
    assert not small.get_layer("words").trainable
    small.save(tmp_path / "small.keras")
    keras.models.load_model(tmp_path / "small.keras")
    assert channels_report(tmp_path / "small.keras").parameters_before == small.count_params()


STAYING = {
    "an output": (None, "output of the model"),
    "softmax": (lambda x: layers.Softmax()(x), "mixes channels"),
    "a norm": (lambda x: layers.LayerNormalization()(x), "statistics over channels"),
    "own dense": (lambda x: MyDense(16)(x), "unsupported type: MyDense"),
    "slice": (lambda x: x[..., :8], "indexes channels"),
    "split": (lambda x: keras.ops.split(x, 2, axis=-1)[1], "unsupported type: Split"),
    "constant": (lambda x: x * np.ones(16, "float32"), "constants per channel"),
    "input": (lambda x: x + x.source, "channels that are kept"),
    "own function": (
        lambda x: layers.Activation(lambda t: keras.ops.tanh(t))(x),
        "ends in <lambda>, which mixes channels or may do so",
    ),
}


@pytest.mark.parametrize("kind", STAYING)
def test_what_depends_on_all_channels_keeps_them_and_says_so(kind):
    then, words = STAYING[kind]
    inputs = keras.Input((16,))
    wide = layers.Dense(32, "relu", name="wide")(inputs)
    kept = layers.Dense(16, name="kept")(wide)
    kept.source = inputs
    model = keras.Model(inputs, kept if then is None else layers.Dense(3)(then(kept)))
    small, report = remove_channels(model, 0.5), channels_report(model, 0.5)
    rows = {group.layers[0]: group for group in report.groups}
    assert rows["kept"].after == rows["kept"].before == 16
    assert words in rows["kept"].remark
    assert (rows["wide"].after, rows["wide"].remark) == (16, None)
    assert difference(small, masked_twin(model)) <= 1e-5


def test_mixed_precision_keeps_its_policy_and_the_scale_of_its_loss():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = small_cnn(optimizer="adam")
    finally:
        keras.config.set_dtype_policy("float32")
    small = remove_channels(model, 0.5)
    assert small.layers[0].compute_dtype == "float16"
    assert isinstance(small.optimizer, keras.optimizers.LossScaleOptimizer)


def test_a_model_of_open_sizes_loses_channels_and_has_no_flops():
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(32, 3, activation="relu")(inputs)
    x = layers.Concatenate(axis=1)([x, layers.Conv2D(32, 3)(inputs)])
    model = keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
    small, report = remove_channels(model, 0.5), channels_report(model, 0.5)
    assert difference(small, model) > 0
    assert difference(small, masked_twin(model)) <= 1e-5
    assert report.flops_before is None
    with pytest.raises(UserError, match=r"(?s)FLOPs of .* are unknown.*None, None, 3"):
        remove_channels(model, 0.5, target="flops")


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.out = layers.Dense(2)

    def call(self, x):
        return self.out(x)


def subclassed():
    model = Subclassed()
    model(X[:1])
    return model


def aware_inside():
    inner = tfopt.quantize_aware(small_cnn())
    return keras.Sequential([keras.Input((8, 8, 3)), inner, layers.Dense(2)])


@pytest.mark.parametrize(
    ("make", "settings", "words"),
    [
        (small_cnn, {"fraction": 0}, "0 < fraction < 1"),
        (small_cnn, {"fraction": 50}, r"Invalid fraction(.|\n)*such as 0\.5 for 50 %"),
        (small_cnn, {"target": "size"}, "Unknown target"),
        (small_cnn, {"score": "best"}, '"taylor"|taylor'),
        (small_cnn, {"score": "taylor"}, "needs data="),
        (small_cnn, {"data": (X, Y)}, "needs data="),
        (small_cnn, {"score": "taylor", "data": (X, Y)}, "needs a compiled model"),
        (small_cnn, {"options": 5}, "options must be a ChannelOptions"),
        (small_cnn, {"layers": "nowhere"}, "correct layers="),
        (small_cnn, {"layers": "("}, "not a regular expression"),
        (small_cnn, {"layers": ()}, "does not choose layers"),
        (small_cnn, {"layers": layers.Dense(1)}, "does not choose layers"),
        (small_cnn, {"target": "parameters", "fraction": 0.999}, "use a smaller fraction"),
        (small_cnn, {"fraction": 0.05}, "every width rounds to itself"),
        (small_cnn, {"target": lambda m: float("nan")}, "is not a number"),
        (lambda: keras.Sequential([keras.Input((4,)), layers.Dense(8)]), {}, "no channel to"),
        (subclassed, {}, "Subclassed, a subclassed model"),
        (lambda: tfopt.prune(small_cnn(), 0.5), {}, "tfopt.strip"),
        (aware_inside, {}, "cnn, quantization-aware\n  fix: .*tfopt.strip"),
        (lambda: keras.Sequential([layers.Dense(3)]), {}, "not built"),
    ],
)
def test_bad_input_changes_nothing(make, settings, words):
    model = make()
    before = model.get_weights()
    with pytest.raises(UserError, match=words):
        remove_channels(model, **settings)
    assert_same(before, model)
