"""Exported files: each format and precision compared with the model, refused with its reason, loaded again."""

import heapq
import importlib
import json
import math
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf
from ai_edge_litert import schema_py_generated as schema
from digits import digit_net, small_digits
from keras import layers

import tfopt
from tfopt.commands.cli import main
from tfopt.compress.model_graph import Port
from tfopt.errors import UserError, require_count
from tfopt.export.formats.format import Signature
from tfopt.export.formats.litert import quantized, recipe
from tfopt.export.formats.roster import FORMATS
from tfopt.export.formats.tensorrt import TensorRt, config
from tfopt.export.litert_file import kernels
from tfopt.export.load import Served
from tfopt.export.reference import ExportData
from tfopt.subprocesses import Child, ChildEnded

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def digits():
    x, y = small_digits(1400)
    return (x[:1000], y[:1000]), (x[1000:], y[1000:])


@pytest.fixture(scope="module")
def trained(digits):
    keras.utils.set_random_seed(1)
    (x, y), _ = digits
    convolved = layers.Conv2D(8, 3, activation="relu"), layers.BatchNormalization()
    model = digit_net(*convolved, layers.Flatten(), layers.Dense(32, "gelu"), output="digit")
    model.fit(x, y, epochs=3, verbose=0)
    return model


ON_CPU = [name for name, each in FORMATS.items() if "cpu" in each.devices]
NAMES = [(name, precision) for name in ON_CPU for precision in FORMATS[name].precisions]


@pytest.fixture(scope="module")
def served(trained, digits, tmp_path_factory):
    """Every format that runs here, in every precision."""
    (x, _), test = digits
    return tfopt.export(
        trained,
        tmp_path_factory.mktemp("served"),
        formats=ON_CPU,
        precision=sorted({precision for _, precision in NAMES}),
        calibration=x,
        examples=test,
    )


def test_a_saved_model_has_each_weight_once_and_no_optimizer(served, trained):
    variables = tf.train.list_variables(str(served["saved_model"].path / "variables" / "variables"))
    assert 0 <= sum(math.prod(shape) for _, shape in variables) - trained.count_params() < 20
    assert not [name for name, _ in variables if "optimizer" in name]


@pytest.mark.parametrize(("name", "precision"), NAMES)
def test_each_file_answers_as_the_model(served, name, precision):
    assert not served.refused, served
    file = served[f"{name}_{precision}"]
    exact = {"float32": 1e-5, "float16": 3e-3}.get(precision, 0.1)
    assert file.parity.relative_error < exact
    assert file.parity.argmax_agreement > 0.95
    assert served.score == pytest.approx(file.score, abs=0.03)
    assert file.scored_by == "accuracy"
    assert file.signature.outputs == ("digit",)
    assert file.path.exists()


@pytest.mark.parametrize("name", ["litert_int8", "onnx_float32", "saved_model_float32"])
def test_a_file_is_loaded_and_answers_in_any_number(served, trained, digits, name):
    folder = served.folder / name
    run = tfopt.load(folder)
    assert isinstance(run, Served)
    x = digits[1][0][:33]
    (answers,) = run(x)
    assert answers.shape == (33, 10)
    np.testing.assert_allclose(answers, trained.predict(x, verbose=0), atol=0.1)
    (one,) = run({"image": x[:1]})
    np.testing.assert_allclose(one, answers[:1], atol=1e-5)
    with pytest.raises(UserError, match="wrong shape"):
        run(x[:, 0])


def test_the_code_of_a_file_runs_without_tfopt(served, digits):
    for name in ("litert_float32", "litert_int8", "onnx_int8", "openvino_int8", "saved_model"):
        file = served[name]
        names = {"x": digits[1][0][:1]}
        exec(file.code(), names)
        assert np.asarray(names["y"]).shape == (1, 10)
        assert "tfopt" not in file.code().replace(str(file.folder), "")
        assert file.code().startswith("# x: float32 (any, 8, 8, 1)\n")


