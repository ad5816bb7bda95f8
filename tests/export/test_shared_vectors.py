"""Files in which equal vectors are stored once answer as the files that they were."""

import keras
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from keras import layers

import tfopt
from tfopt.export import litert as conversion
from tfopt.export.formats import litert as quantization
from tfopt.export.litert_file import LitertPredictor
from tfopt.export.shared_vectors import with_shared_vectors

IMAGES = np.random.default_rng(0).random((32, 8, 8, 4), dtype="float32")


# Of more than 256 KiB of tensors the quantizer stores them after the flatbuffer.
@pytest.mark.parametrize("units", [64, 4096])
def test_the_file_answers_the_same_and_is_smaller(monkeypatch, units):
    for module in (conversion, quantization):
        monkeypatch.setattr(module, "with_shared_vectors", lambda content, schema_of: content)
    x = y = keras.Input((8, 8, 4))
    for _ in range(3):
        y = layers.Conv2D(64, 1, activation="relu")(layers.DepthwiseConv2D(3, padding="same")(y))
    model = keras.Model(x, layers.Dense(units)(layers.GlobalAveragePooling2D()(y)))
    before = tfopt.quantize(model, calibration=IMAGES, max_drop=100).content
    after = with_shared_vectors(before, "ai_edge_litert")
    # A zero point of eight bytes for each channel is stored once.
    assert len(after) < len(before) - 2000
    np.testing.assert_array_equal(*(LitertPredictor(each)([IMAGES])[0] for each in (before, after)))
    # Tensors lie on multiples of sixteen bytes.
    file = schema.Model.GetRootAs(after, 0)
    buffers = [file.Buffers(n) for n in range(file.BuffersLength())]
    places = [b._tab.Vector(b._tab.Offset(4)) for b in buffers if b.DataLength()]
    assert len(places) > 10
    assert {place % 16 for place in places} == {0}
