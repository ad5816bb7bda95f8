"""What trained models would serve: their files, or the reasons without one, compared."""

import keras
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt import UserError
from tfopt.export.model_footprint import compared_served
from tfopt.export.serving import served_by
from tfopt.job.parts import Artefact
from tfopt.report.footprints import serving_table


def net(width=64, **settings):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(width, **settings), layers.Dense(3, **settings)]
    )


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
