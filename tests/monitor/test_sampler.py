"""Samples of a process and of GPUs.

The GPUs here are a stand-in under the real pynvml (``stand_in_driver``): the NVML paths have not
run on the hardware.
"""

import mmap
import os
import threading
import time
from dataclasses import asdict

import psutil
import pynvml
import pytest

from tfopt.monitor import sampler as samplers
from tfopt.monitor.nvml import gpu_memories, newest_cuda
from tfopt.monitor.sampler import sampling

MIB = 1024**2
ME = os.getpid()


def sampled(**arguments):
    """One sample of everything, taken by hand."""
    with sampling(ME, clock=time.perf_counter, period_s=60, **arguments) as sampler:
        sampler.take()
    return sampler.recording()


def wait_for(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def test_a_growing_allocation_is_seen_while_it_is_there(sampler_threads):
    with sampling(ME, clock=time.perf_counter, wanted={}, period_s=0.01) as sampler:

        def seen():
            return [sample.host.rss_mib for sample in sampler.recording().samples]

        before = seen()[0]
        # Not from the allocator, which may have been told to keep what is freed.
        held = mmap.mmap(-1, 200 * MIB)
        for _ in range(200):
            held.write(bytes(MIB))
        wait_for(lambda: max(seen()) > before + 150)
        held.close()
        wait_for(lambda: seen()[-1] < before + 100)
        assert len(sampler_threads()) == 1
    assert sampler_threads() == []
    times = [sample.at_s for sample in sampler.recording().samples]
    assert times == sorted(times)
    count = len(times)
    time.sleep(0.05)
    assert len(sampler.recording().samples) == count


def test_the_thread_ends_when_the_measured_code_raises(sampler_threads):
    with (
        pytest.raises(ZeroDivisionError),
        sampling(ME, clock=time.perf_counter, wanted={}, period_s=0.01),
    ):
        raise ZeroDivisionError
    assert sampler_threads() == []


def test_without_gpus_in_use_nvml_is_not_opened(stand_in_driver):
    recording = sampled(wanted={})
    assert (recording.gpus, recording.no_gpu_reason) == ((), "no GPU is in use")
    assert stand_in_driver.opened == 0


def test_a_process_that_is_gone_has_no_memory_to_tell():
    with sampling(2**22 + 1, clock=time.perf_counter, wanted={}) as sampler:
        assert sampler.take().host.rss_mib is None


def test_a_recording_can_be_cut_at_two_moments():
    now = [0.0]
    with sampling(ME, clock=lambda: now[0], wanted={}, period_s=60) as sampler:
        for moment in range(1, 6):
            now[0] = moment
            sampler.take()
    assert [sample.at_s for sample in sampler.recording(1, 3).samples] == [1, 2, 3]


def test_a_driver_that_answers_slowly_is_asked_less_often(monkeypatch):
    """The clock says that each sample takes a second: no pause may be shorter than the longest."""
    pauses = []

    class Ended(threading.Event):
        def wait(self, timeout=None):
            pauses.append(timeout)
            return len(pauses) > 3

    monkeypatch.setattr(samplers.threading, "Event", Ended)
    seconds = iter(range(1000))
    sampler = samplers.Sampler(ME, lambda: float(next(seconds)))
    sampler._run(0.25)
    assert pauses == [0.25, 2.0, 2.0, 2.0]


def test_stand_in_every_metric_of_a_gpu(stand_in_driver):
    gpu = stand_in_driver.gpus[0]
    gpu.processes = {1: 500 * MIB, ME: 2000 * MIB}
    gpu.reasons = pynvml.nvmlClocksEventReasonSwPowerCap | pynvml.nvmlClocksEventReasonGpuIdle
    recording = sampled()
    reading = recording.samples[0].gpus[0]
    assert (reading.device_mib, reading.process_mib) == (3000, 2000)
    assert (reading.utilisation_percent, reading.temperature_c) == (87, 61)
    assert (reading.sm_clock_mhz, reading.memory_clock_mhz) == (1500, 2600)
    assert (reading.power_w, reading.energy_j) == (250, 10_000)
    told = {reason.description: reason.throttles for reason in reading.clock_reasons}
    assert told == {"nothing to do (GpuIdle)": False, "the power limit (SwPowerCap)": True}
    assert recording.gpus[0].uuid == "GPU-aaaa"
    assert not set(recording.gpus[0].missing) & {
        name for name, told in asdict(reading).items() if told
    }


def test_stand_in_one_session_serves_all_samples(stand_in_driver):
    with sampling(ME, clock=time.perf_counter, period_s=60) as sampler:
        opened = stand_in_driver.opened
        for _ in range(5):
            sampler.take()
        assert stand_in_driver.opened == opened
        assert stand_in_driver.sessions == 1
    assert stand_in_driver.sessions == 0


@pytest.mark.parametrize(
    ("name", "throttles"),
    [
        ("SwPowerCap", True),
        ("HwSlowdown", True),
        ("SwThermalSlowdown", True),
        ("HwThermalSlowdown", True),
        ("HwPowerBrakeSlowdown", True),
        ("GpuIdle", False),
        ("ApplicationsClocksSetting", False),
        ("SyncBoost", False),
        ("DisplayClockSetting", False),
    ],
)
def test_stand_in_heat_power_and_hardware_throttle_and_nothing_else(
    stand_in_driver, name, throttles
):
    stand_in_driver.gpus[0].reasons = getattr(pynvml, f"nvmlClocksEventReason{name}")
    (reason,) = sampled().samples[0].gpus[0].clock_reasons
    assert name in reason.description
    assert reason.throttles == throttles


def test_stand_in_a_reason_without_a_name_is_told_by_its_bit(stand_in_driver):
    stand_in_driver.gpus[0].reasons = 1 << 40
    (reason,) = sampled().samples[0].gpus[0].clock_reasons
    assert "0x10000000000" in reason.description
    assert not reason.throttles


def test_stand_in_what_a_gpu_does_not_support_is_none_and_asked_once(stand_in_driver):
    function = "nvmlDeviceGetTotalEnergyConsumption"
    stand_in_driver.gpus[0].refuses[function] = pynvml.NVML_ERROR_NOT_SUPPORTED
    recording = sampled()
    assert [sample.gpus[0].energy_j for sample in recording.samples] == [None, None]
    assert recording.gpus[0].missing["energy_j"] == "NVML: Not Supported"
    assert stand_in_driver.calls.count(function) == 1
    assert recording.samples[1].gpus[0].power_w == 250


def test_stand_in_what_fails_once_is_asked_again(stand_in_driver):
    gpu = stand_in_driver.gpus[0]
    with sampling(ME, clock=time.perf_counter, period_s=60) as sampler:
        gpu.refuses["nvmlDeviceGetPowerUsage"] = pynvml.NVML_ERROR_TIMEOUT
        assert sampler.take().gpus[0].power_w is None
        gpu.refuses.clear()
        assert sampler.take().gpus[0].power_w == 250
    assert sampler.recording().gpus[0].missing["power_w"] == "NVML: Timeout"


def test_stand_in_a_gpu_that_disappears_ends_nothing(stand_in_driver):
    gpu = stand_in_driver.gpus[0]
    with sampling(ME, clock=time.perf_counter, period_s=0.01) as sampler:
        lost = {f"nvml{name}": pynvml.NVML_ERROR_GPU_IS_LOST for name in ALL_ASKED}
        gpu.refuses.update(lost)
        count = len(sampler.recording().samples)
        wait_for(lambda: len(sampler.recording().samples) > count + 2)
        reading = sampler.take().gpus[0]
    assert set(asdict(reading).values()) == {None}
    assert sampler.recording().gpus[0].missing["device_mib"] == "NVML: GPU is lost"
    assert sampler.recording().samples[-1].host.rss_mib > 0


ALL_ASKED = (
    "DeviceGetMemoryInfo",
    "DeviceGetComputeRunningProcesses_v3",
    "DeviceGetUtilizationRates",
    "DeviceGetClockInfo",
    "DeviceGetTemperature",
    "DeviceGetTemperatureV",
    "DeviceGetPowerUsage",
    "DeviceGetTotalEnergyConsumption",
    "DeviceGetCurrentClocksEventReasons",
)


def test_stand_in_an_older_driver_is_asked_by_older_names(stand_in_driver):
    gpu = stand_in_driver.gpus[0]
    gpu.processes, gpu.reasons = {ME: 700 * MIB}, pynvml.nvmlClocksThrottleReasonHwSlowdown
    stand_in_driver.unknown = {
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetTemperatureV",
    }
    reading = sampled().samples[0].gpus[0]
    assert (reading.process_mib, reading.temperature_c) == (700, 61)
    assert reading.clock_reasons[0].throttles


def test_stand_in_a_pynvml_that_dropped_a_function_leaves_a_reason(stand_in_driver, monkeypatch):
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperature")
    assert sampled().samples[0].gpus[0].temperature_c == 61
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperatureV", raising=False)
    recording = sampled()
    assert recording.samples[0].gpus[0].temperature_c is None
    assert "nvmlDeviceGetTemperature" in recording.gpus[0].missing["temperature_c"]


def test_stand_in_a_driver_that_hides_the_memory_of_processes(stand_in_driver):
    stand_in_driver.gpus[0].processes = {ME: 2**64 - 1}
    recording = sampled()
    assert recording.samples[0].gpus[0].process_mib is None
    assert "single processes" in recording.gpus[0].missing["process_mib"]


def test_stand_in_a_container_counts_processes_anew(stand_in_driver):
    """The driver lists processes by numbers of outside: zero would be taken for what this holds."""
    stand_in_driver.gpus[0].processes = {4_000_001: 700 * MIB}
    recording = sampled()
    assert recording.samples[0].gpus[0].process_mib is None
    assert "container" in recording.gpus[0].missing["process_mib"]
    # It is asked again: a training begins to use its GPU after the first samples.
    with sampling(ME, clock=time.perf_counter, period_s=60) as sampler:
        stand_in_driver.gpus[0].processes = {4_000_001: 700 * MIB, ME: 5 * MIB}
        assert sampler.take().gpus[0].process_mib == 5
    stand_in_driver.gpus[0].processes = {}
    assert sampled().samples[0].gpus[0].process_mib == 0


def test_stand_in_gpus_are_those_that_cuda_sees_and_tensorflow_uses(stand_in_driver, monkeypatch):
    stand_in_driver.gpus = [stand_in_driver.another_gpu(uuid=f"GPU-{n}{n}") for n in "abcd"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-a,1")
    name = stand_in_driver.gpus[0].name

    def uuids(wanted):
        return [gpu.uuid for gpu in sampled(wanted=wanted).gpus]

    assert uuids(None) == ["GPU-cc", "GPU-aa", "GPU-bb"]
    assert uuids({1: name, 2: name}) == ["GPU-aa", "GPU-bb"]
    assert "not number 3" in sampled(wanted={3: name}).no_gpu_reason


def test_stand_in_boards_in_another_order_than_cuda_s_are_not_mixed_up(stand_in_driver):
    stand_in_driver.gpus = [
        stand_in_driver.another_gpu(uuid="GPU-s", name="Slow"),
        stand_in_driver.another_gpu(uuid="GPU-f", name="Fast"),
    ]
    # Only one is called so, wherever CUDA counts it.
    assert [gpu.uuid for gpu in sampled(wanted={0: "Fast"}).gpus] == ["GPU-f"]
    stand_in_driver.gpus.append(stand_in_driver.another_gpu(uuid="GPU-g", name="Fast"))
    recording = sampled(wanted={0: "Fast"})
    assert recording.gpus == ()
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in recording.no_gpu_reason
    # Spelled in another way, but no other board's name.
    assert [gpu.uuid for gpu in sampled(wanted={0: "Slow MIG 1g.5gb"}).gpus] == ["GPU-s"]


def test_stand_in_a_part_of_a_gpu_is_found_by_its_name(stand_in_driver, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1234")
    part = stand_in_driver.another_gpu(uuid="MIG-1234", name="Part", used=100 * MIB)
    part.refuses = {"nvmlDeviceGetUtilizationRates": pynvml.NVML_ERROR_NOT_SUPPORTED}
    stand_in_driver.parts = {"MIG-1234": part}
    recording = sampled()
    assert [gpu.uuid for gpu in recording.gpus] == ["MIG-1234"]
    reading = recording.samples[0].gpus[0]
    assert (reading.device_mib, reading.utilisation_percent) == (100, None)
    assert [gpu.name for gpu in gpu_memories()] == ["Part"]


def test_stand_in_a_library_that_refuses_is_a_reason(stand_in_driver):
    stand_in_driver.unknown = {"nvmlInitWithFlags"}
    assert sampled().no_gpu_reason == "NVML: Function Not Found"
    stand_in_driver.unknown = {"nvmlDeviceGetUUID"}
    recording = sampled()
    assert recording.no_gpu_reason is None
    assert set(recording.gpus[0].missing.values()) == {"NVML: Function Not Found"}
    assert stand_in_driver.sessions == 0
    stand_in_driver.unknown, stand_in_driver.gpus = set(), []
    assert sampled().no_gpu_reason == "NVML lists no visible GPU"


def test_stand_in_the_newest_cuda_is_a_version(stand_in_driver):
    assert newest_cuda() == "12.8"


def test_sampling_is_cheap():
    """Of one period, sampling this process takes much less than a hundredth."""
    with sampling(ME, clock=time.perf_counter, wanted={}, period_s=60) as sampler:
        process = psutil.Process()
        before = process.cpu_times()
        for _ in range(1000):
            sampler.take()
        after = process.cpu_times()
    spent_s = after.user + after.system - before.user - before.system
    assert spent_s / 1000 < samplers.PERIOD_S / 100
