"""Ceilings: plausible figures in bounded time."""

import time

import pytest

from tfopt import UserError
from tfopt.measure import ceilings as measuring
from tfopt.measure.ceilings import ceilings


@pytest.fixture(autouse=True)
def a_short_measurement(monkeypatch):
    monkeypatch.setattr(measuring, "_ROUND_S", 0.01)
    monkeypatch.setattr(measuring, "_LARGEST_CPU", 512)


@pytest.mark.slow
def test_real_products():
    single, double = ceilings("float32"), ceilings("float64")
    assert single.gflops > double.gflops / 2 > 0.1
    assert "cores" in single.device
    # A dtype without hardware of its own is measured too.
    assert ceilings("bfloat16").gflops > 0


def test_a_slow_product_is_not_made_larger(monkeypatch):
    sizes = []

    def product(size, dtype):
        sizes.append(size)
        return lambda: time.sleep(0.1)

    monkeypatch.setattr(measuring, "_product", product)
    assert measuring._product_gflops("float16", "CPU:0") > 0
    assert sizes == [256]


def test_a_dtype_or_a_device_that_is_not_there():
    with pytest.raises(UserError, match="float32 or float16"):
        ceilings("int8")
    with pytest.raises(UserError, match="on GPU:7"):
        ceilings("float32", "GPU:7")


def test_a_gpu_is_named_with_its_tf32(monkeypatch):
    """A stand-in for TensorFlow's answers: there was no GPU to ask."""
    import tensorflow as tf

    class Device:
        name = "/device:GPU:0"

    details = {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}
    monkeypatch.setattr(measuring, "_product_gflops", lambda dtype, device: 10.0)
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: [Device])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [Device])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details)
    assert ceilings("float32", "GPU:0").device == "NVIDIA H200, in TF32"
    assert ceilings("bfloat16", "GPU:0").device == "NVIDIA H200"
