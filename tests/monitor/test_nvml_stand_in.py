"""Sample GPUs through the real nvidia-ml-py, from a library in C that plays a trace.

It has not run on GPUs.
"""

import os
import time
from dataclasses import asdict

import pytest
from nvml_stand_in.library import gpu, part

from tfopt.monitor import nvml
from tfopt.monitor import sampler as samplers
from tfopt.monitor.sampler import Sampler, sampling

ME = os.getpid()


def sampler_of(gpus, wanted="visible"):
    return Sampler(ME, lambda: gpus.now, wanted)


def sampled(gpus, moments, wanted="visible"):
    """Take a sample at each moment; return the recording."""
    sampler = sampler_of(gpus, wanted)
    for moment in moments:
        gpus.at(moment)
        sampler.take()
    return sampler.recording()


def chosen(gpus, wanted="visible"):
    """Return the UUIDs of the GPUs that are watched, or why there are none."""
    recording = sampler_of(gpus, wanted).recording()
    return recording.no_gpu_reason or [each.uuid for each in recording.gpus]


def powers(recording):
    return [[each.power_w for each in sample.gpus] for sample in recording.samples]


def test_every_metric_of_the_table_comes_in_its_unit(played):
    gpus = played(gpu(0) + "1 0 energy_mj 10300000\n")
    sampler = sampler_of(gpus)
    first = asdict(sampler.take().gpus[0])
    gpus.at(1.5)
    second = asdict(sampler.take().gpus[0])
    assert second.pop("energy_j") - first["energy_j"] == 300
    assert second == {
        "device_mib": 30000,
        "total_mib": 40960,
        "utilisation_percent": 97,
        "memory_utilisation_percent": 41,
        "sm_clock_mhz": 1380,
        "max_sm_clock_mhz": 1410,
        "memory_clock_mhz": 1215,
        "temperature_c": 61,
        "slowdown_temperature_c": 92,
        "power_w": 312.45,
        "power_limit_w": 400,
        "fan_percent": 30,
        "clock_reasons": (),
        "processes": (
            {"pid": ME, "name": "python3.11", "mib": 2000},
            {"pid": 99, "name": "train", "mib": 500},
        ),
    }
    assert sampler.recording().gpus[0].missing == {}


def test_what_is_not_there_or_not_allowed_is_none_with_the_reason(played):
    nothing = {"fan": None}
    # As newer GPUs: a distance in place of the temperature, which it must not be taken for.
    nothing |= {"threshold.1": None, "field.194": 2}
    gpus = played(
        gpu(0, nothing) + "0 0 nvmlDeviceGetMaxClockInfo !4\n0 0 nvmlDeviceGetPowerUsage !10\n"
    )
    recording = sampled(gpus, range(3))
    reading, missing = recording.samples[-1].gpus[0], recording.gpus[0].missing
    for name in ("fan_percent", "slowdown_temperature_c"):
        assert (getattr(reading, name), missing[name]) == (None, "NVML: Not Supported")
    assert reading.max_sm_clock_mhz is None
    assert missing["max_sm_clock_mhz"] == "NVML: Insufficient Permissions"
    assert (reading.utilisation_percent, reading.device_mib) == (97, 30000)
    assert missing["power_w"] == "NVML: Timeout"


def test_a_gpu_that_falls_off_the_bus_is_empty_while_the_others_go_on_and_may_come_back(played):
    gpus = played(gpu(0) + gpu(1, {"uuid": "GPU-bbbb"}) + "10 1 * !15\n60 1 * ok\n")
    recording = sampled(gpus, (0.0, 10.0, 11.0, 30.0, 61.0))
    both, one = [312.45, 312.45], [312.45, None]
    assert powers(recording) == [both, one, one, one, both]
    assert set(asdict(recording.samples[3].gpus[1]).values()) == {None}
    missing = recording.gpus[1].missing
    assert {missing[name] for name in ("power_w", "fan_percent")} == {"NVML: GPU is lost"}
    assert "power_w" not in recording.gpus[0].missing


@pytest.mark.parametrize(("code", "reason"), [(4, "Insufficient Permissions"), (999, "Unknown")])
def test_a_gpu_that_refuses_its_handle_hides_no_other(played, monkeypatch, code, reason):
    gpus = played(
        gpu(0)
        + gpu(1, {"uuid": "GPU-bbbb"})
        + f"0 1 nvmlDeviceGetHandleByIndex_v2 !{code}\n"
        + gpu(2, {"uuid": "GPU-cccc"})
    )
    recording = sampled(gpus, [0.0], "all")
    assert powers(recording) == [[312.45, None, 312.45]]
    assert reason in recording.gpus[1].missing["power_w"]
    assert [each.uuid for each in nvml.gpu_memories()] == ["GPU-aaaa", "GPU-cccc"]
    # CUDA does not count what this process may not open.
    forbidden = code == 4
    facts = [each.uuid for each in nvml.device_facts()]
    assert ("GPU number 1" in facts) != forbidden
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert chosen(gpus) == ["GPU-cccc" if forbidden else "GPU number 1"]