@pytest.mark.filterwarnings("ignore:the calibration examples:RuntimeWarning")
def test_calibration_examples_on_another_scale_are_told(trained, digits):
    (x, _), _ = digits
    for rows, told in (
        (x[:300] * 3, ""),
        (x * 255, "255 times as large as the examples for 'image'"),
        (x / 255, "only 0.0039 of the examples for 'image'"),
    ):
        notes = ExportData.read(trained, rows, x, 300).scale_notes()
        assert told in "".join(notes) if told else not notes
    with pytest.warns(RuntimeWarning, match="or ranges are wrong"):
        small = tfopt.quantize(trained, calibration=100 * x[:64], examples=x, max_drop=100)
    assert "times as large as the examples for 'image'" in str(small)


def test_what_was_measured_is_beside_the_files(served):
    folder = served.folder
    facts = json.loads((folder / "openvino_int8" / "export.json").read_text())
    assert facts["inputs"][0]["name"] == "image"
    assert facts["engine"].startswith("OpenVINO 20")
    last = json.loads((folder / "export.json").read_text())
    assert {each["name"] for each in last["files"]} == {each.name for each in served.files}
    kib = {each.precision: each.kib for each in served.files if each.format == "litert"}
    assert kib["float16"] < 0.6 * kib["float32"]
    assert kib["int8"] < 0.4 * kib["float32"]
    text = str(served)
    assert "litert_int8" in text
    assert "accuracy" in text
    # Triton reads the folder of an ONNX file.
    folder = folder / "onnx_float32"
    settings = (folder / "config.pbtxt").read_text()
    assert 'name: "onnx_float32"' in settings
    assert 'name: "image", data_type: TYPE_FP32, dims: [-1, 8, 8, 1]' in settings.replace("  ", " ")
    assert not re.search(r",\s*\]", settings), "Triton's parser takes no comma before the end"
    assert (folder / "1" / "model.onnx").is_file()


