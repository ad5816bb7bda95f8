"""GPUs and memory, summed up from samples made by hand."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import tensorflow as tf
from bench_reports import blocks, gpu

from tfopt.measure import memory
from tfopt.measure.machine import gpu_states, why_throttled
from tfopt.measure.memory import AllocatorPeaks, block_memory, gpus_in_use
from tfopt.monitor.readings import (
    ClockReason,
    GpuReading,
    HostReading,
    Recording,
    Sample,
    SampledGpu,
)

HOT = ClockReason("heat, seen by the driver (SwThermalSlowdown)", throttles=True)
IDLE = ClockReason("nothing to do (GpuIdle)", throttles=False)


def reading(**changes):
    values = {
        "device_mib": 3000.0,
        "process_mib": 2000.0,
        "utilisation_percent": 80.0,
        "sm_clock_mhz": 1500.0,
        "memory_clock_mhz": 2600.0,
        "temperature_c": 60.0,
        "power_w": 200.0,
        "energy_j": 5000.0,
        "clock_reasons": (),
    }
    return GpuReading(**{**values, **changes})


def recorded(*moments, missing=None, host=800.0):
    """``moments``: of each sample, the readings of all GPUs."""
    samples = tuple(
        Sample(100.0 + n / 2, HostReading(rss_mib=host), tuple(gpus))
        for n, gpus in enumerate(moments)
    )
    count = len(moments[0]) if moments else 0
    gpus = tuple(SampledGpu(f"GPU-{n}", "Made", missing or {}) for n in range(count))
    return Recording(samples, gpus, None if gpus else "no GPU is in use")


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


def test_a_reason_seen_once_counts_and_only_heat_power_and_hardware_throttle():
    calm, hot = gpu_states(
        recorded(
            [reading(), reading()],
            [reading(clock_reasons=(IDLE,)), reading(clock_reasons=(IDLE, HOT))],
            [reading(clock_reasons=None), reading(clock_reasons=(IDLE,))],
        )
    )
    assert (calm.throttled, calm.throttle_reasons) == (False, (IDLE.description,))
    assert (hot.throttled, hot.throttle_reasons) == (True, (IDLE.description, HOT.description))
    assert why_throttled([calm]) is None
    assert why_throttled([calm, hot]).startswith("GPU 1 (Made) was throttled: ")


def test_a_counter_that_is_not_there_or_went_back_gives_no_energy():
    missing = {"energy_j": "NVML: Not Supported"}
    (state,) = gpu_states(recorded([reading(energy_j=None)], missing=missing))
    assert (state.energy_j, state.notes) == (None, ("energy_j: NVML: Not Supported",))
    (state,) = gpu_states(recorded([reading(energy_j=5000.0)], [reading(energy_j=20.0)]))
    assert state.energy_j is None


def test_a_lost_gpu_is_none_with_the_words_of_the_driver():
    lost = dict.fromkeys(asdict(reading()), "NVML: GPU is lost")
    (state,) = gpu_states(recorded([GpuReading()], [GpuReading()], missing=lost))
    figures = ("utilisation_percent", "sm_clock_mhz", "temperature_c", "power_w", "energy_j")
    assert [getattr(state, name) for name in figures] == [None] * 5
    assert state.throttled is False
    assert {f"{name}: NVML: GPU is lost" for name in (*figures, "clock_reasons")} <= set(
        state.notes
    )


def test_energy_per_example_is_of_all_gpus_over_all_windows():
    """Two GPUs took 1000 J each in the 110 ms of all steps; a median step of 50 examples takes 20 ms."""
    gpus = (replace(gpu(), energy_j=1000.0),) * 2
    known = {"windows_ms": (10.0, 20.0, 30.0), "steps": (4, 2, 1), "batch_size": 50}
    made = blocks(20, 1, gpus=gpus, **known)[0]
    assert made.energy_per_example_j == pytest.approx(2000 / 0.110 * 0.020 / 50)
    assert blocks(20, 1, **known)[0].energy_per_example_j is None
    unknown = {**known, "batch_size": None, "examples_per_step": None}
    assert blocks(20, 1, gpus=gpus, **unknown)[0].energy_per_example_j is None


@pytest.fixture
def stand_in_allocator(monkeypatch):
    """TensorFlow's memory statistics of two GPUs that are not there."""
    peaks = {"/device:GPU:0": 300 * 2**20, "/device:GPU:1": 100 * 2**20}
    gpus = [SimpleNamespace(name=name) for name in peaks]
    stats = tf.config.experimental
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: gpus)
    monkeypatch.setattr(stats, "get_memory_info", lambda name: {"current": 0, "peak": peaks[name]})
    monkeypatch.setattr(stats, "reset_memory_stats", lambda name: peaks.update({name: 10 * 2**20}))
    return peaks


