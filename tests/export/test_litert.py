"""LiteRT files: what is inside them, how close they are, and what is refused."""

import os
import tempfile

import keras
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter
from digits import small_digits
from keras import layers

from tfopt import UserError
from tfopt.compress.integers import tracing
from tfopt.export import litert
from tfopt.export.litert_file import LitertPredictor
from tfopt.export.quantize import quantize
from tfopt.export.quiet import quiet

RNG = np.random.default_rng(0)
IMAGES = RNG.random((40, 12, 12, 3)).astype("float32")


def small_cnn():
    return keras.Sequential(
        [
            keras.Input((12, 12, 3)),
            layers.Conv2D(32, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, "relu"),
            layers.Dense(10, "softmax"),
        ]
    )


def residual_depthwise():
    x = keras.Input((12, 12, 3))
    h = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    for _ in range(2):
        branch = layers.DepthwiseConv2D(3, padding="same", activation="relu6")(h)
        branch = layers.Conv2D(8, 1)(branch)
        h = layers.Add()([h, branch])
    return keras.Model(x, layers.Dense(5, "softmax")(layers.GlobalAveragePooling2D()(h)))


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
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(32, "relu"),
            layers.Dense(10, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
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


@pytest.mark.parametrize("make", [small_cnn, residual_depthwise])
def test_int8_is_integer_all_through(make):
    made = quantize(make(), representative=IMAGES, integer_io=True)
    assert "float32" not in tensor_types(made.content)
    assert not {"QUANTIZE", "DEQUANTIZE"} & set(op_codes(made.content))
    assert made.fully_integer
    assert made.left_float == ()
    assert made.parity.examples == 40
    assert made.parity.relative_error < 0.05
    assert sum(made.ops.values()) == len(op_codes(made.content))


def test_float_border_is_the_default_and_the_only_float():
    made = quantize(small_cnn(), representative=IMAGES)
    assert tensor_types(made.content).count("float32") == 2
    codes = op_codes(made.content)
    assert (codes[0], codes[-1]) == ("QUANTIZE", "DEQUANTIZE")
    assert {"QUANTIZE", "DEQUANTIZE"}.isdisjoint(codes[1:-1])
    assert made.fully_integer


def test_an_operator_left_in_float_is_reported():
    x = keras.Input((12, 6))
    h = keras.ops.sin(layers.MultiHeadAttention(2, 4, name="attention")(x, x))
    model = keras.Model(x, layers.Dense(3)(layers.GlobalAveragePooling1D()(h)))
    made = quantize(model, representative=RNG.random((32, 12, 6)))
    assert not made.fully_integer
    assert [row.kind for row in made.left_float] == ["SIN"]
    assert made.left_float[0].name.endswith("Sin")
    assert made.parity.relative_error < 0.1


def test_sizes_follow_the_mode():
    model = keras.Sequential([keras.Input((256,)), layers.Dense(256, "relu"), layers.Dense(128)])
    x = RNG.random((8, 256))
    size = {m: quantize(model, representative=x, mode=m) for m in ("int8", "dynamic", "float16")}
    for mode, share in (("int8", 4), ("dynamic", 4), ("float16", 2)):
        assert size[mode].kib == pytest.approx(size[mode].float_kib / share, rel=0.08, abs=3)
    assert size["float16"].parity.relative_error < 1e-3
    assert size["dynamic"].left_float == size["float16"].left_float == ()


def test_small_weights_that_dynamic_leaves_are_reported():
    made = quantize(small_cnn(), mode="dynamic")
    assert made.parity is None
    assert {"weight [32, 3, 3, 3]", "weight [10, 64]"} == {row.kind for row in made.left_float}
    assert all("under 1024" in row.reason for row in made.left_float)


@pytest.mark.slow
def test_a_whole_application_model_is_integer_and_close():
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2(weights=None, input_shape=(32, 32, 3), classes=7)
    x = RNG.random((8, 32, 32, 3))
    made = quantize(model, representative=x)
    assert made.fully_integer
    assert made.kib < made.float_kib / 2.5
    assert made.parity.relative_error < 0.05


@pytest.mark.parametrize("integer_io", [False, True])
def test_several_inputs_and_outputs_keep_their_names_and_order(integer_io):
    model = many_ports()
    made = quantize(model, representative=PORTS, integer_io=integer_io)
    assert made.inputs == ("zeta", "alpha", "ids")
    assert made.outputs == ("which", "amount")
    assert made.fully_integer
    expected = model.predict(PORTS, verbose=0)
    by_name = dict(zip(made.inputs, PORTS, strict=True))
    for given in (PORTS, by_name):
        got = made.predict(given)
        assert [a.shape for a in got] == [(40, 5), (40, 1)]
        for e, g in zip(expected, got, strict=True):
            np.testing.assert_allclose(g, e, atol=0.05)
    assert np.mean(got[0].argmax(-1) == expected[0].argmax(-1)) > 0.9
    with pytest.raises(UserError, match="a dict with alpha, ids, zeta"):
        LitertPredictor(made.content)(PORTS)


def test_what_was_made_measures_its_accuracy():
    made = quantize(many_ports(), representative=PORTS)
    with pytest.raises(UserError, match="several outputs"):
        made.accuracy(PORTS, np.zeros(40))
    model = small_cnn()
    x = RNG.random((48, 12, 12, 3)).astype("float32")
    right = model.predict(x, verbose=0).argmax(-1)
    made = quantize(model, mode="float16", representative=x)
    assert made.accuracy(x, right) > 0.9
    assert made.accuracy(x, (right + 1) % 10) < 0.1


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
    made = quantize(model, mode="float16", representative=ROWS)
    assert made.parity.measure.startswith(measure)


def test_labels_outside_the_classes_are_refused():
    made = quantize(dense(), mode="float16")
    for labels in (np.full(16, 3), np.full(16, -1), [0.0] * 15 + [7.0]):
        with pytest.raises(UserError, match="classes from 0 to 2"):
            made.accuracy(ROWS, labels)


def test_any_number_of_examples_goes_through_in_order():
    model = small_cnn()
    made = quantize(model, mode="float16")
    x = RNG.random((131, 12, 12, 3)).astype("float32")
    expected = model.predict(x, verbose=0)
    predictor = LitertPredictor(made.content)
    for count in (1, 64, 131):
        np.testing.assert_allclose(predictor(x[:count])[0], expected[:count], atol=5e-3)


def test_a_fixed_batch_is_honoured():
    x = keras.Input(batch_shape=(4, 6))
    model = keras.Model(x, layers.Dense(3)(x))
    data = RNG.random((10, 6)).astype("float32")
    made = quantize(model, representative=data)
    assert made.parity.examples == 10
    np.testing.assert_allclose(made.predict(data)[0], data @ model.get_weights()[0], atol=0.05)


def test_int8_keeps_the_accuracy_of_a_trained_net(digits, tmp_path):
    model, x_train, x, y = digits
    weights = model.get_weights()
    path = tmp_path / "digits.tflite"
    made = quantize(model, path, representative=x_train, tolerance=0.02)
    expected = model.evaluate(x, y, verbose=0)[1]
    assert expected > 0.9
    assert abs(made.accuracy(x, y) - expected) < 0.01
    assert made.accuracy(x, np.eye(10)[y]) == made.accuracy(x, y)
    assert made.parity.measure == "argmax_agreement"
    assert made.path == path
    assert path.read_bytes() == made.content
    assert os.listdir(tmp_path) == ["digits.tflite"]
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_examples_of_another_scale_than_that_of_the_training_are_doubted(digits):
    """The file agrees with the model on them, and knows nothing of the right ones."""
    model, x_train, x, y = digits
    pixels = np.round(x_train * 255)
    made = quantize(model, representative=pixels.astype("uint8"))
    assert made.parity.argmax_agreement > 0.95
    assert made.accuracy(x, y) < 0.5
    assert "whole numbers up to 255, like pixels before they are scaled" in str(made)
    # Where nothing is computed in the ranges of the examples, their scale changes no file.
    assert "pixels" not in str(quantize(model, mode="dynamic", representative=pixels))


def test_pixels_are_right_for_a_model_that_scales_them(digits):
    model, x_train, x, y = digits
    scaling = keras.Sequential([keras.Input((8, 8, 1)), layers.Rescaling(1 / 255), model])
    made = quantize(scaling, representative=np.round(x_train * 255))
    assert made.accuracy(x * 255, y) > 0.85
    assert "pixels" not in str(made)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("softmax", "are the examples scaled as those of the training?"),
        ("tanh", "of their size: do not trust the file"),
    ],
)
def test_a_file_that_is_far_off_is_doubted(end, words):
    """One example's width of range rounds away what tells the others apart."""
    x = RNG.normal(size=(64, 4)).astype("float32")
    x[0] = 1e3
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3), layers.Activation(end)])
    assert words in str(quantize(model, representative=x))
    assert words not in str(quantize(model, representative=x[1:]))


