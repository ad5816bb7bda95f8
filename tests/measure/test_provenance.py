"""Provenance: this machine, real git repositories, made-up control groups."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import tfopt
from tfopt.measure import provenance
from tfopt.measure.machine import Limits, container_kind, cpu_flags, cpu_model, read_limits
from tfopt.measure.provenance import (
    MASKED,
    git_state,
    package_versions,
    read_provenance,
    relevant_variables,
    tensorflow_build,
)
from tfopt.report.bench_report import Provenance

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def test_this_machine_is_described_without_loading_tensorflow(fresh_python):
    printed = fresh_python("""
        import sys
        from tfopt.measure.provenance import read_provenance
        found = read_provenance()
        print("tensorflow" in sys.modules, "keras" in sys.modules, found.packages["tensorflow"])
        """)
    assert printed.split()[:2] == ["False", "False"]
    assert printed.split()[2][0].isdigit()


def test_the_provenance_of_this_process(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    found = read_provenance()
    assert isinstance(found, Provenance)
    assert found.packages == package_versions()
    assert {"python", "tensorflow", "keras", "numpy", "tf-keras"} <= set(found.packages)
    assert found.packages["tfopt"] == tfopt.__version__
    assert found.packages["nvidia-ml-py"]
    assert found.cpu_count == len(os.sched_getaffinity(0))
    assert 0.1 < found.memory_gib < 100_000
    assert found.variables["XLA_FLAGS"] == "--xla_dump_to=x"
    assert (found.directory, found.git) == (tmp_path.name, None)


def test_the_processor_has_a_name_and_flags_that_the_system_lists():
    assert cpu_model()
    listed = Path("/proc/cpuinfo").read_text().split()
    assert set(cpu_flags()) <= set(listed)
    assert {flag for flag in ("avx2", "fma", "asimd") if flag in listed} <= set(cpu_flags())
    assert "smep" not in cpu_flags()


@needs_git
def test_the_commit_and_what_differs_from_it(tmp_path):
    def git(*arguments):
        own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, env={**os.environ, **own}
        )
        return done.stdout.decode().strip()

    git("init", "-q")
    assert git_state(tmp_path) is None
    job, new = tmp_path / "job.py", tmp_path / "new.py"
    job.write_text("a = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git("rev-parse", "HEAD")
    (tmp_path / "below").mkdir()
    (tmp_path / "report.json").write_text("{}")
    assert git_state(tmp_path) == git_state(tmp_path / "below") == commit
    job.write_text("a = 2\n")
    assert git_state(tmp_path) == f"{commit} with uncommitted changes"
    git("checkout", "-q", "job.py")
    assert git_state(tmp_path) == commit
    new.write_text("")
    assert git_state(tmp_path) == f"{commit} with uncommitted changes"


def test_without_git_there_is_no_state(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert git_state(Path(__file__).parent) is None


def test_a_git_that_hangs_is_not_waited_for(tmp_path, monkeypatch):
    """It answers for the commit and never for the changes."""
    program = tmp_path / "git"
    program.write_text(
        '#!/bin/sh\ncase "$*" in *rev-parse*) echo abc ;; *) exec /bin/sleep 60 ;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(provenance, "_PATIENCE_S", 0.5)
    assert git_state(tmp_path) == "abc; git did not tell of uncommitted changes in time"


def tree(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


def test_container_limits(tmp_path):
    group = {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "150000 100000\n"}
    tree(tmp_path, {**group, "sys/fs/cgroup/job/memory.max": f"{4 * 2**30}\n"})
    assert read_limits(tmp_path) == Limits(1.5, 4.0)
    assert read_limits(tmp_path / "none") == Limits(None, None)


@pytest.mark.parametrize(
    ("files", "variables", "expected"),
    [
        ({}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": "", ".dockerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"container": "lxc"}, "lxc"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
    ],
)
def test_the_kind_of_container(tmp_path, files, variables, expected):
    assert container_kind(tree(tmp_path, files), variables) == expected


def test_variables_that_matter_are_kept_and_secrets_are_masked():
    plain = {
        "CUDA_VISIBLE_DEVICES": "",
        "LD_PRELOAD": "libtcmalloc.so",
        "OMP_NUM_THREADS": "2",
        "TF_GPU_ALLOCATOR": "cuda_malloc_async",
        "XLA_FLAGS": "--xla",
    }
    secret = dict.fromkeys(["KERAS_PASSWORD", "NVIDIA_API_KEY", "TF_HUB_Token"], "abc")
    proxy = {"TF_PROXY": "https://user:abc@proxy:80/x"}
    others = {
        "TF_VAR_db": "abc",
        "NVIDIA_REQUIRE_CUDA": "cuda>=13",
        "HOME": "/root",
        "AWS_SECRET_ACCESS_KEY": "abc",
    }
    kept = relevant_variables({**plain, **secret, **proxy, **others})
    masked = dict.fromkeys(secret, MASKED)
    assert kept == {**plain, **masked, "TF_PROXY": f"https://{MASKED}@proxy:80/x"}
    assert list(kept) == sorted(kept)


def test_what_tensorflow_was_built_for_is_known_without_loading_it():
    import tensorflow as tf

    assert tensorflow_build() == dict(tf.sysconfig.get_build_info())


def test_stand_in_the_driver_is_named(stand_in_driver, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = read_provenance()
    assert (found.gpus, found.driver) == (("NVIDIA Stand-In",), "580.65.06")
    assert found.cuda.startswith("driver up to 12.8")
    assert found.no_gpu_reason is None