def test_several_inputs_recurrent_layers_and_named_outputs(tmp_path):
    keras.utils.set_random_seed(2)
    left, right = keras.Input((6,), name="left"), keras.Input((12,), dtype="int32", name="words")
    words = layers.Bidirectional(layers.GRU(6))(layers.Embedding(50, 8)(right))
    joined = layers.Concatenate()([layers.Normalization(mean=1.0, variance=2.0)(left), words])
    heads = {"class": layers.Dense(4, "softmax")(joined), "much": layers.Dense(1)(joined)}
    model = keras.Model([left, right], heads)
    x = [RNG.normal(size=(40, 6)).astype("float32"), RNG.integers(0, 50, (40, 12)).astype("int32")]
    exported = tfopt.export(model, tmp_path, formats=ON_CPU, examples=x)
    assert not exported.refused, exported
    expected = model.predict(x, verbose=0)
    for file in exported.files:
        assert file.signature.outputs == ("class", "much")
        assert file.parity.relative_error < 1e-4, file
        said = "# x: a dict of left: float32 (any, 6), words: int32 (any, 12)\n"
        assert file.code().startswith(said)
        names = {"x": {"left": x[0][:1], "words": x[1][:1]}}
        exec(file.code(), names)
        answers = names["y"]
        if isinstance(answers, list):  # ONNX Runtime's
            answers = dict(zip(file.signature.outputs, answers, strict=True))
        for name, values in expected.items():
            np.testing.assert_allclose(answers[name], values[:1], atol=1e-4)
    first = tfopt.load(exported["onnx"].folder)(x)
    second = tfopt.load(exported["litert"].path)({"words": x[1], "left": x[0]})
    for one, other in zip(first, second, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_sequence_of_any_length_keeps_its_loop_and_litert_says_why_not(tmp_path):
    model = keras.Sequential([keras.Input((None, 3)), layers.LSTM(4), layers.Dense(2)])
    x = RNG.normal(size=(8, 7, 3)).astype("float32")
    exported = tfopt.export(model, tmp_path, formats=["onnx", "litert"], examples=x)
    assert [each.name for each in exported.files] == ["onnx_float32"]
    assert "sequences of any length" in exported.refused[0].reason
    longer = RNG.normal(size=(2, 11, 3)).astype("float32")
    (answers,) = tfopt.load(tmp_path / "onnx_float32")(longer)
    np.testing.assert_allclose(answers, model.predict(longer, verbose=0), atol=1e-5)


def test_convolutions_over_any_length_go_into_integers(tmp_path):
    words = keras.Input((None,), dtype="int32")
    x = layers.Conv1D(8, 7, strides=3, activation="relu")(layers.Embedding(50, 8)(words))
    model = keras.Model(words, layers.Dense(2)(layers.GlobalMaxPooling1D()(x)))
    x = RNG.integers(0, 50, (24, 40)).astype("int32")
    settings = {"formats": "litert", "precision": "int8"}
    exported = tfopt.export(model, tmp_path, calibration=x, **settings)
    longer = RNG.integers(0, 50, (2, 60)).astype("int32")
    (answers,) = tfopt.load(exported.files[0].folder)(longer)
    np.testing.assert_allclose(answers, model.predict(longer, verbose=0), atol=0.02)


def test_onnx_quantizes_products_alone_where_nothing_is_convolved(tmp_path):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((5, 4)), layers.LSTM(6), layers.Dense(3)])
    x = RNG.normal(size=(20, 5, 4)).astype("float32")
    exported = tfopt.export(model, tmp_path, formats="onnx", precision="int8", calibration=x)
    nodes = onnx.load(exported.files[0].path).graph.node
    gives = {name: node.op_type for node in nodes for name in node.output}
    scaled = {
        node.op_type for node in nodes for n in node.input if gives.get(n) == "DequantizeLinear"
    }
    assert "larger than in float32: scales and operators take more" in str(exported)
    assert "MatMul" in scaled
    assert not scaled & {"Mul", "Sigmoid", "Tanh"}


# Keras 3.16 says of every recurrent layer that it passes no mask on.
@pytest.mark.filterwarnings("ignore:Layer 'gru:UserWarning")
def test_a_masked_text_of_any_length_goes_into_onnx_int8(tmp_path):
    keras.utils.set_random_seed(3)
    text = [layers.Embedding(20, 4, mask_zero=True), layers.GRU(6), layers.Dense(3)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *text])
    x = RNG.integers(0, 20, (20, 7)) * (np.arange(7) < 5)
    settings = {"formats": "onnx", "precision": ["int8", "dynamic"]}
    exported = tfopt.export(model, tmp_path, calibration=x, examples=x, **settings)
    assert not exported.refused, exported
    assert exported["onnx_int8"].parity.relative_error < 0.05
    assert "convolutions" not in str(exported)


