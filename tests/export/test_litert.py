"""LiteRT files: what is inside them, how close they are, and what is refused."""

import io
import logging
import os
import sys
import tempfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from digits import digit_net, small_digits
from keras import layers

import tfopt
from tfopt import UserError
from tfopt.compress.quantize_aware import quantize_aware
from tfopt.export.litert_file import LitertPredictor, kernels
from tfopt.export.quantize import quantize
from tfopt.export.quiet import quiet

RNG = np.random.default_rng(0)
IMAGES = RNG.random((40, 12, 12, 3)).astype("float32")


def small_cnn():
    keras.utils.set_random_seed(0)
    convolved = layers.Conv2D(32, 3, use_bias=False), layers.BatchNormalization(), layers.ReLU()
    dense = layers.Flatten(), layers.Dense(64, "relu"), layers.Dense(10, "softmax")
    parts = [keras.Input((12, 12, 3)), *convolved, layers.MaxPooling2D(), *dense]
    return keras.Sequential(parts)


def many_ports():
    keras.utils.set_random_seed(0)
    image = keras.Input((12, 12, 3), name="zeta")
    plain = keras.Input((4,), name="alpha")
    ids = keras.Input((5,), dtype="int32", name="ids")
    h = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3, activation="relu")(image))
    h = layers.Concatenate()([h, plain, layers.Flatten()(layers.Embedding(9, 3)(ids))])
    outputs = [layers.Dense(5, "softmax", name="which")(h), layers.Dense(1, name="amount")(h)]
    return keras.Model([image, plain, ids], outputs)


PORTS = [IMAGES, RNG.random((40, 4)).astype("float32"), RNG.integers(0, 9, (40, 5)).astype("int32")]


@pytest.fixture(scope="module")
def digits():
    """A trained net, and the examples it has not seen."""
    x, y = small_digits(3000)
    keras.utils.set_random_seed(0)
    hidden = layers.Conv2D(16, 3, activation="relu"), layers.Flatten(), layers.Dense(32, "relu")
    model = digit_net(*hidden)
    model.fit(x[:2400], y[:2400], epochs=8, verbose=0)
    return model, x[:2400], x[2400:], y[2400:]


def tensor_types(content):
    """The tensors' types read by the interpreter: independent of the code under test."""
    interpreter = Interpreter(model_content=content)
    return [np.dtype(d["dtype"]).name for d in interpreter.get_tensor_details()]


def op_codes(content):
    model = schema.Model.GetRootAs(content, 0)
    names = {v: k for k, v in vars(schema.BuiltinOperator).items() if isinstance(v, int)}
    graph = model.Subgraphs(0)
    return [
        names[model.OperatorCodes(graph.Operators(i).OpcodeIndex()).BuiltinCode()]
        for i in range(graph.OperatorsLength())
    ]


def test_int8_is_integer_all_through():
    made = quantize(small_cnn(), calibration=IMAGES, integer_io=True)
    assert "float32" not in tensor_types(made.content)
    assert not {"QUANTIZE", "DEQUANTIZE"} & set(op_codes(made.content))
    assert made.parity.examples == 40
    assert made.parity.relative_error < 0.05
    # A float border is the default, and then the only float.
    made = quantize(small_cnn(), calibration=IMAGES)
    assert made.fully_integer
    assert made.left_float == ()
    codes = op_codes(made.content)
    assert (codes[0], codes[-1]) == ("QUANTIZE", "DEQUANTIZE")
    assert {"QUANTIZE", "DEQUANTIZE"}.isdisjoint(codes[1:-1])


def test_convolutions_over_sequences_or_with_gaps_leave_the_integers_at_the_ends_alone():
    x = keras.Input((16, 6))
    h = layers.Conv1D(8, 2, padding="causal", dilation_rate=2, activation="tanh")(x)
    h = layers.DepthwiseConv1D(3, padding="same", dilation_rate=2)(layers.MaxPooling1D(2)(h))
    h = layers.Conv2D(4, 3, padding="same", dilation_rate=2)(layers.Reshape((4, 4, 4))(h))
    h = layers.SeparableConv2D(4, 3, padding="same", dilation_rate=2)(h)
    made = quantize(keras.Model(x, h), calibration=RNG.normal(size=(32, 16, 6)))
    codes = op_codes(made.content)
    assert codes.count("QUANTIZE") == codes.count("DEQUANTIZE") == 1
    assert {"EXPAND_DIMS", "SPACE_TO_BATCH_ND"}.isdisjoint(codes)
    assert made.parity.relative_error < 0.1


