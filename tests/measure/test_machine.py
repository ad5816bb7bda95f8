"""GPUs and memory, summed up from samples made by hand."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tfopt.measure import memory
from tfopt.measure.memory import gpu_states, gpus_in_use
from tfopt.monitor.readings import (
    GpuReading,
    HostReading,
    Recording,
    Sample,
    SampledGpu,
)


def reading(**changes):
    values = {
        "device_mib": 3000.0,
        "utilisation_percent": 80.0,
        "sm_clock_mhz": 1500.0,
        "memory_clock_mhz": 2600.0,
        "temperature_c": 60.0,
        "power_w": 200.0,
        "energy_j": 5000.0,
        "clock_reasons": (),
    }
    return GpuReading(**{**values, **changes})


def recorded(*moments, missing=None):
    """``moments``: of each sample, the readings of all GPUs."""
    host = HostReading(rss_mib=800.0)
    samples = tuple(Sample(100.0 + n / 2, host, tuple(gpus)) for n, gpus in enumerate(moments))
    gpus = (SampledGpu(f"GPU-{n}", "Made", missing or {}) for n in range(len(moments[0])))
    return Recording(samples, tuple(gpus), None)


def test_a_state_is_the_mean_the_median_or_the_highest():
    (state,) = gpu_states(
        recorded(
            [reading(power_w=100.0, utilisation_percent=50.0, energy_j=1000.0)],
            [reading(sm_clock_mhz=1200.0, temperature_c=71.0, energy_j=1100.0)],
            [reading(sm_clock_mhz=1490.0, temperature_c=70.0, energy_j=1250.5)],
        )
    )
    assert (state.uuid, state.name) == ("GPU-0", "Made")
    assert state.utilisation_percent == 70
    assert state.power_w == pytest.approx(166.7)
    assert (state.sm_clock_mhz, state.memory_clock_mhz) == (1490, 2600)
    assert state.temperature_c == 71
    assert state.energy_j == 250.5
    assert (state.notes, state.throttled, state.throttle_reasons) == ((), False, ())


def test_what_a_driver_does_not_say_is_none_with_its_words():
    (state,) = gpu_states(recorded([reading(energy_j=5000.0)], [reading(energy_j=20.0)]))
    assert state.energy_j is None  # a counter that went back
    lost = dict.fromkeys(asdict(reading()), "NVML: GPU is lost")
    (state,) = gpu_states(recorded([GpuReading()], [GpuReading()], missing=lost))
    figures = ("utilisation_percent", "sm_clock_mhz", "temperature_c", "power_w", "energy_j")
    assert [getattr(state, name) for name in figures] == [None] * 5
    assert state.throttled is False
    notes = {f"{name}: NVML: GPU is lost" for name in (*figures, "clock_reasons")}
    assert notes <= set(state.notes)


def test_stand_in_the_peak_is_what_the_allocators_of_all_gpus_had_handed_out(monkeypatch):
    peaks, reasons = {"/device:GPU:0": 300 * 2**20, "/device:GPU:1": 100 * 2**20}, {}
    gpus = [SimpleNamespace(name=name) for name in peaks]
    stats = tf.config.experimental
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: gpus)
    monkeypatch.setattr(stats, "get_memory_info", lambda name: {"current": 0, "peak": peaks[name]})
    assert memory.peak_gpu_mib(reasons) == 400
    assert reasons == {}

    def refuses(name):  # as TensorFlow does where an allocator keeps none
        raise ValueError(f"Allocator stats not available for device {name}")

    monkeypatch.setattr(stats, "get_memory_info", refuses)
    assert memory.peak_gpu_mib(reasons) is None
    assert "Allocator stats not available" in reasons["gpu_peak_mib"]


def test_stand_in_gpus_in_use_have_their_place_among_all(monkeypatch):
    gpus = [SimpleNamespace(name=f"/physical_device:GPU:{n}") for n in range(3)]
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: gpus)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: gpus[2:])
    details = {"device_name": "NVIDIA Stand-In"}
    monkeypatch.setattr(tf.config.experimental, "get_device_details", lambda gpu: details)
    assert gpus_in_use() == {2: "NVIDIA Stand-In"}
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: [])
    reasons = {}
    assert memory.peak_gpu_mib(reasons) is None
    assert reasons["gpu_peak_mib"] == "no GPU in use: 3 hidden from TensorFlow"