def test_a_tolerance_that_is_missed_leaves_no_file(tmp_path):
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    x = RNG.normal(size=(32, 6))
    with pytest.raises(UserError, match="too far from its float self"):
        quantize(model, tmp_path / "a.tflite", representative=x, tolerance=1e-4)
    assert os.listdir(tmp_path) == []


def test_recurrent_layers_are_unrolled_and_said_so():
    x = keras.Input((5, 3))
    model = keras.Model(x, layers.Dense(2)(layers.Bidirectional(layers.LSTM(3))(x)))
    made = quantize(model, representative=RNG.normal(size=(32, 5, 3)))
    assert made.fully_integer
    assert "unrolled" in made.notes[0]
    assert made.parity.relative_error < 0.1
    assert not any(getattr(part, "unroll", False) for part in model._flatten_layers())


def test_mixed_precision_is_converted_in_float32():
    policy = keras.DTypePolicy("mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(16, "relu", dtype=policy),
            layers.Dense(4, "softmax", dtype="float32"),
        ]
    )
    # Enough that one class turned over by rounding is within the tolerance.
    x = np.random.default_rng(0).normal(size=(256, 6))
    for mode in ("int8", "dynamic"):
        made = quantize(model, representative=x, mode=mode)
        assert "float16" not in tensor_types(made.content)
        assert made.parity.relative_error < 0.05
    assert model.layers[0].compute_dtype == "float16"


