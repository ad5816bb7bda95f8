"""Sizes and latencies of models and of the files that serve them, one beside the other."""

import gzip

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt.errors import UserError
from tfopt.export.model_footprint import against, compared_served, footprint
from tfopt.export.serving import served_by
from tfopt.job.parts import Artefact
from tfopt.report.footprints import flops_in_words, serving_table

X = np.random.default_rng(0).random((40, 8, 8, 1), dtype="float32")


def net(width=64):
    keras.utils.set_random_seed(0)
    convolved = [keras.Input((8, 8, 1)), layers.Conv2D(4, 3, use_bias=False), layers.Flatten()]
    return keras.Sequential([*convolved, layers.Dense(width, "relu"), layers.Dense(10)])


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    pruned = tfopt.strip(tfopt.prune(net(), 0.8))
    path = tmp_path_factory.mktemp("files") / "m.tflite"
    int8 = tfopt.quantize(pruned, path, calibration=X)
    models = {"plain": net(), "pruned": pruned, "int8": int8, "file": path, "wide": net(2048)}
    return footprint(models, turns=5), int8


# TensorFlow 2.18 asks an empty array for its truth when it reads which kernels are sparse.
@pytest.mark.filterwarnings("ignore:The truth value of an empty array:DeprecationWarning")
def test_sizes_are_those_of_files(found):
    rows = {row.name: row for row in found[0].rows}
    assert rows["int8"].kib == rows["file"].kib == len(found[1].content) / 1024
    assert rows["int8"].gzip_kib == len(gzip.compress(found[1].content, mtime=0)) / 1024
    assert rows["plain"].kib == pytest.approx(rows["pruned"].kib, rel=0.01)
    assert rows["pruned"].gzip_kib < 0.5 * rows["plain"].gzip_kib
    assert rows["pruned"].sparse_kib < 0.6 * rows["pruned"].kib
    assert rows["plain"].sparse_kib is None
    assert rows["int8"].parameters is None


def test_zeros_and_arithmetic_are_counted(found):
    rows = {row.name: row for row in found[0].rows}
    kernels = 9 * 4 + 144 * 64 + 640
    assert rows["plain"].parameters == kernels + 64 + 10
    assert rows["pruned"].zeros >= 0.79 * kernels
    products = 2 * (6 * 6 * 9 * 4 + 144 * 64 + 640)
    assert rows["plain"].gflop_per_example == pytest.approx(products / 1e9, rel=0.1)
    report = tfopt.compress.channels_report(net(), 0.5)
    assert report.flops_before == products < rows["plain"].gflop_per_example * 1e9
    assert f"{products:,} FLOPs of products with kernels become" in str(report)
    # Zeros are multiplied like other weights.
    assert rows["pruned"].gflop_per_example == rows["plain"].gflop_per_example


def test_latencies_are_against_the_first_row(found):
    plain, *others = found[0].rows
    assert plain.latency is None
    assert all(row.latency.low <= row.latency.ratio <= row.latency.high for row in others)
    wide = others[-1]
    # Sixty times the arithmetic.
    assert wide.latency.low > 1.5
    text = str(found[0])
    assert "LiteRT" in text
    assert text.splitlines()[5].endswith(" slower")
    assert "int8: a file in int8\n" in text + "\n"
    assert text.count("not counted") == 2  # weights and arithmetic, each once


@pytest.mark.parametrize(
    ("gflop", "words"), [(2.5, "2.5 G"), (0.0016384, "1.64 M"), (1.57e-05, "15.7 k"), (4e-7, "400")]
)
def test_arithmetic_has_units_that_fit(gflop, words):
    assert flops_in_words(gflop) == words


def test_turns_that_other_work_took_do_not_move_the_ratio():
    quiet, slow = [[1.0, 1.1, 1.0]] * 40, [[1.0, 1.1, 1.0]] * 34 + [[9.0, 9.0]] * 6
    seen = against(quiet, slow)
    assert seen.ratio == 1.0
    assert 0.998 < seen.low < 1 < seen.high < 1.002
    assert seen.processes == 13