def test_stand_in_the_allocator_s_peak_with_compiling_is_not_the_steady_one(stand_in_allocator):
    allocators = AllocatorPeaks()
    allocators.reset()
    stand_in_allocator["/device:GPU:0"] = 200 * 2**20
    stand_in_allocator["/device:GPU:1"] = 150 * 2**20
    seen = block_memory(allocators, recorded([reading(), reading(process_mib=0.0)]))
    assert seen.gpu_steady_peak_mib == 350
    # The highest of each GPU: the first reached it before the reset, the second after it.
    assert seen.gpu_allocator_peak_mib == 450
    assert (seen.nvml_process_peak_mib, seen.nvml_device_peak_mib) == (2000, 6000)
    assert seen.unavailable == {}
    reasons = {}
    assert memory.peak_gpu_mib(reasons) == 350
    # Each GPU has its own limit: what counts against it is the fullest one.
    assert memory.peak_of_one_gpu_mib(reasons) == 200
    assert reasons == {}


def test_stand_in_an_allocator_that_keeps_its_peak_has_no_steady_one(
    stand_in_allocator, monkeypatch
):
    def refuses(name):
        raise ValueError("Cannot reset memory stats")

    monkeypatch.setattr(tf.config.experimental, "reset_memory_stats", refuses)
    allocators = AllocatorPeaks()
    allocators.reset()
    seen = block_memory(allocators, recorded([reading()]))
    assert (seen.gpu_allocator_peak_mib, seen.gpu_steady_peak_mib) == (400, None)
    assert "Cannot reset memory stats" in seen.unavailable["gpu_steady_peak_mib"]


def test_devices_without_statistics_are_a_reason(monkeypatch):
    """As TensorFlow refuses where an allocator keeps none: on some processors the CPU's does."""

    def refuses(name):
        raise ValueError(f"Allocator stats not available for device {name}")

    cpus = tf.config.list_logical_devices("CPU")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind=None: cpus)
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", refuses)
    reasons = {}
    assert memory.peak_gpu_mib(reasons) is None
    assert "Allocator stats not available" in reasons["peak_gpu_mib"]


def test_a_process_that_the_driver_does_not_list_has_no_peak(stand_in_allocator):
    recording = recorded([reading(process_mib=0.0)], [reading(process_mib=0.0)])
    seen = block_memory(AllocatorPeaks(), recording)
    assert seen.nvml_process_peak_mib is None
    assert "container" in seen.unavailable["nvml_process_peak_mib"]
    assert seen.nvml_device_peak_mib == 3000


def test_a_gpu_without_a_figure_leaves_no_sum(stand_in_allocator):
    missing = {"device_mib": "NVML: Not Supported"}
    recording = recorded([reading(), reading(device_mib=None)], missing=missing)
    seen = block_memory(AllocatorPeaks(), recording)
    assert seen.nvml_device_peak_mib is None
    assert seen.unavailable["nvml_device_peak_mib"] == "NVML: Not Supported"


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
    assert reasons["peak_gpu_mib"] == "no GPU in use: 3 hidden from TensorFlow"
