"""Ceilings: plausible figures, bounded time, and a cache that never stands in the way."""

import json
import os
import time

import pytest

from tfopt import UserError
from tfopt.job.cluster_place import usable_cores
from tfopt.measure import ceilings as measuring
from tfopt.measure.ceilings import cache_path, ceilings


class Measured(list):
    """The dtypes that were measured, and the figure that stands in for seconds of work."""

    gflops = 10.0


@pytest.fixture(autouse=True)
def a_short_measurement(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(measuring, "_ROUND_S", 0.01)
    monkeypatch.setattr(measuring, "_LARGEST_CPU", 512)


@pytest.fixture
def measurements(monkeypatch):
    seen = Measured()

    def product(dtype, device):
        seen.append(dtype)
        return seen.gflops

    monkeypatch.setattr(measuring, "_product_gflops", product)
    return seen


@pytest.mark.slow
def test_real_products():
    single, double = ceilings("float32"), ceilings("float64")
    assert single.gflops > double.gflops / 2 > 0.1
    assert "cores" in single.device
    assert single.measured.endswith("+00:00")
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


def test_measured_until_two_agree_and_the_highest_is_kept(measurements):
    # The machine is busy, then quiet, then busy again, then quiet twice in a row.
    for gflops, kept in ((60.0, 60.0), (100.0, 100.0), (70.0, 100.0), (97.0, 100.0)):
        measurements.gflops = gflops
        assert ceilings("float32").gflops == kept
    measurements.gflops = 300.0
    assert ceilings("float32").gflops == 100.0
    assert len(measurements) == 4


def test_another_dtype_cpu_set_or_tf32_switch_is_measured_itself(measurements, monkeypatch):
    import tensorflow as tf

    for dtype in ("float32", "bfloat16", "float32", "bfloat16", "float32"):
        ceilings(dtype)
    assert len(measurements) == 4
    others = {1000 + core for core in range(usable_cores())}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: others, raising=False)
    ceilings("float32")
    assert len(measurements) == 5
    enabled = tf.config.experimental.tensor_float_32_execution_enabled()
    tf.config.experimental.enable_tensor_float_32_execution(not enabled)
    try:
        ceilings("float32")
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(enabled)
    assert len(measurements) == 6
    assert len(json.loads(cache_path().read_text())) == 4


@pytest.mark.parametrize("content", ["", "[]", '{"KEY": 3}', '{"KEY": {"ceilings": {}}}'])
def test_a_cache_that_makes_no_sense_is_measured_anew(measurements, content):
    key = measuring._identity("float32", "CPU:0")[1]
    cache_path().parent.mkdir(parents=True)
    cache_path().write_text(content.replace("KEY", key))
    assert ceilings("float32").gflops == 10.0
    assert measurements == ["float32"]
    (entry,) = json.loads(cache_path().read_text()).values()
    assert entry["ceilings"]["gflops"] == 10.0


def test_without_a_place_to_keep_them_they_are_measured(measurements, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert ceilings("float32").gflops == 10.0

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(measuring.Path, "home", no_home)
    assert ceilings("float32").gflops == 10.0
    assert len(measurements) == 2


def test_the_cache_is_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_path() == tmp_path / "cache" / "tfopt" / "ceilings.json"
    for none in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", none)
        assert cache_path() == tmp_path / ".cache" / "tfopt" / "ceilings.json"


def test_a_dtype_or_a_device_that_is_not_there():
    with pytest.raises(UserError, match="float32 or float16"):
        ceilings("int8")
    with pytest.raises(UserError, match="on GPU:7"):
        ceilings("float32", "GPU:7")


def test_a_gpu_is_named_with_its_tf32(measurements, monkeypatch):
    """A stand-in for TensorFlow's answers: there was no GPU to ask."""
    import tensorflow as tf

    class Device:
        name = "/device:GPU:0"

    details = {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: [Device])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [Device])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details)
    assert ceilings("float32", "GPU:0").device == "NVIDIA H200, in TF32"
    assert ceilings("bfloat16", "GPU:0").device == "NVIDIA H200"
