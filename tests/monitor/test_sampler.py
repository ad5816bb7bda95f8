"""Sample a process, and GPUs of a stand-in under the real pynvml (``stand_in_driver``)."""

import mmap
import os
import threading
import time

import psutil
import pynvml
import pytest

from tfopt.monitor import sampler as samplers
from tfopt.monitor.nvml import newest_cuda
from tfopt.monitor.readings import HostReading, Sample, StepMark
from tfopt.monitor.sampler import History, sampling

MIB = 1024**2
ME = os.getpid()


def sampled(**arguments):
    """Return a recording with one sample that was taken by hand."""
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
        # Not from the allocator, which may keep what is freed.
        held = mmap.mmap(-1, 200 * MIB)
        held.write(bytes(200 * MIB))
        wait_for(lambda: max(seen()) > before + 150)
        held.close()
        wait_for(lambda: seen()[-1] < before + 100)
        assert len(sampler_threads()) == 1
    assert sampler_threads() == []
    times = [sample.at_s for sample in sampler.recording().samples]
    assert times == sorted(times)


def test_the_thread_ends_when_the_measured_code_raises(sampler_threads):
    with (
        pytest.raises(ZeroDivisionError),
        sampling(ME, clock=time.perf_counter, wanted={}, period_s=0.01),
    ):
        raise ZeroDivisionError
    assert sampler_threads() == []


def test_a_listener_that_fails_is_one_warning_and_hears_no_more():
    with sampling(ME, clock=time.perf_counter, wanted={}, period_s=60) as sampler:
        sampler.listen(lambda sample: 1 / 0)
        with pytest.warns(RuntimeWarning, match="gets no more of the samples"):
            sampler.take()
        sampler.take()
        # Also where the user has made warnings errors, as here.
        sampler.listen(lambda sample: 1 / 0)
        sampler.take()
    assert len(sampler.recording().samples) == 4


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


def test_sampling_is_cheap():
    """Of one period, sampling this process takes much less than a hundredth."""
    with sampling(ME, clock=time.perf_counter, wanted={}, period_s=60) as sampler:
        process = psutil.Process()
        before = process.cpu_times()
        for _ in range(200):
            sampler.take()
        after = process.cpu_times()
    spent_s = after.user + after.system - before.user - before.system
    assert spent_s / 200 < samplers.PERIOD_S / 100


def test_the_history_does_not_grow_without_end():
    history = History(most=100)
    for moment in range(1000):
        history.add(Sample(float(moment), HostReading()))
        history.mark(StepMark(float(moment), steps=2, seconds=0.5, examples=None))
    everything = (-1.0, 1e9)
    samples, marks = history.samples(*everything), history.marks(*everything)
    assert max(len(samples), len(marks)) <= 100
    assert [each.at_s for each in samples[-50:]] == [float(n) for n in range(950, 1000)]
    assert samples[0].at_s == 0
    times = [mark.ended_s for mark in marks]
    assert times == sorted(times)
    # However they were joined, nothing is lost of their sums.
    assert sum(mark.steps for mark in marks) == 2000
    assert sum(mark.seconds for mark in marks) == 500
    assert {mark.examples for mark in marks} == {None}
    assert [each.at_s for each in history.samples(960.0, 962.0)] == [960, 961, 962]
    assert history.newest().at_s == 999


def test_one_session_serves_all_samples_and_none_where_no_gpu_is_in_use(stand_in_driver):
    recording = sampled(wanted={})
    assert (recording.gpus, recording.no_gpu_reason) == ((), "no GPU is in use")
    assert stand_in_driver.opened == 0
    with sampling(ME, clock=time.perf_counter, period_s=60) as sampler:
        for _ in range(5):
            sampler.take()
        assert (stand_in_driver.opened, stand_in_driver.sessions) == (1, 1)
    assert stand_in_driver.sessions == 0


def test_heat_power_and_hardware_throttle_and_nothing_else(stand_in_driver):
    throttles = {
        "SwPowerCap": True,
        "HwSlowdown": True,
        "SwThermalSlowdown": True,
        "HwThermalSlowdown": True,
        "HwPowerBrakeSlowdown": True,
        "GpuIdle": False,
        "ApplicationsClocksSetting": False,
        "SyncBoost": False,
        "DisplayClockSetting": False,
    }
    bits = [getattr(pynvml, f"nvmlClocksEventReason{name}") for name in throttles]
    stand_in_driver.gpus[0].reasons = sum(bits) | 1 << 40
    *known, unknown = sampled().samples[0].gpus[0].clock_reasons
    names = {each.description.split("(")[1].rstrip(")"): each.throttles for each in known}
    assert names == throttles
    assert ("0x10000000000" in unknown.description, unknown.throttles) == (True, False)


def test_an_older_driver_is_asked_by_older_names(stand_in_driver):
    stand_in_driver.gpus[0].reasons = pynvml.nvmlClocksThrottleReasonHwSlowdown
    stand_in_driver.unknown = {
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetTemperatureV",
    }
    reading = sampled().samples[0].gpus[0]
    assert (reading.temperature_c, reading.clock_reasons[0].throttles) == (61, True)


def test_a_pynvml_that_dropped_a_function_leaves_a_reason(stand_in_driver, monkeypatch):
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperature")
    assert sampled().samples[0].gpus[0].temperature_c == 61
    monkeypatch.delattr(pynvml, "nvmlDeviceGetTemperatureV", raising=False)
    recording = sampled()
    assert recording.samples[0].gpus[0].temperature_c is None
    assert "nvmlDeviceGetTemperature" in recording.gpus[0].missing["temperature_c"]


@pytest.mark.parametrize(
    ("processes", "held", "reason"),
    [
        ({}, 0, ""),
        ({ME: 2**64 - 1}, None, "single processes"),
        # A container counts anew: zero would be taken for what this process holds.
        ({4_000_001: 700 * MIB}, None, "container"),
        ({4_000_001: 700 * MIB, ME: 5 * MIB}, 5, ""),
    ],
)
def test_the_memory_of_this_process_is_known_or_not(stand_in_driver, processes, held, reason):
    with sampling(ME, clock=time.perf_counter, period_s=60) as sampler:
        # It is asked again: a training begins to use its GPU after the first samples.
        stand_in_driver.gpus[0].processes = processes
        assert sampler.take().gpus[0].process_mib == held
        assert reason in sampler.recording().gpus[0].missing.get("process_mib", "")


def test_a_library_that_refuses_is_a_reason(stand_in_driver):
    assert newest_cuda() == "12.8"
    stand_in_driver.unknown = {"nvmlInitWithFlags"}
    assert sampled().no_gpu_reason == "NVML: Function Not Found"
    stand_in_driver.unknown = {"nvmlDeviceGetUUID"}
    recording = sampled()
    assert recording.no_gpu_reason is None
    assert set(recording.gpus[0].missing.values()) == {"NVML: Function Not Found"}
    assert stand_in_driver.sessions == 0
    stand_in_driver.unknown, stand_in_driver.gpus = set(), []
    assert sampled().no_gpu_reason == "NVML lists no visible GPU"
