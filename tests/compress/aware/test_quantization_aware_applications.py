"""Architectures of keras.applications, trained quantization-aware and computed in integers."""

import keras
import numpy as np
import pytest

import tfopt
from tfopt.compress.quantize_aware import quantization_report, quantize_aware

RNG = np.random.default_rng(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNetV2", pytest.param("ResNet50", marks=pytest.mark.slow)])
def test_architectures_of_keras_become_integers(name):
    settings = {"alpha": 0.35} if name == "MobileNetV2" else {}
    make = getattr(keras.applications, name)
    model = make(input_shape=(32, 32, 3), weights=None, classes=4, **settings)
    quantize_aware(model)
    data = RNG.uniform(0, 255, size=(8, 32, 32, 3)).astype("float32")
    model(data, training=True)
    points = quantization_report(model)
    assert all(row.output or row.precision or row.remark for row in points)
    made = tfopt.quantize(tfopt.strip(model), calibration=data, max_drop=100)
    assert made.fully_integer, made.left_float
