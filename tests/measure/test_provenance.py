"""Provenance: of this machine, of real git repositories, and of made-up control groups."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import tfopt
from tfopt.measure import provenance as code_state
from tfopt.measure.machine import Limits, container_kind, cpu_flags, cpu_model, read_limits
from tfopt.measure.provenance import (
    MASKED,
    cuda_told,
    cudnn_told,
    git_state,
    package_versions,
    read_provenance,
    relevant_variables,
    tensorflow_build,
)
from tfopt.report.bench.bench_report import Provenance

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def test_this_machine_is_told_without_loading_tensorflow(fresh_python):
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
def test_git_is_told_with_its_commit_and_what_differs(tmp_path):
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
    commit = git("rev-parse", "HEAD")
    assert git_state(tmp_path) == commit
    (tmp_path / "below").mkdir()
    assert git_state(tmp_path / "below") == commit
    (tmp_path / "report.json").write_text("{}")
    assert git_state(tmp_path) == commit
    job.write_text("a = 2\n")
    assert git_state(tmp_path) == f"{commit} with uncommitted changes"
    git("checkout", "-q", "job.py")
    assert git_state(tmp_path) == commit
    (tmp_path / "new.py").write_text("")
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
    monkeypatch.setattr(code_state, "_PATIENCE_S", 0.5)
    assert git_state(tmp_path) == "abc; git did not tell of uncommitted changes in time"


def tree(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    return root


V1 = "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n0::/\n"
LIMITS = {
    "version 2, in the group": (
        {
            "proc/self/cgroup": "0::/job\n",
            "sys/fs/cgroup/job/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/job/memory.max": f"{4 * 2**30}\n",
        },
        Limits(1.5, 4.0),
    ),
    "version 2, a parent is narrower": (
        {
            "proc/self/cgroup": "0::/slice/job\n",
            "sys/fs/cgroup/slice/job/cpu.max": "400000 100000\n",
            "sys/fs/cgroup/slice/cpu.max": "200000 100000\n",
            "sys/fs/cgroup/slice/job/memory.max": "max\n",
            "sys/fs/cgroup/slice/memory.max": f"{2**29}\n",
        },
        Limits(2.0, 0.5),
    ),
    "version 2, none": (
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/memory.max": "max\n",
        },
        Limits(None, None),
    ),
    "version 1, seen as the host names it": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "250000\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{3 * 2**30}\n",
        },
        Limits(2.5, 3.0),
    ),
    "version 1, none": (
        {
            "proc/self/cgroup": V1,
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712\n",
        },
        Limits(None, None),
    ),
    "damaged": (
        {"proc/self/cgroup": "nonsense\n0::/\n", "sys/fs/cgroup/cpu.max": "a b c\n"},
        Limits(None, None),
    ),
    "no control groups at all": ({}, Limits(None, None)),
}


@pytest.mark.parametrize("name", LIMITS)
def test_container_limits(tmp_path, name):
    files, expected = LIMITS[name]
    assert read_limits(tree(tmp_path, files)) == expected


def test_groups_beside_this_process_s_own_do_not_count(tmp_path):
    files = {
        "proc/self/cgroup": "0::/mine\n",
        "sys/fs/cgroup/mine/memory.max": f"{2**31}\n",
        "sys/fs/cgroup/other/memory.max": f"{2**20}\n",
        "sys/memory.max": f"{2**20}\n",
    }
    assert read_limits(tree(tmp_path, files)).memory_gib == 2.0


@pytest.mark.parametrize(
    ("files", "variables", "expected"),
    [
        ({}, {}, None),
        ({"proc/self/cgroup": "0::/user.slice\n"}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": "", ".dockerenv": ""}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"container": "lxc"}, "lxc"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({"proc/self/cgroup": "1:cpu:/docker/abc\n"}, {}, "docker"),
        ({"proc/self/cgroup": "1:cpu:/kubepods/pod1/docker\n"}, {}, "kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
    ],
)
def test_the_kind_of_container(tmp_path, files, variables, expected):
    assert container_kind(tree(tmp_path, files), variables) == expected


def test_variables_that_matter_are_told_and_secrets_are_masked():
    told = relevant_variables(
        {
            "XLA_FLAGS": "--xla",
            "TF_GPU_ALLOCATOR": "cuda_malloc_async",
            "CUDA_VISIBLE_DEVICES": "",
            "LD_PRELOAD": "libtcmalloc.so",
            "OMP_NUM_THREADS": "2",
            "NVIDIA_API_KEY": "abc",
            "TF_HUB_Token": "abc",
            "KERAS_PASSWORD": "abc",
            "TF_PROXY": "https://user:abc@proxy:80/x",
            "TF_VAR_db": "abc",
            "HOME": "/root",
            "AWS_SECRET_ACCESS_KEY": "abc",
        }
    )
    assert set(told) == {
        "XLA_FLAGS",
        "TF_GPU_ALLOCATOR",
        "CUDA_VISIBLE_DEVICES",
        "LD_PRELOAD",
        "OMP_NUM_THREADS",
        "NVIDIA_API_KEY",
        "TF_HUB_Token",
        "KERAS_PASSWORD",
        "TF_PROXY",
    }
    assert "abc" not in str(told)
    assert told["NVIDIA_API_KEY"] == MASKED
    assert told["TF_PROXY"] == f"https://{MASKED}@proxy:80/x"
    assert list(told) == sorted(told)


def test_cuda_and_cudnn_are_told_as_far_as_they_are_known():
    import tensorflow as tf

    assert tensorflow_build() == dict(tf.sysconfig.get_build_info())
    installed = {"nvidia-cuda-runtime-cu12": "12.9.79", "nvidia-cudnn-cu12": "9.10.2.21"}
    told = cuda_told(installed, "13.0")
    assert told.startswith("driver up to 13.0, nvidia-cuda-runtime-cu12 12.9.79")
    assert "9.10.2.21" in cudnn_told(installed)


def test_nothing_known_of_cuda_is_none(monkeypatch):
    monkeypatch.setattr("tfopt.measure.provenance.tensorflow_build", dict)
    assert (cuda_told({}, None), cudnn_told({})) == (None, None)


def test_packages_are_those_installed():
    found = package_versions()
    assert {"python", "tfopt", "tensorflow", "keras", "numpy", "tf-keras"} <= set(found)
    assert "tensorflow-cpu" not in found or found["tensorflow-cpu"]


def test_stand_in_the_driver_is_told(stand_in_driver, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    found = read_provenance()
    assert (found.gpus, found.driver) == (("NVIDIA Stand-In",), "580.65.06")
    assert found.cuda.startswith("driver up to 12.8")
    assert found.no_gpu_reason is None