def test_blocks_of_convnext_go_into_onnx(tmp_path):
    """Grouped convolutions, and a norm beside the sum that it reads."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(4, 4, 4)(inputs)
    for _ in range(3):
        y = layers.LayerNormalization()(layers.Conv2D(4, 3, padding="same", groups=4)(x))
        x = layers.Add()([x, layers.Dense(4, activation="gelu")(y)])
        x = layers.Conv2D(4, 2, 2, padding="same")(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling2D()(x)))
    x = RNG.normal(size=(20, 16, 16, 3)).astype("float32")
    settings = {"formats": "onnx", "precision": ["float32", "int8"], "max_drop": 30}
    exported = tfopt.export(model, tmp_path, calibration=x, **settings)
    assert not exported.refused, exported
    assert exported["onnx_float32"].parity.relative_error < 1e-5


def test_a_table_goes_into_the_saved_model(tmp_path):
    look_up = layers.StringLookup(vocabulary=["a", "b"])
    text = keras.Input((1,), dtype="string", name="text")
    model = keras.Model(text, layers.Embedding(4, 2)(look_up(text)), name="words")
    x = np.array(["a", "b", "c"], dtype=object)
    for examples in (tf.constant(x[:, None]), x, tf.data.Dataset.from_tensor_slices(x).batch(2)):
        exported = tfopt.export(model, tmp_path, formats="saved_model", examples=examples)
        assert exported["saved_model"].parity.relative_error < 1e-6
    (vectors,) = tfopt.load(exported.files[0].folder)(x)  # a column of the table, as fit takes it
    np.testing.assert_allclose(vectors, model.predict(tf.constant(x[:, None]), verbose=0))


class Counting(keras.Model):
    def __init__(self):
        super().__init__()
        self.out, self.level = layers.Dense(2), keras.metrics.Mean()

    def call(self, x):
        self.level.update_state(x)
        return self.out(x)


def test_a_metric_that_call_updates_goes_into_the_saved_model(tmp_path):
    model, x = Counting(), RNG.random((4, 3)).astype("float32")
    model(x)
    exported = tfopt.export(model, tmp_path, formats="saved_model", examples=x)
    assert exported["saved_model"].parity.relative_error < 1e-6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"formats": "tflite"}, "Unknown format"),
        ({"precision": "int7"}, "Unknown precision"),
        ({"formats": "saved_model", "precision": "dynamic"}, "be written for 'saved_model'"),
        ({"formats": "onnx", "precision": ["float32", "int4"]}, "be written for 'int4'"),
        ({"precision": "int8"}, "needs calibration examples"),
        ({"max_drop": -1}, "not a number of points"),
        ({"samples": 0}, "not a count"),
        ({"examples": RNG.random((4, 3)).astype("float32")}, "wrong shape"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, change, words):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    with pytest.raises(UserError, match=words):
        tfopt.export(model, tmp_path / "out", **change)
    assert not (tmp_path / "out").exists()


def test_a_file_that_loses_too_much_is_not_left(trained, digits, tmp_path):
    (x, _), test = digits
    asked = {"formats": "litert", "precision": "int8", "calibration": x, "max_drop": 0}
    with pytest.raises(UserError, match="loses more than 0 points:") as caught:
        tfopt.export(trained, tmp_path, **asked, examples=test)
    assert "relative error" in str(caught.value)
    assert "raise max_drop" in caught.value.received
    assert not list(tmp_path.iterdir())
    # A file that is there is not lost to one that fails, and the error says that it is there.
    (tmp_path / "litert_int8").mkdir()
    with pytest.raises(UserError, match="an earlier export is still in its folder"):
        tfopt.export(trained, tmp_path, **asked)


def computing(function):
    return keras.Sequential([keras.Input((4,)), layers.Lambda(function, output_shape=(4,))])


def test_an_operator_that_onnx_or_openvino_lacks_is_named(tmp_path):
    model = computing(lambda x: tf.linalg.diag_part(tf.linalg.diag(tf.math.lgamma(x + 1))))
    exported = tfopt.export(model, tmp_path, formats=["saved_model", "onnx", "openvino"])
    assert [each.name for each in exported.files] == ["saved_model_float32"]
    of_onnx, of_openvino = (each.reason for each in exported.refused)
    assert "Lgamma" in of_onnx
    assert "saved_model supports it" in of_onnx
    assert "MatrixDiagV3" in of_openvino


def test_patches_of_a_vision_transformer_go_into_openvino(tmp_path):
    image = keras.Input((8, 8, 3))
    patches = layers.Flatten()(keras.ops.image.extract_patches(image, (4, 4)))
    model = keras.Model(image, layers.Dense(3)(patches))
    file = tfopt.export(model, tmp_path, formats="openvino").files[0]
    assert file.parity.relative_error < 1e-5


def test_int8_takes_dense_layers_on_sequences_longer_than_wide_and_says_that_a_file_grew(tmp_path):
    """A reshape behind the product, as Keras's, does not compile, or is wrong for equal sizes."""
    stack = [layers.Dense(16, "relu"), layers.Dense(20, "relu"), layers.GlobalAveragePooling1D()]
    model = keras.Sequential([keras.Input((20, 16)), *stack, layers.Dense(4)])
    x = np.random.default_rng(0).normal(size=(64, 20, 16)).astype("float32")
    exported = tfopt.export(model, tmp_path, formats="openvino", precision="int8", calibration=x)
    assert exported.files[0].parity.relative_error < 0.04
    assert "larger than in float32: scales and operators take more" in str(exported)


