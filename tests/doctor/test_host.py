"""Checks of host and disk: real limits, a real small file system, control groups in a folder."""

from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

from nvml_stand_in.library import gpu

from tfopt import keras_internals
from tfopt.distribute import replicas
from tfopt.doctor import host_checks as host
from tfopt.doctor.check import Subject
from tfopt.measure.provenance import cpu_model


def only(found):
    (check,) = found
    return check


def in_group(root, **files):
    group = root / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    for name, text in files.items():
        (group / name.replace("_", ".", 1)).write_text(text)
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/job\n")
    return Subject(root=root, environment={})


def test_names_that_keras_has_no_longer_are_told_with_what_needs_them(monkeypatch):
    before = len([*host.versions(Subject())])
    more = "resume: _gone_with_the_next_keras\nsplit: _value _gone_with_the_next_keras\n"
    monkeypatch.setattr(keras_internals, "NEEDED_BY", keras_internals.NEEDED_BY + more)
    *others, check = host.versions(Subject())
    assert len(others) == before
    assert check.verdict == "warning"
    assert "_gone_with_the_next_keras" in check.message
    assert check.message.endswith("does not work: resume, split")


def test_nightly_packages_are_among_the_versions(monkeypatch):
    nightly = {"tf-nightly": "2.23.0.dev1", "keras-nightly": "3.16.0.dev1"}

    def version(name):
        if name not in nightly:
            raise PackageNotFoundError(name)
        return nightly[name]

    monkeypatch.setattr("tfopt.job.versions.version", version)
    first = next(iter(host.versions(Subject())))
    assert "TensorFlow 2.23.0.dev1, Keras 3.16.0.dev1" in first.message


def test_a_keras_that_distribute_refuses_is_a_warning(monkeypatch):
    refused = []
    for number in ("3.10.0", "3.9.2"):
        monkeypatch.setattr(replicas, "library_versions", lambda number=number: {"Keras": number})
        checks = host.versions(Subject())
        refused += [check for check in checks if check.message.startswith("distribute() is ref")]
    check = only(refused)
    assert check.verdict == "warning"
    assert check.message.endswith("Found: Keras 3.9.2")
    assert "keras>=3.10" in check.fix


def test_cores_against_a_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "allowed_cores", lambda: 8)
    check = only(host.cores(in_group(tmp_path, cpu_max="250000 100000")))
    assert check.message == "the container may use 2.5 cores, and TensorFlow starts threads for 8"
    (tmp_path / "sys/fs/cgroup/job/cpu.max").write_text("max 100000")
    check = only(host.cores(Subject(root=tmp_path)))
    assert check.message == f"8 cores of {cpu_model()}"


def test_memory_of_a_container_against_the_gpus(tmp_path, played):
    played(gpu(0))  # of 40 GiB
    subject = in_group(tmp_path, memory_max=str(4 * 1024**3))
    check = only(host.memory(subject))
    assert check.verdict == "warning"
    assert "4 GiB of memory for GPUs with 40 GiB" in check.message
    assert "a limit of 4 GiB (cgroup)" in check.evidence


def test_a_small_dev_shm_has_its_fix(tmp_path, monkeypatch):
    check = only(host.shared_memory(Subject(root=tmp_path, environment={})))
    assert check.verdict == "warning"
    assert "does not exist" in check.message
    usage = SimpleNamespace(free=16 * 1024**2)
    monkeypatch.setattr(host.psutil, "disk_usage", lambda path: usage)
    check = only(host.shared_memory(Subject(root=tmp_path, environment={})))
    assert check.verdict == "warning"
    assert "0.0156 GiB free" in check.message
    assert "--shm-size=2g" in check.fix
