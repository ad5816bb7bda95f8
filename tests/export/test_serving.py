"""What variants would serve: files left by their processes, compared in one more."""

import keras
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt import UserError
from tfopt.export.model_footprint import compared_folders
from tfopt.export.serving import leave, trained_file
from tfopt.job.parts import Artefact
from tfopt.report.serving import serving_table


def net(width=64, **settings):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(width, **settings), layers.Dense(3, **settings)]
    )


@pytest.fixture(scope="module")
def file():
    return trained_file("", net(), ())


@pytest.fixture(scope="module")
def made():
    """What a transform made of the model."""
    return Artefact("m.tflite", tfopt.quantize(net(), precision="dynamic").content)


def compared(folder, *names):
    """Compare the files that were left under these names."""
    return compared_folders({name: folder / name for name in names})


def test_the_last_litert_file_is_what_serves(made):
    model = net()
    artefacts = [Artefact("a.tflite", b"earlier"), made, Artefact("c.keras", b"x")]
    found = trained_file("m", model, artefacts)
    assert found.content == made.content
    assert found.parameters == model.count_params()
    assert found.gflop > 0


class Python(layers.Layer):
    """Runs in this process, which no file can hold."""

    def call(self, x):
        return tf.ensure_shape(tf.py_function(lambda y: 2 * y, [x], tf.float32), (None, 6))


def test_a_row_without_a_usable_file_has_its_reason_and_the_others_are_compared(tmp_path, file):
    damaged = {
        "cut facts": ("facts.json", b'{"notes": ['),
        "no facts": ("facts.json", b"{}"),
        "junk": ("model.tflite", b"junk" * 100),
    }
    for name in ("plain", "small", *damaged):
        file.write(tmp_path / name)
    for name, (part, content) in damaged.items():
        (tmp_path / name / part).write_bytes(content)
    leave(tmp_path / "odd", keras.Sequential([keras.Input((6,)), Python(), layers.Dense(3)]), ())
    found = compared(tmp_path, "plain", *damaged, "odd", "never", "small")
    assert [row.name for row in found.rows] == ["plain", "small"]
    assert found.rows[1].latency is not None
    assert [text.split(":")[0] for text in found.missing] == [*damaged, "odd", "never"]
    for name, text in zip(damaged, found.missing, strict=False):
        assert text.startswith(f"{name}: its file cannot be used: ")
    assert "never: the process ended while its file was written" in found.missing
    with pytest.raises(UserError, match="No row has a file") as raised:
        compared(tmp_path, "odd")
    assert raised.value.received == found.missing[3]


def test_without_the_first_rows_file_there_are_no_ratios(tmp_path, file):
    for name in ("+ Prune", "+ Quantize"):
        file.write(tmp_path / name)
    found = compared(tmp_path, "baseline", "+ Prune", "+ Quantize")
    assert not found.compared
    assert [row.latency for row in found.rows] == [None, None]
    assert all(row.latency_ms > 0 for row in found.rows)
    assert "no comparison with baseline, which has no file" in found.missing
    for row in serving_table(found, None).rows:
        assert [cell.detail for cell in row.cells[2:]] == [""] * 4