def test_a_model_with_open_sizes_or_a_fixed_batch_has_a_note():
    image, x = keras.Input((None, None, 3)), keras.Input((4,), batch_size=8)
    models = {
        "open": keras.Model(image, layers.Conv2D(2, 1)(image)),
        "closed": net(),
        "fixed": keras.Model(x, layers.Dense(2)(x)),
    }
    before = models["closed"].get_weights()
    found = footprint(models, turns=5)
    open_row, closed, fixed = found.rows
    assert open_row.latency_ms is None
    assert any("have an unknown size" in note for note in open_row.notes)
    assert open_row.kib > 1
    assert closed.latency_ms > 0
    # The first, which all are compared with, has none.
    assert closed.latency is None
    assert "n/a [1]" in str(found).splitlines()[1]
    assert fixed.notes == ("its batch is fixed: the latency is that of 8 examples",)
    for one, other in zip(before, models["closed"].get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def of_text():
    words = layers.TextVectorization(output_sequence_length=3)
    words.adapt(["a b", "c"])
    return keras.Sequential([keras.Input((), dtype="string"), words, layers.Embedding(9, 4)])


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (lambda: {}, "must be a dict of models"),
        (lambda: {"it": "missing.tflite"}, "cannot be measured"),
        (lambda: {1: "missing.tflite"}, "must be a dict of models"),
        (lambda: {"it": keras.Sequential([layers.Dense(2)])}, "not built"),
        # Their figures would mislead.
        (
            lambda: {"it": tfopt.quantize_aware(net())},
            "call tfopt.strip.model. first|call tfopt.strip.model., and",
        ),
        (lambda: {"it": of_text()}, "has a lookup table"),
    ],
)
def test_what_cannot_be_measured_is_refused(models, words, tmp_path):
    path = tmp_path / "bad.tflite"
    path.write_bytes(b"junk" * 50)
    with pytest.raises(UserError, match=r"(?s)'b' cannot be measured.*bad\.tflite, which LiteRT"):
        footprint({"b": path}, turns=5)
    with pytest.raises(UserError, match=words):
        footprint(models(), turns=5)


def test_the_last_litert_file_is_what_serves():
    model = net()
    made = Artefact("m.tflite", tfopt.quantize(model, precision="dynamic").content)
    found = served_by(model, [Artefact("a.tflite", b"earlier"), made, Artefact("c.keras", b"x")])
    assert found.content == made.content
    assert found.parameters == model.count_params()
    assert found.gflop > 0


class Python(layers.Layer):
    """Runs in this process, which no file can hold."""

    def call(self, x):
        return tf.ensure_shape(tf.py_function(lambda y: 2 * y, [x], tf.float32), (None, 6))


def test_a_model_without_a_usable_file_has_its_reason_and_the_others_are_compared():
    file = served_by(net(), ())
    odd = served_by(keras.Sequential([keras.Input((6,)), Python(), layers.Dense(3)]), ())
    junk = served_by(net(), [Artefact("m.tflite", b"junk" * 100)])
    found = compared_served({"plain": file, "odd": odd, "junk": junk, "small": file})
    assert [row.name for row in found.rows] == ["plain", "small"]
    assert found.rows[1].latency is not None
    assert found.missing == (f"odd: {odd}", f"junk: {junk}")
    assert junk == "This is not a LiteRT file."
    with pytest.raises(UserError, match="No row has a file") as raised:
        compared_served({"odd": odd})
    assert raised.value.received == f"odd: {odd}"
    # Without the first one's file there are no ratios.
    found = compared_served({"baseline": odd, "+ Prune": file, "+ Quantize": file})
    assert not found.compared
    assert [row.latency for row in found.rows] == [None, None]
    assert all(row.latency_ms > 0 for row in found.rows)
    assert found.missing[-1] == "no comparison with baseline, which has no file"
    for row in serving_table(found, None).rows:
        assert [cell.detail for cell in row.cells[2:]] == [""] * 4
