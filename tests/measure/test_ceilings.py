"""Ceilings: plausible figures, bounded time, and a cache that never stands in the way."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tfopt import UserError
from tfopt.job.cluster_place import usable_cores
from tfopt.measure import ceilings as measuring
from tfopt.measure.ceilings import cache_path, ceilings
from tfopt.report.bench_report import Ceilings


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
    single, double = (ceilings(dtype).ceilings for dtype in ("float32", "float64"))
    assert single.gflops > double.gflops / 2 > 0.1
    assert "cores" in single.device
    assert single.measured.endswith("+00:00")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_dtype_without_hardware_is_measured_too(dtype):
    assert ceilings(dtype).ceilings.gflops > 0


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
        assert ceilings("float32").ceilings.gflops == kept
    measurements.gflops = 300.0
    assert ceilings("float32").ceilings.gflops == 100.0
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


ENTRY = '{"KEY": {"agreed": true, "ceilings": {"device": "cpu", "dtype": "float32", "gflops": %s, "measured": "now"}}}'


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "\xff", '{"KEY": 3}', '{"KEY": {"ceilings": {"gflops": 1}}}'),
        *(ENTRY % figure for figure in ("0", "-1.0", '"fast"', "null", "NaN")),
    ],
)
def test_a_cache_that_makes_no_sense_is_measured_anew(measurements, content):
    key = measuring._identity("float32", "CPU:0")[1]
    cache_path().parent.mkdir(parents=True)
    cache_path().write_bytes(content.replace("KEY", key).encode("latin-1"))
    measured = ceilings("float32")
    assert (measurements, measured.notes) == (["float32"], ())
    (entry,) = json.loads(cache_path().read_text()).values()
    assert entry["ceilings"]["gflops"] == measured.ceilings.gflops == 10.0


def test_a_sound_cache_is_believed(measurements):
    key = measuring._identity("float32", "CPU:0")[1]
    cache_path().parent.mkdir(parents=True)
    cache_path().write_text((ENTRY % "12.0").replace("KEY", key))
    assert ceilings("float32").ceilings.gflops == 12.0
    assert measurements == []


def test_without_a_place_to_keep_them_they_are_measured_with_a_note(
    measurements, monkeypatch, tmp_path
):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (note,) = ceilings("float32").notes
    assert "could not be kept" in note
    assert len(measurements) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    assert "could not be kept" in ceilings("float32").notes[0]

    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(measuring.Path, "home", no_home)
    assert "no home" in ceilings("float32").notes[0]
    assert len(measurements) == 3


def test_the_cache_is_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_path() == tmp_path / "cache" / "tfopt" / "ceilings.json"
    for none in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", none)
        assert cache_path() == tmp_path / ".cache" / "tfopt" / "ceilings.json"


def write_often(number):
    for turn in range(50):
        value = Ceilings("cpu", "float32", 1.0 + turn, "now")
        assert measuring._keep(cache_path(), f"key {number}", measuring._Held(value, False)) is None
        # Whatever the others do, the whole of it can be read.
        json.loads(cache_path().read_text())


def test_writers_at_once_leave_a_whole_file():
    with ThreadPoolExecutor(4) as writers:
        list(writers.map(write_often, range(4)))
    assert measuring._read(cache_path())
    assert [path.name for path in cache_path().parent.iterdir()] == ["ceilings.json"]


def test_a_dtype_or_a_device_that_is_not_there():
    with pytest.raises(UserError, match="float32 or float16"):
        ceilings("int8")
    assert ceilings("float32", "GPU:7") == "this machine has no device GPU:7"


def test_a_gpu_is_named_and_its_tf32_noted(measurements, monkeypatch):
    """A stand-in for TensorFlow's answers: there was no GPU to ask."""
    import tensorflow as tf

    class Device:
        name = "/device:GPU:0"

    details = {"device_name": "NVIDIA H200", "compute_capability": (9, 0)}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda: [Device])
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [Device])
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda device: details)
    measured = ceilings("float32", "GPU:0")
    assert isinstance(measured.ceilings, Ceilings)
    assert measured.ceilings.device == "NVIDIA H200"
    assert measured.notes == ("float32 products run in TF32",)
    assert ceilings("bfloat16", "GPU:0").notes == ()