def test_a_decoder_of_leaky_layers_and_a_largest_value_are_computed_with_integers():
    x = keras.Input((8, 8, 2))
    h = layers.LeakyReLU(0.3)(layers.Conv2D(4, 3, strides=2, padding="same")(x))
    h = layers.Conv2D(4, 3, padding="same")(layers.UpSampling2D((2, 3))(h))
    row = layers.UpSampling1D(2)(layers.Reshape((12, 32))(h))
    h = layers.Concatenate()([layers.GlobalMaxPooling2D()(h), layers.GlobalMaxPooling1D()(row)])
    examples = RNG.normal(size=(32, 8, 8, 2))
    made = quantize(keras.Model(x, h), calibration=examples)
    assert made.fully_integer
    assert op_codes(made.content).count("DEQUANTIZE") == 1  # at the end
    assert made.parity.relative_error < 0.05
    plain = quantize(keras.Model(x, h), precision="float32", examples=examples)
    assert plain.parity.relative_error < 1e-5
    assert plain.notes == ()


def test_a_decoder_of_several_levels_has_a_float_file():
    """Sizes that are read at run time are none for the padding of a later convolution."""
    h = x = keras.Input((4, 4, 2))
    for filters in (4, 3, 2):
        larger = layers.UpSampling2D(2)(h)
        h = layers.Conv2DTranspose(filters, 3, padding="same")(layers.ReLU()(h))
        h = layers.UpSampling2D(2)(layers.BatchNormalization()(h))
        h = layers.add([h, layers.Conv2D(filters, 1, padding="same")(larger)])
    model = keras.Model(x, layers.Conv2D(3, 3)(h))
    made = quantize(model, precision="float32", examples=RNG.normal(size=(8, 4, 4, 2)))
    assert made.parity.relative_error < 1e-5


def test_a_split_with_a_part_that_nobody_takes_is_computed_with_integers():
    x = keras.Input((6, 4))
    first, *_, last = keras.ops.split(layers.Conv1D(8, 2, activation="relu")(x), 4, axis=-1)
    made = quantize(keras.Model(x, first - last), calibration=RNG.normal(size=(32, 6, 4)))
    assert made.fully_integer
    assert "KiB of it are names, operators and scales" in str(made)
    assert made.parity.relative_error < 0.05


def test_an_operator_left_in_float_is_reported():
    x = keras.Input((12, 6))
    h = keras.ops.sin(layers.MultiHeadAttention(2, 4, name="attention")(x, x))
    model = keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling1D()(h)))
    made = quantize(model, calibration=RNG.random((32, 12, 6)))
    assert not made.fully_integer
    assert [row.kind for row in made.left_float] == ["SIN"]
    assert made.left_float[0].name.endswith("Sin")
    assert made.parity.relative_error < 0.1


def test_several_inputs_and_outputs_keep_their_names_and_order():
    model = many_ports()
    made = quantize(model, calibration=PORTS, integer_io=True)
    names = [port.name for port in made.ports.inputs]
    assert names == ["zeta", "alpha", "ids"]
    assert made.outputs == ("which", "amount")
    assert made.fully_integer
    expected = model.predict(PORTS, verbose=0)
    by_name = dict(zip(names, PORTS, strict=True))
    for given in (PORTS, by_name):
        got = made.predict(given)
        assert [a.shape for a in got] == [(40, 5), (40, 1)]
        for e, g in zip(expected, got, strict=True):
            np.testing.assert_allclose(g, e, atol=0.05)
    assert np.mean(got[0].argmax(-1) == expected[0].argmax(-1)) > 0.9
    with pytest.raises(UserError, match=r"do not match the inputs[\s\S]*zeta, alpha, ids"):
        made.predict(PORTS[:2])
    with pytest.raises(UserError, match="needs a model with one output"):
        made.accuracy(PORTS, np.zeros(40))