NONE = "NVML lists no visible GPU"


def test_cuda_s_variables_choose_the_gpus_that_cuda_would(played, monkeypatch):
    gpus = played(
        "".join(gpu(n, {"uuid": f"GPU-{name}"}) for n, name in enumerate(("a1", "a2", "b1")))
    )
    assert chosen(gpus) == ["GPU-a1", "GPU-a2", "GPU-b1"]
    for visible, expected in {
        "": NONE,
        "2,0": ["GPU-b1", "GPU-a1"],
        "1,-1,0": ["GPU-a2"],
        "0,0": NONE,
        "GPU-b": ["GPU-b1"],
        "GPU-b1, GPU-a2": ["GPU-b1", "GPU-a2"],
        "GPU-a": NONE,  # there are two of them
    }.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert chosen(gpus) == expected, visible


def test_boards_of_several_kinds_are_not_mixed_up(played, monkeypatch):
    gpus = played(
        gpu(0, {"uuid": "GPU-s", "name": "Slow"})
        + gpu(1, {"uuid": "GPU-f", "name": "Fast"})
        + gpu(2, {"uuid": "GPU-t", "name": "Slow"})
    )
    unsure = "set CUDA_DEVICE_ORDER=PCI_BUS_ID"
    # TensorFlow knows its GPUs by their places, which NVML may count otherwise.
    assert unsure in chosen(gpus, [0])
    assert unsure in chosen(gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-f")
    assert chosen(gpus) == ["GPU-f"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    assert chosen(gpus) == ["GPU-s", "GPU-f", "GPU-t"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert chosen(gpus) == chosen(gpus, [0]) == ["GPU-f"]
    assert "not number 3" in chosen(gpus, [3])


PART = {"name": "Stand-In MIG 1g.5gb", "processes": "none"}
DIVIDED = (
    gpu(0, {"uuid": "GPU-whole"})
    + gpu(1, {"uuid": "GPU-apart", "mig": 1, "utilisation": None})
    + part(5, 1, uuid="MIG-1111", **PART)
    + part(6, 1, uuid="MIG-2222", **PART)
)


def test_a_part_of_a_gpu_is_found_by_its_name_and_is_the_only_one(played, monkeypatch):
    gpus = played(DIVIDED)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    for visible, expected in {
        "MIG-2222": ["MIG-2222"],
        # CUDA takes one part, and no other GPU beside it.
        "MIG-1111,MIG-2222": ["MIG-1111"],
        "GPU-apart": ["MIG-1111"],
        "0": ["GPU-whole"],
    }.items():
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert chosen(gpus) == expected, visible
    assert chosen(gpus, "all") == ["GPU-whole", "GPU-apart", "MIG-1111", "MIG-2222"]


def test_a_part_has_its_own_memory_and_the_divided_gpu_the_clocks(played, monkeypatch):
    recording = sampled(played(DIVIDED), [0.0], "all")
    whole, divided, part, _ = recording.samples[0].gpus
    assert (part.device_mib, part.total_mib, part.processes) == (1000, 4864, ())
    assert (part.power_w, divided.power_w, whole.power_w) == (None, 312.45, 312.45)
    assert recording.gpus[2].missing["utilisation_percent"] == "NVML: Not Supported"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-2222")
    assert [each.total_mib for each in nvml.gpu_memories()] == [4864]


def test_a_driver_that_does_not_answer_is_left_behind_with_a_warning(
    played, monkeypatch, sampler_threads
):
    gpus = played(gpu(0) + "1 0 nvmlDeviceGetPowerUsage ~0.6\n")
    monkeypatch.setattr(samplers, "_HANG_S", 0.1)

    def sample_while_it_hangs():
        with sampling(ME, clock=time.perf_counter, period_s=0.01) as sampler:
            gpus.at(2.0)
            asked = gpus.calls("nvmlDeviceGetPowerUsage")
            while gpus.calls("nvmlDeviceGetPowerUsage") == asked:
                time.sleep(0.01)  # the thread is not there yet, where the driver hangs
            assert sampler.take().gpus == ()
            assert len(sampler.recording().samples) >= 1

    with pytest.warns(RuntimeWarning, match="has not replied"):
        sample_while_it_hangs()
    (thread,) = sampler_threads()
    thread.join()  # the next trace is not for this thread


def test_why_no_gpu_names_the_cause(played, monkeypatch):
    played(gpu(0))
    assert "tfopt[gpu]" in nvml.why_no_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "CUDA_VISIBLE_DEVICES hides" in nvml.why_no_gpu()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    played(gpu(0) + "0 0 nvmlDeviceGetHandleByIndex_v2 !4\n")
    assert "Insufficient Permissions" in nvml.why_no_gpu()
    assert nvml.listed_uuids() == []
    played("")
    assert "lists none" in nvml.why_no_gpu()
    assert nvml.gpu_memories() == []
