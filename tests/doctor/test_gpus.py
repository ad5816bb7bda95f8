"""Checks of GPUs and drivers: a stand-in for NVML under the real pynvml, and a folder for /sys.

What passes here has not run on the hardware.
"""

import pynvml
import pytest
from nvml_stand_in.library import gpu

from tfopt.doctor import compute_checks
from tfopt.doctor import gpu_checks as gpus
from tfopt.doctor.check import Subject
from tfopt.doctor.examine import INSPECTIONS
from tfopt.doctor.trials import TRIALS
from tfopt.subprocesses import ChildAnswers

MIB = 1024**2
ON_GPUS = [each for each in INSPECTIONS if each.theme == "gpu"]
BUILD = {
    "is_cuda_build": True,
    "cuda_version": "12.5.1",
    "cudnn_version": "9",
    "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
}


def test_what_tensorflow_was_built_for_is_known_without_loading_it():
    import tensorflow as tf

    assert gpus.tensorflow_build() == dict(tf.sysconfig.get_build_info())


@pytest.fixture
def driver(played, monkeypatch):
    """Play two GPUs with changes to each, and further lines."""
    monkeypatch.setattr(gpus, "tensorflow_build", lambda: BUILD)

    def play(first=None, second=None, lines=""):
        bare = {"memory.used": 300 * MIB}
        second = {"uuid": "GPU-bbbb", **(second or {})}
        played(gpu(0, bare | (first or {})) + gpu(1, bare | second) + lines)

    play()
    return play


def pci_device(root, address, **files):
    folder = root / "sys/bus/pci/devices" / address
    folder.mkdir(parents=True)
    for name, text in {"vendor": "0x10de", "class": "0x030200", **files}.items():
        (folder / name).write_text(f"{text}\n")


def verdicts(found):
    return [(check.verdict, check.message) for check in found]


def test_a_driver_against_the_build(driver, tmp_path, monkeypatch):
    (check,) = gpus.driver(Subject(root=tmp_path))
    assert (check.verdict, check.message) == (
        "ok",
        "driver 580.65.06, TensorFlow built for CUDA 12.5.1",
    )
    monkeypatch.setattr(gpus, "tensorflow_build", lambda: {"is_cuda_build": True})  # a nightly one
    (check,) = gpus.driver(Subject(root=tmp_path))
    assert check.verdict == "ok"
    assert check.message.endswith("built for CUDA of an unknown version")
    monkeypatch.setattr(gpus, "tensorflow_build", lambda: {"is_cuda_build": False})
    (check,) = gpus.driver(Subject(root=tmp_path))
    assert check.verdict == "failure"
    assert "and-cuda" in check.fix


def test_a_device_on_the_bus_without_a_driver_is_a_failure(played, tmp_path):
    played("0 - nvmlInitWithFlags !13\n")
    assert verdicts(gpus.driver(Subject(root=tmp_path)))[0][0] == "not here"
    pci_device(tmp_path, "0000:00:02.0", vendor="0x8086")
    pci_device(tmp_path, "0000:00:03.0", **{"class": "0x040300"})  # its sound
    assert verdicts(gpus.driver(Subject(root=tmp_path)))[0][0] == "not here"
    pci_device(tmp_path, "0000:3b:00.0")
    (check,) = gpus.driver(Subject(root=tmp_path))
    assert check.verdict == "failure"
    assert check.message.startswith("1 NVIDIA device(s) on the PCI bus, and no driver")


def test_a_gpu_that_fell_off_the_bus_is_one_failure_with_what_to_do(driver, tmp_path, monkeypatch):
    driver(lines=f"0 1 nvmlDeviceGetMemoryInfo !{pynvml.NVML_ERROR_GPU_IS_LOST}\n")
    subject = Subject(root=tmp_path)
    found = [check for each in ON_GPUS for check in each.look(subject)]
    (check,) = [each for each in found if each.verdict == "failure"]
    assert check.message == "GPU 1 is lost: the driver lists it and cannot reach it"
    assert (check.evidence, "dmesg" in check.fix) == (("NVML: GPU is lost",), True)
    # In order is the other one only.
    assert ("ok", "GPU 0: NVIDIA Stand-In") in verdicts(found)
    assert not [each for each in found if each is not check and "GPU 1" in each.message]
    # Nothing is computed on it, and no package blamed.
    asked = asked_of(monkeypatch)
    (left_out,) = [each for each in compute_checks.on_gpus(subject) if "GPU 1" in each.message]
    assert (left_out.verdict, len(asked)) == ("not here", 1)


def test_what_cuda_visible_devices_hides(driver, monkeypatch):
    assert verdicts(gpus.visibility(Subject()))[0][0] == "ok"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,7,1")
    assert "names 3 GPUs, and CUDA takes 1" in verdicts(gpus.visibility(Subject()))[0][1]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (check,) = gpus.visibility(Subject())
    assert (check.verdict, check.fix) == ("warning", "unset CUDA_VISIBLE_DEVICES")


def asked_of(monkeypatch, answers=()):
    """Stand in for the processes; return what is asked of each."""
    asked = []

    def ask(question, what, limit_s, environment):
        asked.append((environment["CUDA_VISIBLE_DEVICES"], what["trials"]))
        return ChildAnswers(tuple(answers))

    monkeypatch.setattr(compute_checks, "ask", ask)
    return asked


def test_each_gpu_computes_alone_what_it_can(driver, monkeypatch):
    driver({"capability": "7 5", "uuid": "GPU-aaaa"})
    asked = asked_of(monkeypatch)
    list(compute_checks.on_gpus(Subject()))
    (older, trials), (newer, all_trials) = asked
    assert (older, newer) == ("GPU-aaaa", "GPU-bbbb")
    assert all_trials == list(TRIALS)
    assert {*all_trials} - {*trials} == {"tensorfloat32", "bfloat16", "fused attention"}


def test_a_gpu_that_tensorflow_does_not_take_is_told_with_both_sides(driver, monkeypatch):
    driver(lines="0 - driver 470.199.02\n")
    monkeypatch.setattr(compute_checks, "tensorflow_build", lambda: BUILD)
    asked_of(monkeypatch, [{"what": "no device"}])
    check = next(iter(compute_checks.on_gpus(Subject())))
    assert check.verdict == "failure"
    assert check.message.endswith("and TensorFlow does not see it")
    ours, theirs = check.evidence
    assert ours.startswith("driver 470.199.02, CUDA up to ")
    assert ours.endswith("compute capability 8.0")
    assert theirs.startswith("TensorFlow built for CUDA 12.5.1 and sm_60, ")
    assert "pip install 'tensorflow[and-cuda]'" in check.fix


def test_memory_that_somebody_holds(driver):
    driver(second={"memory.used": 5000 * MIB})
    free, held = gpus.memory(Subject(environment={}))
    assert free.verdict == "ok"
    assert "takes nearly all" in free.message
    assert held.verdict == "warning"
    assert "TF_FORCE_GPU_ALLOW_GROWTH=true" in held.fix
    _, held = gpus.memory(Subject(environment={"TF_FORCE_GPU_ALLOW_GROWTH": "true"}))
    assert "GROWTH" not in held.fix