@pytest.mark.parametrize(
    ("loss", "measure"),
    [
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True, name="mine"), "argmax"),
        (keras.losses.MeanSquaredError(name="no_categorical_crossentropy"), "relative"),
    ],
)
def test_whether_outputs_rank_classes_is_read_off_the_loss_whatever_it_is_called(loss, measure):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    model.compile("sgd", loss)
    made = quantize(model, precision="float16", calibration=ROWS)
    assert made.parity.measure.startswith(measure)


def test_a_fixed_batch_is_honoured():
    x = keras.Input(batch_shape=(4, 6))
    model = keras.Model(x, layers.Dense(3)(x))
    data = RNG.random((10, 6)).astype("float32")
    made = quantize(model, calibration=data)
    assert made.parity.examples == 10
    np.testing.assert_allclose(made.predict(data)[0], data @ model.get_weights()[0], atol=0.05)


def test_int8_keeps_the_accuracy_of_a_trained_net(digits, tmp_path):
    model, x_train, x, y = digits
    weights = model.get_weights()
    path = tmp_path / "digits.tflite"
    made = quantize(model, path, calibration=x_train, max_drop=2)
    expected = model.evaluate(x, y, verbose=0)[1]
    assert expected > 0.9
    assert abs(made.accuracy(x, y) - expected) < 0.01
    assert made.accuracy(x, np.eye(10)[y]) == made.accuracy(x, y)
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(50)
    assert made.accuracy(dataset) == made.accuracy((x, y.tolist())) == made.accuracy(x, y)
    for given in ((dataset.repeat(),), (dataset, y), (dataset.take(0),), (x,)):
        with pytest.raises(UserError, match=r"endless|takes the labels|yields nothing|no labels"):
            made.accuracy(*given)
    assert made.parity.measure == "argmax_agreement"
    assert made.path == path
    assert path.read_bytes() == made.content
    assert os.listdir(tmp_path) == ["digits.tflite"]
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_recurrent_layers_are_unrolled_and_said_so():
    x = keras.Input((5, 3))
    model = keras.Model(x, layers.Dense(2)(layers.Bidirectional(layers.LSTM(3))(x)))
    made = quantize(model, calibration=RNG.normal(size=(32, 5, 3)))
    assert made.fully_integer
    assert made.notes[0].endswith(": unrolled for files that need a graph without loops")
    assert made.parity.relative_error < 0.1
    assert not any(getattr(part, "unroll", False) for part in model._flatten_layers())


class Towers(keras.Model):
    def __init__(self):
        super().__init__()
        self.user, self.item = layers.Dense(4), layers.Dense(4)

    def call(self, x):
        (item,) = keras.tree.flatten(x["item"])
        return self.user(x["user"]) - self.item(item)


def test_a_subclassed_model_needs_examples_and_its_file_takes_their_structure():
    model = Towers()
    x = {"user": RNG.random((16, 4)), "item": [RNG.random((16, 3))]}
    model(keras.tree.map_structure(lambda rows: rows[:1], x))
    made = quantize(model, calibration=x)
    got = made.predict(x)[0]
    np.testing.assert_allclose(got, model.predict(x, verbose=0), atol=0.05)
    by_name = {"input": x["item"][0], "input_1": x["user"]}
    for given in (by_name, [x["item"][0], x["user"]]):
        np.testing.assert_array_equal(made.predict(given)[0], got)
    with pytest.raises(UserError, match=r"The inputs of .* are unknown"):
        quantize(model, precision="dynamic")


class Holder(keras.Model):
    def __init__(self, net, **kwargs):
        super().__init__(**kwargs)
        self.net = net

    def call(self, x):
        return self.net(x)

    def get_config(self):
        return {"net": keras.saving.serialize_keras_object(self.net)}

    @classmethod
    def from_config(cls, config):
        return cls(keras.saving.deserialize_keras_object(config["net"]))


