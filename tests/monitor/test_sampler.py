"""Sample a process, and GPUs of a stand-in under the real pynvml (``stand_in_driver``)."""

import mmap
import os
import threading
import time

import pynvml
import pytest

from tfopt.monitor import sampler as samplers
from tfopt.monitor.nvml import newest_cuda
from tfopt.monitor.readings import HostReading, Sample, StepMark
from tfopt.monitor.sampler import Moments, sampling

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
    sampler = samplers.Sampler(ME, lambda: float(next(seconds)), wanted={})
    sampler._run(0.25)
    assert pauses == [0.25, 2.0, 2.0, 2.0]


def test_what_is_kept_does_not_grow_without_end():
    samples = Moments("at_s", lambda first, second: first, most=100)
    marks = Moments("ended_s", StepMark.joined, most=100)
    for moment in range(1000):
        samples.add(Sample(float(moment), HostReading()))
        marks.add(StepMark(float(moment), steps=2, seconds=0.5, examples=None))
    times = [each.at_s for each in samples.between(-1.0, 1e9)]
    assert times[-50:] == [float(n) for n in range(950, 1000)]
    assert (times[0], times[-1]) == (0, 999)
    assert [each.at_s for each in samples.between(960.0, 962.0)] == [960, 961, 962]
    joined = marks.between(-1.0, 1e9)
    assert max(len(times), len(joined)) <= 100
    # However they were joined, nothing is lost of their sums.
    assert (sum(mark.steps for mark in joined), {mark.examples for mark in joined}) == (
        2000,
        {None},
    )


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
    }
    bits = [getattr(pynvml, f"nvmlClocksEventReason{name}") for name in throttles]
    stand_in_driver.gpus[0].reasons = sum(bits) | 1 << 40
    known = sampled().samples[0].gpus[0].clock_reasons
    names = {each.description.split("(")[1].rstrip(")"): each.throttles for each in known}
    assert names == throttles


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