def test_what_calls_python_goes_into_no_file(tmp_path):
    def doubled(x):
        return tf.ensure_shape(tf.numpy_function(lambda a: 2 * a, [x], tf.float32), (None, 4))

    model = computing(doubled)
    with pytest.raises(UserError, match="no file supports Python code") as caught:
        tfopt.export(model, tmp_path / "out", formats=["saved_model", "litert", "onnx"])
    assert "PyFunc" in caught.value.received
    assert "saved_model supports it" not in caught.value.received
    assert caught.value.fix is None
    assert not (tmp_path / "out").exists()


def test_a_package_that_is_missing_names_its_extra(monkeypatch, tmp_path):
    monkeypatch.setattr(TensorRt, "packages", {"no_such_module": "tensorrt"})
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)])
    with pytest.raises(UserError, match=r"pip install 'tfopt\[tensorrt\]'"):
        tfopt.export(model, tmp_path, formats="tensorrt")


def test_a_child_that_dies_is_replaced():
    with Child() as child:
        assert child(os.getpid) != os.getpid()
        with pytest.raises(ChildEnded, match="killed by SIGSEGV"):
            child(os.kill, child(os.getpid), signal.SIGSEGV)
        with pytest.raises(ChildEnded, match="may have run out of memory"):
            child(os.kill, child(os.getpid), signal.SIGKILL)
        assert child(max, 1, 2) == 2
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            child(divmod, 1, 0)
        with pytest.raises(ChildEnded, match="no answer within 0 s"):
            child(signal.pause, limit_s=0.2)
        with pytest.raises(UserError, match="scale is not a count"):
            child(require_count, "scale", 0)
        assert list(child.each(heapq.merge, [1, 3], [2])) == [1, 2, 3]


def test_what_a_child_leaves_in_the_temporary_folder_is_gone_with_it():
    with Child() as child:
        before = Path(child(tempfile.mkdtemp))
        with pytest.raises(ChildEnded, match="killed by SIGSEGV"):
            child(os.kill, child(os.getpid), signal.SIGSEGV)
        left = Path(child(tempfile.mkdtemp))
        assert left.exists()
        assert not before.exists()
    assert not left.exists()
    assert left.parents[1] == Path(tempfile.gettempdir())


def test_a_file_that_cannot_be_loaded_is_refused(served, tmp_path):
    with pytest.raises(UserError, match="not a folder of an export"):
        tfopt.load(tmp_path)
    (tmp_path / "text.keras").write_text("no zip")
    with pytest.raises(UserError, match=r"does not exist.(.|\n)*did you mean .*text.keras\?"):
        tfopt.load(tmp_path / "test.keras")
    with pytest.raises(UserError, match=r"or a damaged one(.|\n)*load_model\(path\)"):
        tfopt.load(tmp_path / "text.keras")
    for name in ("onnx_float32", "litert_int8", "openvino_float32"):
        whole = served[name]
        shutil.copytree(whole.folder, tmp_path / name)
        cut = tmp_path / name / whole.path.relative_to(whole.folder)
        cut.write_bytes(cut.read_bytes()[:200])
        with pytest.raises(UserError, match=r"cannot be opened|not a LiteRT file"):
            tfopt.load(tmp_path / name)


