"""Provenance: this machine, real git repositories, made-up control groups."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import tfopt
from tfopt.job.versions import library_versions
from tfopt.measure.provenance import (
    MASKED,
    git_state,
    package_versions,
    read_provenance,
    relevant_variables,
)
from tfopt.report.bench_report import Provenance

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def test_this_machine_is_described_without_loading_tensorflow(fresh_python):
    printed = fresh_python("""
        import sys
        from tfopt.measure.provenance import read_provenance
        read_provenance()
        print("tensorflow" in sys.modules, "keras" in sys.modules)
        """)
    assert printed.split() == ["False", "False"]


def test_the_provenance_of_this_process(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    found = read_provenance()
    assert isinstance(found, Provenance)
    assert found.packages == package_versions()
    assert {"python", "numpy", "tensorflow-model-optimization"} <= set(found.packages)
    tensorflow, keras = library_versions().values()
    assert {tensorflow, keras} <= set(found.packages.values())
    assert found.packages["tfopt"] == tfopt.__version__
    assert found.packages["nvidia-ml-py"]
    assert found.cpu_count == len(os.sched_getaffinity(0))
    assert 0.1 < found.memory_gib < 100_000
    assert found.variables["XLA_FLAGS"] == "--xla_dump_to=x"
    assert found.git is None
    assert found.cpu
    listed, flags = Path("/proc/cpuinfo").read_text().split(), set(found.cpu_flags)
    assert {flag for flag in ("avx2", "fma", "asimd") if flag in listed} <= flags <= set(listed)


@needs_git
def test_the_commit_and_whether_files_differ_from_it(tmp_path):
    def git(*arguments):
        own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, env={**os.environ, **own}
        )
        return done.stdout.decode().strip()

    git("init", "-q")
    assert git_state(tmp_path) is None
    job = tmp_path / "job.py"
    job.write_text("a = 1\n")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    commit = git_state(tmp_path)
    assert git("rev-parse", "HEAD").startswith(commit)
    (tmp_path / "report.json").write_text("{}")
    assert git_state(tmp_path) == commit
    job.write_text("a = 2\n")
    assert git_state(tmp_path) == f"{commit}-dirty"


def test_variables_that_matter_are_kept_and_secrets_are_masked():
    plain = {
        "CUDA_VISIBLE_DEVICES": "",
        "LD_PRELOAD": "libtcmalloc.so",
        "OMP_NUM_THREADS": "2",
        "TF_GPU_ALLOCATOR": "cuda_malloc_async",
        "XLA_FLAGS": "--xla",
    }
    secret = dict.fromkeys(["KERAS_PASSWORD", "NCCL_API_KEY", "TF_HUB_Token"], "abc")
    proxy = {"TF_PROXY": "https://user:abc@proxy:80/x"}
    others = {"NVIDIA_REQUIRE_CUDA": "cuda>=13", "HOME": "/home/a", "AWS_SECRET_ACCESS_KEY": "abc"}
    # Terraform's begin as TensorFlow's do.
    others |= {"TF_VAR_region": "eu", "TF_TOKEN_host": "abc"}
    kept = relevant_variables({**plain, **secret, **proxy, **others})
    assert kept == {**plain, **dict.fromkeys([*secret, *proxy], MASKED)}
    assert list(kept) == sorted(kept)