def test_a_subclassed_model_needs_examples_and_no_config():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(3)

        def call(self, x):
            return self.dense(x)

    model = Own()
    model(np.zeros((1, 4), "float32"))
    assert quantize(model, representative=RNG.random((16, 4))).fully_integer
    with pytest.raises(UserError, match="does not say what its inputs look like"):
        quantize(model, mode="dynamic")


def test_what_was_made_takes_the_inputs_in_the_structure_of_the_models_call():
    class Towers(keras.Model):
        def __init__(self):
            super().__init__()
            self.user, self.item = layers.Dense(4), layers.Dense(4)

        def call(self, x):
            return self.user(x["user"]) * self.item(x["items"][0])

    model = Towers()
    x = {"user": RNG.random((16, 4)), "items": [RNG.random((16, 3))]}
    model({"user": x["user"][:1], "items": [x["items"][0][:1]]})
    made = quantize(model, representative=x)
    got = made.predict(x)[0]
    np.testing.assert_allclose(got, model.predict(x, verbose=0), atol=0.05)
    by_name = {"input": x["items"][0], "input_1": x["user"]}
    for given in (by_name, [x["items"][0], x["user"]]):
        np.testing.assert_array_equal(made.predict(given)[0], got)


def test_mirrored_variables_are_gathered(fresh_python):
    said = fresh_python("""
        import keras, numpy as np, tensorflow as tf
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        from tfopt.export.quantize import quantize
        # Of a net that has learned nothing two classes may be as good as equal.
        keras.utils.set_random_seed(0)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        x = np.random.default_rng(0).random((32, 6)).astype("float32")
        with strategy.scope():
            model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4, "softmax")])
            model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(x, np.arange(32) % 4, verbose=0)
        for scope in (strategy.scope, tf.init_scope):
            with scope():
                made = quantize(model, representative=x)
                assert made.fully_integer and made.parity.relative_error < 0.05, made
                assert "one device" in made.notes[0]
        print("right")
    """)
    assert said.endswith("right\n")


def test_conversion_says_nothing_and_loses_nothing(capfd):
    quantize(dense(), representative=ROWS)
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


@pytest.mark.slow
def test_a_program_without_a_standard_error_converts_too(fresh_python):
    printed = fresh_python("""
        import sys
        import keras, numpy as np
        from tfopt.export.quantize import quantize
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
        sys.stderr = None
        print(quantize(model, representative=np.ones((4, 6))).mode)
    """)
    assert printed == "int8\n"


class Loop(layers.Layer):
    def call(self, x):
        return keras.ops.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 1.1), (0, x))[1]


def lookup_like():
    x = keras.Input((4,))
    return keras.Model(x, layers.Lambda(lambda v: keras.ops.erfinv(v * 0.1))(x))


def looping():
    x = keras.Input((4,))
    return keras.Model(x, layers.Dense(2)(Loop()(x)))


def test_what_another_form_may_mend_is_tried_again(monkeypatch):
    plain, shapes = litert.convert, []

    def refused_at_first(*arguments, **settings):
        shapes.append(getattr(tracing._state, "while_running", False))
        if len(shapes) == 1:
            raise litert.RefusedByConverter("The model could not be converted.")
        return plain(*arguments, **settings)

    monkeypatch.setattr(litert, "convert", refused_at_first)
    assert quantize(dense(), representative=ROWS).fully_integer
    assert shapes == [False, True]


