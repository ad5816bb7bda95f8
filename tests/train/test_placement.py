"""Placement without a GPU, its checks, and its way with GPUs that a stand-in lists."""

import pytest

from tfopt import Place, UserError, place
from tfopt.errors import DevicesAlreadyInitialised
from tfopt.monitor.nvml import GpuMemory
from tfopt.train import placement


def test_without_a_gpu_the_effect_says_why(fresh_python):
    printed = fresh_python("""
        import tfopt, tensorflow as tf
        effect = tfopt.place(memory_limit_mib=1024, soft_placement=False)
        print(effect.acted, tf.config.get_soft_device_placement(), effect.note)
    """)
    assert printed.startswith("False False runs on the CPU: ")
    assert "NVML" in printed or "GPU" in printed


@pytest.mark.parametrize(
    "bad",
    [
        {"gpus": 1.5},
        {"gpus": ""},
        {"gpus": ()},
        {"gpus": (0, 0)},
        {"memory_limit_mib": 0},
        {"memory_growth": "yes"},
    ],
)
def test_nonsense_is_refused_before_anything_is_set(bad):
    with pytest.raises(UserError):
        Place(**bad)
    with pytest.raises(UserError):
        place(**bad)


class StandInGpu:
    def __init__(self, index):
        self.name = f"/physical_device:GPU:{index}"


class StandInConfig:
    """The part of tf.config that place() speaks to, with two GPUs and a record of the calls."""

    def __init__(self):
        self.gpus = [StandInGpu(0), StandInGpu(1)]
        self.calls = []
        self.experimental = self

    def list_physical_devices(self, kind):
        return self.gpus

    def get_device_details(self, gpu):
        return {"device_name": "NVIDIA H100" if gpu is self.gpus[1] else "NVIDIA T4"}

    def LogicalDeviceConfiguration(self, memory_limit):  # noqa: N802
        return memory_limit

    def __getattr__(self, name):
        return lambda *arguments: self.calls.append((name, *arguments))


@pytest.fixture
def two_gpus(monkeypatch):
    import tensorflow as tf

    stand_in = StandInConfig()
    monkeypatch.setattr(tf, "config", stand_in)
    return stand_in


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ("all", [0, 1]),
        (1, [1]),
        ("h100", [1]),
        ("/physical_device:GPU:0", [0]),
        ((1, 0), [1, 0]),
        ("none", []),
    ],
)
def test_gpus_are_chosen_by_index_and_name(two_gpus, gpus, expected):
    place(gpus)
    (chosen,) = [call[1] for call in two_gpus.calls if call[0] == "set_visible_devices"]
    assert [two_gpus.gpus.index(gpu) for gpu in chosen] == expected


def test_the_gpu_with_most_free_memory_is_chosen(two_gpus, monkeypatch):
    memories = [GpuMemory("a", "T4", 16000, 100), GpuMemory("b", "H100", 80000, 70000)]
    monkeypatch.setattr(placement, "gpu_memories", lambda: memories)
    place("most_free")
    assert ("set_visible_devices", [two_gpus.gpus[1]], "GPU") in two_gpus.calls
    assert ("set_memory_growth", two_gpus.gpus[1], True) in two_gpus.calls
    place(0, memory_limit_mib=512)
    assert ("set_logical_device_configuration", two_gpus.gpus[0], [512]) in two_gpus.calls
    monkeypatch.setattr(placement, "gpu_memories", list)
    monkeypatch.setattr(placement, "why_no_gpu", lambda: "NVML: driver not loaded")
    with pytest.raises(UserError, match="driver not loaded"):
        place("most_free")


def test_an_unknown_gpu_lists_those_there_are(two_gpus):
    with pytest.raises(UserError, match="1: NVIDIA H100"):
        place("A100")
    for missing in (2, "GPU:1"):
        with pytest.raises(UserError, match="no such GPU"):
            place(missing)
    assert two_gpus.calls == []


def test_what_tensorflow_refuses_to_change_came_too_late(two_gpus, monkeypatch):
    def refuse(gpu, growth):
        raise RuntimeError("Physical devices cannot be modified after being initialized")

    monkeypatch.setattr(two_gpus, "set_memory_growth", refuse, raising=False)
    with pytest.raises(DevicesAlreadyInitialised, match=r"cannot be modified(.|\n)*new process"):
        place(1)
