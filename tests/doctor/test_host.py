"""Checks of host and disk: real limits, a real small file system, control groups in a folder."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

from tfopt.doctor import disk_checks as disk
from tfopt.doctor import host_checks as host
from tfopt.doctor.check import Subject


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


def test_cores_against_a_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "usable_cores", lambda: 8)
    check = only(host.cores(in_group(tmp_path, cpu_max="250000 100000")))
    assert check.verdict == "warning"
    assert "2.5 cores" in check.told
    assert "threads for 8" in check.told
    assert "TF_NUM_INTRAOP_THREADS=2" in check.fix
    assert "8 of" in check.evidence[0]
    (tmp_path / "sys/fs/cgroup/job/cpu.max").write_text("max 100000")
    check = only(host.cores(Subject(root=tmp_path)))
    assert (check.verdict, check.fix) == ("ok", None)
    assert "no quota" in check.evidence


def test_few_cores_for_the_gpus(tmp_path, stand_in_driver, monkeypatch):
    stand_in_driver.gpus += [stand_in_driver.another_gpu(uuid="GPU-bbbb")]
    monkeypatch.setattr(host, "usable_cores", lambda: 7)
    assert "7 cores feed 2 GPU(s)" in only(host.cores(Subject(root=tmp_path))).told
    monkeypatch.setattr(host, "usable_cores", lambda: 8)
    assert only(host.cores(Subject(root=tmp_path))).verdict == "ok"


def test_memory_of_a_container_against_the_gpus(tmp_path, stand_in_driver):
    subject = in_group(tmp_path, memory_max=str(4 * 1024**3))
    check = only(host.memory(subject))  # the stand-in has 8000 MiB
    assert check.verdict == "warning"
    assert "4 GiB of memory for GPUs with 8 GiB" in check.told
    assert "a limit of 4 GiB (cgroup)" in check.evidence


@pytest.mark.parametrize(
    ("given", "words", "fix"),
    [
        ({"OMP_NUM_THREADS": "many"}, "is not a number", "unset OMP_NUM_THREADS"),
        ({"TF_NUM_INTRAOP_THREADS": "99"}, "more than the 4 cores", "=4"),
        ({"OMP_NUM_THREADS": "1"}, "leaves 3 of 4 cores unused", "unset"),
        ({}, "TensorFlow's own choice", None),
        ({"OMP_NUM_THREADS": "4"}, "as set", None),
        ({"TF_NUM_INTEROP_THREADS": "1"}, "as set", None),
    ],
)
def test_threads_against_the_cores(monkeypatch, given, words, fix):
    monkeypatch.setattr(host, "usable_cores", lambda: 4)
    check = only(host.threads(Subject(environment=given)))
    assert check.verdict == ("warning" if fix else "ok")
    assert words in check.told
    assert (fix or "") in (check.fix or "")


def test_numa_nodes_that_the_process_may_run_on(tmp_path):
    own = sorted(os.sched_getaffinity(0))
    assert only(host.nodes(Subject(root=tmp_path))).verdict == "not here"
    for name, cores in (("node0", own[0]), ("node1", f"{own[-1] + 1000}-{own[-1] + 1003}")):
        (tmp_path / "sys/devices/system/node" / name).mkdir(parents=True)
        (tmp_path / "sys/devices/system/node" / name / "cpulist").write_text(f"{cores}\n")
    check = only(host.nodes(Subject(root=tmp_path)))
    assert check.told == "2, of which this process may run on 1"
    assert len(check.evidence) == 2


def python(code, *before):
    script = textwrap.dedent(code)
    return subprocess.run(
        [*before, sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )


def test_a_small_dev_shm_has_the_fix_of_its_container(tmp_path):
    (tmp_path / "dev/shm").mkdir(parents=True)
    code = f"""
    import json, subprocess
    from pathlib import Path
    from tfopt.doctor import host_checks as host
    from tfopt.doctor.check import Subject
    root = Path({str(tmp_path)!r})
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", root / "dev/shm"], check=True)
    (root / ".dockerenv").touch()
    (check,) = host.shared_memory(Subject(root=root, environment={{}}))
    print(json.dumps(vars(check)))
    """
    done = python(code, "unshare", "--map-root-user", "--mount")
    if "unshare" in done.stderr or "mount" in done.stderr.lower():
        pytest.skip(f"no file systems can be mounted here: {done.stderr.splitlines()[-1]}")
    check = json.loads(done.stdout)
    assert check["verdict"] == "warning"
    assert "0.0156 GiB free" in check["told"]
    assert check["fix"] == "docker run --shm-size=2g, or --ipc=host"


def test_a_missing_dev_shm_is_a_warning(tmp_path):
    check = only(host.shared_memory(Subject(root=tmp_path, environment={})))
    assert check.verdict == "warning"
    assert "is not there" in check.told


def test_real_limits_of_a_process():
    lines = python("""
    import resource
    from tfopt.doctor import host_checks as host
    from tfopt.doctor.check import Subject
    for kind, limit in (("NOFILE", 4096), ("NOFILE", 256), ("AS", 2**36)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{kind}"), (limit, limit))
        (check,) = host.limits(Subject())
        print(check.verdict, check.told)
    """).stdout.splitlines()
    assert lines[0] == "ok none that matters"
    assert lines[1].startswith("warning only 256 files")
    assert lines[2].startswith("warning the address space is limited")


def test_a_folder_is_really_read_and_left_as_it_was(tmp_path):
    (tmp_path / "small").write_bytes(b"x")
    rate = disk.read_rate(tmp_path)
    assert rate.mib_per_s > 0
    assert rate.how.startswith("64 MiB of a file written for this")
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_the_users_own_largest_file_is_read(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/shard.tfrecord").write_bytes(os.urandom(20 * 1024**2))
    (tmp_path / "index").write_bytes(b"x" * 100)
    before = (tmp_path / "deep/shard.tfrecord").stat().st_mtime
    checks = list(disk.disk(Subject(data=tmp_path)))
    assert [check.name for check in checks] == ["free space", "read rate"]
    assert "20 MiB of shard.tfrecord in sequence" in checks[1].evidence[0]
    assert (tmp_path / "deep/shard.tfrecord").stat().st_mtime == before


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path):
    # The test may run as root, whom no permission stops: /proc takes no files from anybody.
    checks = list(disk.disk(Subject(data=disk.Path("/proc/self/fd"))))
    assert checks[-1].verdict == "warning"
    assert "could not be read" in checks[-1].told
