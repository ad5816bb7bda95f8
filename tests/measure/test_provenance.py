"""Provenance: this machine, real git repositories, made-up control groups, the code of a job."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tfopt
from tfopt import Execution, Pipeline, chain
from tfopt.measure import provenance
from tfopt.measure.machine import Limits, container_kind, cpu_flags, cpu_model, read_limits
from tfopt.measure.provenance import (
    MASKED,
    code_digest,
    functions_in,
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


# The digest of a job's code: what changes it, what does not, and that nothing is run for it.

FILES = {
    "train.py": "import helper, numpy\nraise SystemExit('this file was run')\n",
    "helper.py": "def f():\n    from lib.deep import part\n",
    "lib/deep/part.py": "SIZE = 3\n",
    "other.py": "import train\n",
    "pkg/__init__.py": "",
    "pkg/job.py": "from . import model\n",
    "pkg/model.py": "import helper\n",
    "pkg/sub/by_name.py": "WIDTH = 3\n",
    "pkg/settings.toml": "width = 3\n",
    "pkg/notes.txt": "nothing\n",
    "pkg/.cache/x.py": "",
    "pkg/venv/lib/python3/site-packages/x.py": "",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    tree(tmp_path, FILES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("job", "changing"),
    [
        ("train:job", {"train.py", "helper.py", "lib/deep/part.py"}),
        (
            "pkg.job:Class.job",
            {f"pkg/{name}" for name in ("__init__.py", "job.py", "model.py", "sub/by_name.py")}
            | {"pkg/settings.toml", "helper.py", "lib/deep/part.py"},
        ),
    ],
)
def test_every_file_that_the_job_is_made_of_counts_and_no_other(folder, job, changing):
    before = code_digest([job])
    assert code_digest([job]) == before
    found = set()
    for name, text in FILES.items():
        (folder / name).write_text(text + "# an edit\n")
        if code_digest([job]) != before:
            found.add(name)
        (folder / name).write_text(text)
    assert found == changing
    assert "train" not in sys.modules


def test_a_file_that_comes_counts(folder):
    before = code_digest(["pkg.job:job"])
    (folder / "pkg/sub/new.py").touch()
    assert code_digest(["pkg.job:job"]) != before


def test_the_same_files_elsewhere_are_the_same_code(folder, monkeypatch):
    before = code_digest(["train:job"])
    tree(folder / "elsewhere", FILES)
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder / "empty")
    assert code_digest(["train:job"]) != before
    # Where a worker looks, and this process does not.
    monkeypatch.setenv("PYTHONPATH", str(folder / "elsewhere"))
    assert code_digest(["train:job"]) == before


def test_functions_that_a_chain_names_count(folder):
    found = list(functions_in(chain(Execution(steps_per_execution=2), Pipeline(map="helper:f"))))
    assert found == ["helper:f"]
    assert code_digest(["pkg.job:job", *found]) == code_digest(["pkg.job:job"])
    assert code_digest(["other:job", "train:job"]) != code_digest(["train:job"])


def test_what_is_installed_counts_only_where_it_is_the_job(folder, monkeypatch):
    home = folder / "lib/python3/site-packages"
    tree(home, {"installed/__init__.py": "", "installed/job.py": "import beside\n"})
    tree(home, {"beside.py": ""})
    monkeypatch.syspath_prepend(str(home))
    before = code_digest(["installed.job:job"])
    (home / "beside.py").write_text("# an edit")
    assert code_digest(["installed.job:job"]) == before
    (home / "installed/job.py").write_text("# an edit")
    assert code_digest(["installed.job:job"]) != before


@pytest.mark.parametrize("content", [b"import (\n", b"\x00", b"x = " + b"(" * 5000])
def test_a_file_that_is_no_python_counts_as_it_is(folder, content):
    before = code_digest(["train:job"])
    Path("train.py").write_bytes(content)
    assert code_digest(["train:job"]) != before


def test_a_module_that_is_not_there_is_refused_later(folder):
    assert code_digest(["nowhere:job"]) == code_digest(["neither.here:job"])
    assert code_digest(["sys:job"])


def test_a_huge_folder_is_not_read_to_its_end(folder, monkeypatch):
    monkeypatch.setattr(provenance, "MOST_FILES", 4)
    before = code_digest(["pkg.job:job"])
    (folder / "pkg/sub/by_name.py").write_text("WIDTH = 4\n")
    assert code_digest(["pkg.job:job"]) == before
    (folder / "pkg/model.py").write_text("")
    assert code_digest(["pkg.job:job"]) != before
