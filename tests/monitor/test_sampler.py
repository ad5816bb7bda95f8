"""Sample a process, and GPUs of a stand-in under the real pynvml."""

import mmap
import os
import threading
import time

import pynvml
import pytest
from nvml_stand_in.library import gpu
from processes import wait_until

from tfopt.monitor import sampler as samplers
from tfopt.monitor.nvml import newest_cuda
from tfopt.monitor.readings import StepMark
from tfopt.monitor.sampler import sampling

MIB = 1024**2
ME = os.getpid()


def sampled(**arguments):
    """Return a recording with one sample that was taken by hand."""
    with sampling(ME, clock=time.perf_counter, period_s=60, **arguments) as sampler:
        sampler.take()
    return sampler.recording()


def test_a_growing_allocation_is_seen_while_it_is_there(sampler_threads):
    with sampling(ME, clock=time.perf_counter, wanted={}, period_s=0.01) as sampler:

        def seen():
            return [sample.host.rss_mib for sample in sampler.recording().samples]

        before = seen()[0]
        # Not from the allocator, which may keep what is freed.
        held = mmap.mmap(-1, 200 * MIB)
        held.write(bytes(200 * MIB))
        wait_until(lambda: max(seen()) > before + 150)
        held.close()
        wait_until(lambda: seen()[-1] < before + 100)
        assert len(sampler_threads()) == 1
    assert sampler_threads() == []
    times = [sample.at_s for sample in sampler.recording().samples]
    assert times == sorted(times)


def test_a_listener_that_fails_is_one_warning_and_hears_no_more():
    with sampling(ME, clock=time.perf_counter, wanted={}, period_s=60) as sampler:
        sampler.listen(lambda sample: 1 / 0)
        with pytest.warns(RuntimeWarning, match="gets no more samples"):
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


def test_what_is_kept_does_not_grow_without_end(monkeypatch):
    monkeypatch.setattr(samplers, "_MOST_KEPT", 100)
    sampler = samplers.Sampler(ME, float, wanted={})
    for moment in range(1000):
        sampler.mark(StepMark(float(moment), steps=2, seconds=0.5, examples=None))
    recording = sampler.recording()
    assert [mark.ended_s for mark in recording.steps] == [float(n) for n in range(900, 1000)]
    assert [m.ended_s for m in sampler.recording(960.0, 962.0).steps] == [960, 961, 962]
    # Nothing is lost of their sums.
    assert recording.trained == StepMark(999.0, steps=2000, seconds=500.0)


def test_one_session_serves_all_samples_and_none_where_no_gpu_is_in_use(played):
    gpus = played(gpu(0))
    recording = sampled(wanted={})
    assert (recording.gpus, recording.no_gpu_reason) == ((), "no GPU is in use")
    assert gpus.calls("nvmlInitWithFlags") == 0
    with sampling(ME, clock=time.perf_counter, period_s=60) as sampler:
        for _ in range(5):
            sampler.take()
        assert (gpus.calls("nvmlInitWithFlags"), gpus.sessions) == (1, 1)
    assert gpus.sessions == 0


def test_heat_power_and_hardware_throttle_and_nothing_else(played):
    causes = {
        "SwPowerCap": "power",
        "HwSlowdown": "hardware",
        "SwThermalSlowdown": "heat",
        "HwThermalSlowdown": "heat",
        "HwPowerBrakeSlowdown": "hardware",
        "GpuIdle": None,
        "ApplicationsClocksSetting": None,
    }
    bits = [getattr(pynvml, f"nvmlClocksEventReason{name}") for name in causes]
    played(gpu(0, {"reasons": sum(bits) | 1 << 40}))
    known = sampled().samples[0].gpus[0].clock_reasons
    names = {each.description.split("(")[1].rstrip(")"): each.cause for each in known}
    assert names == causes


def test_a_library_that_refuses_is_a_reason(played):
    played(gpu(0))
    assert newest_cuda() == "12.8"
    played(gpu(0) + "0 - nvmlInitWithFlags !13\n")
    assert sampled().no_gpu_reason == "NVML: Function Not Found"
    played(gpu(0) + "0 - nvmlInitWithFlags !12\n")  # NVML's own text begins with its name
    assert sampled().no_gpu_reason == "NVML Shared Library Not Found"
    gpus = played(gpu(0) + "0 0 nvmlDeviceGetUUID !13\n")
    recording = sampled()
    assert recording.no_gpu_reason is None
    assert set(recording.gpus[0].missing.values()) == {"NVML: Function Not Found"}
    assert gpus.sessions == 0
    played("")
    assert sampled().no_gpu_reason == "NVML lists no visible GPU"