def any_length():
    x = keras.Input((None, 4))
    return keras.Model(x, layers.LSTM(2)(x))


def dense():
    return keras.Sequential([keras.Input((4,)), layers.Dense(3, "softmax")])


def unbuilt():
    return keras.Sequential([layers.Dense(3)])


def not_finite():
    model = dense()
    model.set_weights([w * np.nan for w in model.get_weights()])
    return model


def not_finite_bfloat16():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, dtype="bfloat16")])
    model.layers[0].bias.assign([0, np.nan, 0])
    return model


def quantized():
    model = dense()
    model.quantize("int8", filters=lambda layer: bool(layer.weights))
    return model


def keras2():
    import tf_keras

    return tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(4,))])


ROWS = RNG.random((16, 4)).astype("float32")


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (lookup_like, {}, "no kernel for Erfinv"),
        (looping, {}, "holds a loop"),
        (any_length, {"representative": RNG.random((8, 5, 4))}, "sequences of any length"),
        (unbuilt, {}, "not built"),
        (not_finite, {}, "NaN or infinite"),
        (not_finite_bfloat16, {}, "NaN or infinite"),
        (quantized, {}, "quantized already"),
        (keras2, {}, "needs a Keras 3 model"),
        (dense, {"mode": "int16"}, "int8 . dynamic . float16"),
        (dense, {"samples": 0}, "samples is not a count"),
        (dense, {"tolerance": 1.5}, "tolerance is not a share"),
        (dense, {"mode": "dynamic", "integer_io": True}, "integer_io"),
        (dense, {"mode": "dynamic", "representative": None, "tolerance": 0.1}, "needs examples"),
        (dense, {"representative": None}, "needs examples to set the ranges"),
        (dense, {"representative": ROWS[:, :3]}, r"batches of shape \(n, 4\)"),
        (dense, {"representative": ROWS[:0]}, "examples are empty"),
        (many_ports, {"representative": PORTS[:2]}, "one part for each input"),
        (dense, {"representative": ROWS * np.nan}, "the first at example 0"),
        (dense, {"representative": np.full((4, 4), "a")}, "not numbers"),
        (dense, {"representative": (r for r in [ROWS])}, "read only once"),
        (dense, {"representative": lambda: iter(())}, "examples are empty"),
        (dense, {"representative": lambda: iter(ROWS)}, "must be batched"),
        (dense, {"representative": 7}, "cannot be read"),
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
        quantize(make(), target, **{"representative": ROWS, **arguments})
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
    with pytest.raises(
        UserError, match=r"(?s)computes in float64.*RealDiv.*float\(np\.sqrt\(8\)\)"
    ):
        quantize(model, representative=np.ones((16, 6), "float32"))


def test_bad_paths_are_refused_before_the_work(tmp_path):
    (tmp_path / "folder.tflite").mkdir()
    for name, message in (
        ("model.h5", "ends in .tflite"),
        ("none/model.tflite", "does not exist"),
        ("folder.tflite", "a folder"),
    ):
        with pytest.raises(UserError, match=message):
            quantize(None, tmp_path / name, representative=ROWS)
    assert os.listdir(tmp_path) == ["folder.tflite"]


@pytest.mark.slow
def test_a_full_temporary_folder_is_named(fresh_python):
    said = fresh_python("""
        import os, resource, tempfile
        import keras
        from tfopt import UserError
        from tfopt.export.quantize import quantize
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64)])
        with tempfile.TemporaryDirectory() as folder:
            tempfile.tempdir = folder
            # The kernel answers a write past this limit as it does on a full disk.
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
            try:
                quantize(model, folder + "/model.tflite", mode="dynamic")
            except UserError as error:
                print(error)
            # TensorFlow keeps generated code of its own there while the process lives, which
            # Python may have compiled.
            own = ("__autograph_generated_file", "__pycache__")
            print([name for name in os.listdir(folder) if not name.startswith(own)])
    """)
    assert said.startswith("The temporary copy that the conversion needs could not be written.")
    assert "TMPDIR" in said
    assert said.endswith("[]\n")


def test_bad_files_and_labels_are_refused():
    made = quantize(dense(), mode="float16")
    with pytest.raises(UserError, match="not a LiteRT file"):
        LitertPredictor(b"nonsense")
    with pytest.raises(UserError, match="cannot be read"):
        LitertPredictor("missing.tflite")
    with pytest.raises(UserError, match="wrong shape for input"):
        made.predict(ROWS[:, :2])
    with pytest.raises(UserError, match="labels do not fit"):
        made.accuracy(ROWS, np.full(16, 0.5))
