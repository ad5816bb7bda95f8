"""Files in which equal vectors are stored once are the files that they were."""

from importlib import import_module

import keras
import numpy as np
import pytest
from keras import layers

import tfopt
from tfopt.export import litert as conversion
from tfopt.export.formats import litert as quantization
from tfopt.export.litert_file import LitertPredictor
from tfopt.export.shared_vectors import with_shared_vectors

schema = import_module("tensorflow.lite.python.schema_py_generated")
IMAGES = np.random.default_rng(0).random((32, 8, 8, 4), dtype="float32")


def many_channels():
    keras.utils.set_random_seed(0)
    x = keras.Input((8, 8, 4))
    y = x
    for _ in range(3):
        y = layers.Conv2D(64, 1, activation="relu")(layers.DepthwiseConv2D(3, padding="same")(y))
    return keras.Model(x, layers.Dense(64)(layers.GlobalAveragePooling2D()(y)))


@pytest.fixture(scope="module")
def as_converted():
    """A model's file as it is written by others."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (conversion, quantization):
            patch.setattr(module, "with_shared_vectors", lambda content: content)
        return tfopt.quantize(many_channels(), calibration=IMAGES, max_drop=100).content


def plain(thing):
    """An object of the schema as nested lists and dictionaries."""
    if isinstance(thing, np.ndarray):
        return thing.tolist()
    if isinstance(thing, list):
        return [plain(each) for each in thing]
    return {k: plain(v) for k, v in vars(thing).items()} if hasattr(thing, "__dict__") else thing


def read(content):
    return plain(schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0)))


def test_the_file_says_and_answers_the_same(as_converted):
    after = with_shared_vectors(as_converted)
    assert read(after) == read(as_converted)
    # A zero point of eight bytes for each channel is stored once.
    assert len(after) < len(as_converted) - 2000
    answers = [LitertPredictor(content)([IMAGES])[0] for content in (as_converted, after)]
    np.testing.assert_array_equal(*answers)
    # Tensors lie on multiples of sixteen bytes.
    model = schema.Model.GetRootAs(after, 0)
    buffers = [model.Buffers(n) for n in range(model.BuffersLength())]
    places = [b._tab.Vector(b._tab.Offset(4)) for b in buffers if b.DataLength()]
    assert len(places) > 10
    assert {place % 16 for place in places} == {0}