def test_a_full_disk_is_one_error_and_leaves_nothing(trained, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    x = RNG.random((8, 8, 8, 1)).astype("float32")
    with pytest.raises(UserError, match=r"No space left on device|could not be written"):
        tfopt.export(trained, tmp_path / "out", formats="litert", precision="int8", calibration=x)
    assert not (tmp_path / "out").exists()


def test_int4_in_blocks_where_a_kernel_divides(served):
    content = served["litert_float32"].path.read_bytes()
    blocks = [each for each in recipe("int4", content) if "BLOCKWISE_32" in str(each)]
    # Of 288 and 32 inputs, both.
    assert len(blocks) == 2
    made = schema.ModelT.InitFromPackedBuf(served["litert_int4"].path.read_bytes())
    tensors = made.subgraphs[0].tensors
    assert sum(t.quantization is not None and t.quantization.detailsType == 2 for t in tensors) == 2


@pytest.mark.filterwarnings("ignore:Warning. Enabling:UserWarning")
def test_the_steps_of_a_loop_share_their_kernels(tmp_path):
    model = keras.Sequential([keras.Input((6, 16)), layers.LSTM(32), layers.Dense(2)])
    x = RNG.normal(size=(8, 6, 16)).astype("float32")
    content = tfopt.export(model, tmp_path, formats="litert").files[0].path.read_bytes()
    found = kernels(content, ["FULLY_CONNECTED"])
    shapes = sorted((each.shape, len(each.gives)) for each in found)
    assert shapes == [((2, 32), 1), ((128, 16), 6), ((128, 32), 5)]
    feeds = [{"input": x[n : n + 1]} for n in range(8)]
    large = [each for each in found if each.size > 1000]
    recipes = (recipe("int8", content, four_bits=four_bits) for four_bits in ((), large))
    whole, mixed = (len(quantized(content, each, feeds)) for each in recipes)
    assert mixed < whole - sum(each.size for each in large) / 3


def test_tables_that_are_looked_up_have_eight_bits_without_examples(tmp_path):
    wide = keras.initializers.RandomNormal(stddev=1.0)
    words, others = (keras.Input((8,), dtype="int32", name=name) for name in ("words", "others"))
    embedding = layers.Embedding(2000, 32, embeddings_initializer=wide)
    pooled = [layers.GlobalAveragePooling1D()(embedding(each)) for each in (words, others)]
    tied = layers.Embedding(500, 32)
    hidden = layers.GlobalAveragePooling1D()(tied(words))
    scores = keras.ops.matmul(hidden, keras.ops.transpose(tied.embeddings))
    model = keras.Model([words, others], [layers.Dense(3)(layers.Concatenate()(pooled)), scores])
    x = [RNG.integers(0, 500, (16, 8)).astype("int32") for _ in range(2)]
    kinds = ["float32", "float16", "dynamic", "weight_only", "int4"]
    settings = {"formats": "litert", "precision": kinds, "max_drop": 30}
    exported = tfopt.export(model, tmp_path, examples=x, **settings)
    kib = {each.precision: each.kib for each in exported.files}
    # The table that a product takes as well stays as it is.
    for kind in ("dynamic", "weight_only", "int4"):
        assert kib[kind] < kib["float32"] - 0.6 * 2000 * 32 * 4 / 1024
    assert exported["litert_dynamic"].parity.relative_error < 0.02
    assert "its operator takes float weights only" in exported["litert_float16"].notes[0]


def test_tensorrt_is_given_an_onnx_file_and_its_batches(monkeypatch, served, tmp_path):
    """Without a GPU up to the door of polygraphy, whose names are checked where it is installed."""
    with pytest.raises(UserError, match="NVIDIA GPU"):
        TensorRt().open(tmp_path, served["onnx_float32"].signature, 1)
    polygraphy = pytest.importorskip("polygraphy.backend.trt")
    settings = config(served["onnx_float32"].signature)
    assert isinstance(settings, polygraphy.CreateConfig)


def test_code_takes_inputs_of_any_name():
    ports = (Port("class", (), "int32"), Port("model", (None, 3), "float32", 2))
    signature = Signature(ports, ("output",))
    assert signature.comment() == ("# x: a dict of class: int32 (any), model: float32 (2, any, 3)")
    for given in (signature, Signature(ports[:1], ("output",))):
        for each in FORMATS.values():
            compile(each.code("file", given), "code", "exec")


def test_the_parts_of_data_are_calibrated_and_compared_on():
    x, y = RNG.normal(size=(8, 4)).astype("float32"), np.arange(8) % 3
    data = tfopt.Data(train=(x + 1, y), test=(x, y))
    small = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    given = ExportData.read(small, data, data, 8)
    np.testing.assert_array_equal(given.calibration[0], x + 1)
    np.testing.assert_array_equal(given.examples[0], x)
    np.testing.assert_array_equal(given.labels, y)
    two = keras.Input((4,))
    heads = keras.Model(two, [layers.Dense(3)(two), layers.Dense(1)(two)])
    unscored = ExportData.read(heads, None, (x, [y, y]), 8)
    assert unscored.labels is None
    assert "labels of several outputs" in unscored.notes[0]
    with pytest.raises(UserError, match="labels are not numbers"):
        ExportData.read(small, None, (x[:2], np.array(["a", "b"])), 8)
    with pytest.raises(UserError, match="no test part"):
        ExportData.read(small, None, tfopt.Data(train=(x, y)), 8)


def test_targets_that_only_the_loss_compares_are_no_score_and_no_refusal(tmp_path):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])  # as a loss of three quantiles
    model.compile("adam", lambda y, outputs: keras.ops.mean(keras.ops.abs(y - outputs)))
    x = RNG.normal(size=(8, 4)).astype("float32")
    exported = tfopt.export(model, tmp_path, formats="saved_model", examples=(x, x[:, :1]))
    assert exported.score is None
    note = "no score: targets of shape (8, 1) for outputs of shape (8, 3)"
    assert exported.notes == (note,)
    model.compile("adam", "sparse_categorical_crossentropy")
    with pytest.raises(UserError, match="labels do not fit"):
        tfopt.export(model, tmp_path, formats="saved_model", examples=(x, x[:, :1]))