def test_a_subclassed_model_is_rebuilt_in_float32_for_its_file():
    model = Holder(dense())
    model(ROWS)
    made = quantize(tfopt.mixed_precision(model, "mixed_bfloat16"), calibration=ROWS)
    assert "another precision" in str(made)
    np.testing.assert_allclose(made.predict(ROWS)[0], model.predict(ROWS, verbose=0), atol=0.05)


def test_inputs_of_a_subclassed_model_are_named_as_in_its_dict(tmp_path):
    model = Towers()
    x = {part: RNG.random((16, 3)).astype("float32") for part in ("user", "item")}
    expected = np.asarray(model(x))
    folder = tfopt.export(model, tmp_path, formats="litert", examples=x).files[0].folder
    np.testing.assert_allclose(tfopt.load(folder)(x)[0], expected, atol=1e-5)


def test_conversion_says_nothing_and_loses_nothing(capfd):
    quantize(dense(), calibration=ROWS)
    assert capfd.readouterr().err == ""
    with quiet():
        os.write(2, b"from elsewhere\nI0000 00:00:1 1 progress\n")
    assert capfd.readouterr().err == "from elsewhere\n"

    def stopped_by(error, line):
        with quiet():
            os.write(2, line)
            raise error

    with pytest.raises(KeyboardInterrupt):
        stopped_by(KeyboardInterrupt(), b"from another thread\n")
    assert capfd.readouterr().err == "from another thread\n"
    with pytest.raises(ValueError, match="mine") as caught:
        stopped_by(ValueError("mine"), b"the cause\n")
    assert caught.value.__notes__ == ["the cause\n"]
    assert capfd.readouterr().err == ""


def test_a_logger_made_meanwhile_still_writes_afterwards(capfd):
    with quiet():
        handler = logging.StreamHandler()
    handler.emit(logging.makeLogRecord({"msg": "later"}))
    assert capfd.readouterr().err == "later\n"


def test_what_goes_to_a_notebooks_standard_error_is_filtered_too(capfd, monkeypatch):
    notebook = io.StringIO()
    monkeypatch.setattr(sys, "stderr", notebook)
    with quiet():
        sys.stderr.write("Running Calibration:: 32%\rsomething else\n")
    assert (notebook.getvalue(), capfd.readouterr().err) == ("", "something else\n")


def lookup_like():
    inverse = layers.Lambda(lambda v: keras.ops.erfinv(v * 0.1))
    return keras.Sequential([keras.Input((4,)), inverse])


def dense():
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax")])


def not_finite():
    model = dense()
    model.layers[0].bias.assign([0, np.nan, 0])
    return model


def quantized():
    model = dense()
    model.layers[0].quantize("int8")
    return model


def keras2():
    tf_keras = pytest.importorskip("tf_keras")
    return tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(4,))])


ROWS = RNG.random((16, 4)).astype("float32")


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lookup_like, {}, "no kernel for Erfinv"),
        (not_finite, {}, "NaN or infinite"),
        (quantized, {}, "quantized already"),
        (lambda: quantize_aware(dense()), {}, r"tfopt\.strip\(model\) first"),
        (keras2, {}, "must be a Keras 3 model"),
        (dense, {"precision": "int7"}, "float32, float16, int8"),
        (dense, {"precision": "dynamic", "integer_io": True}, "integer_io"),
        (dense, {"integer_io": np.array([1, 2])}, "integer_io=True needs precision"),
        (dense, {"calibration": None}, "needs calibration examples for its ranges"),
        (dense, {"calibration": ROWS[:, :3]}, r"batches of shape \(n, 4\)"),
        (dense, {"calibration": ROWS[:0]}, "yields nothing"),
        (many_ports, {"calibration": PORTS[:2]}, "do not match the inputs"),
        (dense, {"calibration": ROWS * np.nan}, "the first at example 0"),
    ],
)
def test_bad_input_is_refused_and_leaves_nothing(make, arguments, message, tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    target = tmp_path / "out" / "model.tflite"
    target.parent.mkdir()
    target.write_bytes(b"an earlier model")
    with pytest.raises(UserError, match=message):
        quantize(make(), target, **{"calibration": ROWS, **arguments})
    # TensorFlow writes a function that it sees for the first time, and takes it away at its end.
    left = [name for name in os.listdir(scratch) if not name.startswith("__autograph_generated")]
    assert left == []
    assert os.listdir(target.parent) == ["model.tflite"]
    assert target.read_bytes() == b"an earlier model"


def test_a_numpy_number_that_makes_a_model_compute_in_float64_is_refused():
    x = keras.Input((6,))
    scores = layers.Dense(8)(x) / np.sqrt(8)
    model = keras.Model(x, keras.ops.softmax(scores))
    assert model.outputs[0].dtype == "float64"
    words = r"(?s)computes in float64.*RealDiv.*float\(np\.sqrt\(8\)\)"
    with pytest.raises(UserError, match=words):
        quantize(model, calibration=np.ones((16, 6), "float32"))


def test_bad_paths_are_refused_before_the_work(tmp_path):
    (tmp_path / "folder.tflite").mkdir()
    for name, message in (
        ("model.h5", "ends in .tflite"),
        ("none/model.tflite", "does not exist"),
        ("folder.tflite", "a folder"),
    ):
        with pytest.raises(UserError, match=message):
            quantize(None, tmp_path / name, calibration=ROWS)
    assert os.listdir(tmp_path) == ["folder.tflite"]


def test_bad_files_and_labels_are_refused():
    made = quantize(dense(), precision="float16")
    with pytest.raises(UserError, match="not a LiteRT file"):
        LitertPredictor(b"nonsense")
    with pytest.raises(UserError, match="wrong shape for input"):
        made.predict(ROWS[:, :2])
    for labels in (np.full(16, 0.5), np.full(16, 3), np.full(16, -1)):
        with pytest.raises(UserError, match="labels do not fit"):
            made.accuracy(ROWS, labels)


def test_a_single_output_of_logits_is_right_on_the_label_s_side_of_zero(tmp_path):
    model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    model.set_weights([np.ones((1, 1)), np.full(1, -0.5)])
    x = RNG.random((40, 1))
    labels = x[:, 0] > 0.5  # all scores are below 0.5
    for logits, expected in ((True, 1), (False, 1 - labels.mean())):
        model.compile(loss=keras.losses.BinaryCrossentropy(from_logits=logits))
        made = quantize(model, precision="float16")
        file = tfopt.export(model, tmp_path, formats="litert", examples=(x, labels)).files[0]
        assert made.accuracy(x, labels) == pytest.approx(expected)
        assert file.score == pytest.approx(expected)


def test_operators_are_named_by_the_layer_that_they_are_of():
    keras.backend.clear_session()
    small, large = layers.Conv2D(16, 3), layers.Conv2D(16, 3)
    body = keras.Sequential([keras.Input((12, 12, 1)), small, large, layers.Flatten()])
    model = keras.Sequential([keras.Input((12, 12, 1)), body, layers.Dense(10)])
    assert (small.name, large.name) == ("conv2d", "conv2d_1")
    content = quantize(model, precision="float32").content
    first, second = (each.gives[0] for each in kernels(content, ["CONV_2D"]))
    assert f"{model.name}/{body.name}/conv2d/" in first
    assert f"{model.name}/{body.name}/conv2d_1/" in second


TEXT = np.array([["good movie"], ["bad movie"]] * 8)


def test_strings_are_refused_with_a_way_round_that_leads_to_a_file():
    lookup = layers.TextVectorization(max_tokens=20, output_sequence_length=4, name="lookup")
    lookup.adapt(TEXT)
    text = keras.Input((1,), dtype="string", name="text")
    words = layers.Embedding(20, 8)(lookup(text))
    model = keras.Model(text, layers.Dense(2)(layers.GlobalAveragePooling1D()(words)))
    for asked in (
        quantize_aware,
        lambda model: quantize(model, calibration=TEXT),
        lambda model: quantize(model, precision="dynamic"),
    ):
        with pytest.raises(UserError, match=r"takes strings: text[\s\S]*after its lookup layers"):
            asked(model)
    assert not hasattr(model, "quantization_awareness")
    text = keras.ops.convert_to_tensor(TEXT)
    rows = lookup(text)
    made = quantize(keras.Model(lookup.output, model.output), calibration=rows)
    np.testing.assert_allclose(made.predict(rows)[0], model(text), atol=0.01)