MODULE = """
import keras, numpy as np, tfopt


@keras.saving.register_keras_serializable("tests")
class Doubled(keras.layers.Layer):
    def call(self, x):
        return 2 * x


def data():
    x = np.linspace(-1, 1, 32).reshape(8, 4).astype("float32")
    return tfopt.Data(train=(x, np.arange(8) % 3), test=(x, np.arange(8) % 3))
"""


def test_the_command_imports_the_module_of_its_data_before_the_model(tmp_path, monkeypatch, capsys):
    """Each format is written in those of the precisions that it has."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "doubled_layer.py").write_text(MODULE)
    doubled = importlib.import_module("doubled_layer").Doubled()
    keras.Sequential([keras.Input((4,)), doubled, layers.Dense(3)]).save("model.keras")

    def forget():
        keras.saving.get_custom_objects().pop("tests>Doubled", None)
        sys.modules.pop("doubled_layer", None)

    forget()
    # Keras itself would find the class by its module's name.
    call = ["export", "model.keras", "--formats", "saved_model,litert"]
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
    assert main([*call, "--output", "none"]) == 2
    assert "--examples my.module:function" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
    call += ["--calibration", "doubled_layer:data", "--examples", "doubled_layer:data"]
    code = main([*call, "--precision", "float32,int8", "--output", f"{tmp_path}/made", "--json"])
    forget()
    said = capsys.readouterr()
    assert code == 0, said.err
    files = {each["precision"]: each for each in json.loads(said.out)["files"]}
    assert files["int8"]["kib"] > 0
    assert "accuracy" in (tmp_path / "made" / "export.json").read_text()
    folders = {each.name for each in tmp_path.glob("made/*/")}
    assert folders == {"saved_model_float32", "litert_float32", "litert_int8"}
