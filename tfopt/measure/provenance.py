"""Record where figures come from: machine, limits, versions, code and settings.

TensorFlow is not loaded, nothing here waits long, and what is not known is None.
"""

from __future__ import annotations

import ast
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, distributions, version
from pathlib import Path
from typing import Any

import psutil

import tfopt
from tfopt.job.cluster_place import usable_cores
from tfopt.measure.machine import container_kind, cpu_flags, cpu_model, read_limits
from tfopt.monitor.nvml import driver_version, gpu_memories, newest_cuda, why_no_gpu
from tfopt.report.bench_report import Provenance

# Which version of the code in a folder was measured, as git knows it.

_PATIENCE_S = 10.0
# What git does not know and a job may be made of.
_SOURCE_FILES = ("*.py", "*.toml")


def git_state(folder: Path) -> str | None:
    """Return the commit, and whether files differ from it; None outside of git.

    Files that git does not know count where they are Python or TOML: a report does not.
    """
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    unknown = _git(folder, "ls-files", "--others", "--exclude-standard", "--", *_SOURCE_FILES)
    if changed or unknown:
        return f"{commit} with uncommitted changes"
    if changed is None or unknown is None:
        return f"{commit}; git did not tell of uncommitted changes in time"
    return commit


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git prints, or None where there is no git, no repository or no answer in time."""
    # Without these, asking may refresh the index, and may start the repository's own programs.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=True,
            env={**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# The environment variables that change how TensorFlow, CUDA, Keras and the threads behave.
#
# A value whose name or form looks like a secret is masked.

MASKED = "(masked)"

_PREFIXES = """
    TF_ CUDA_ NVIDIA_ CUDNN_ CUBLAS_ NCCL_ XLA_ KERAS_ OMP_ GOMP_ MKL_ KMP_ OPENBLAS_ ONEDNN_ DNNL_
    MALLOC_
"""
# Terraform's, and what NVIDIA's images ask of a driver.
_NOT = ("TF_VAR_", "TF_CLI_", "TF_TOKEN_", "NVIDIA_REQUIRE_")
_NAMES = """
    LD_PRELOAD LD_LIBRARY_PATH GLIBC_TUNABLES PYTHONHASHSEED PYTHONMALLOC SLURM_JOB_ID
    SLURM_JOB_NODELIST SLURM_JOB_PARTITION SLURM_NNODES SLURM_NTASKS SLURM_CPUS_PER_TASK
    SLURM_GPUS_ON_NODE
"""
_SECRET_NAME = re.compile("TOKEN|KEY|PASSWORD|PASSWD|SECRET|CREDENTIAL", re.IGNORECASE)
_SECRET_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def relevant_variables(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return those that are set, in alphabetical order."""
    return {
        name: MASKED if _SECRET_NAME.search(name) else _SECRET_IN_ADDRESS.sub(MASKED, value)
        for name, value in sorted(variables.items())
        if name in _NAMES.split()
        or (name.startswith(tuple(_PREFIXES.split())) and not name.startswith(_NOT))
    }


# Versions of what is installed, read without loading any of it.

_NAMED = """
    tensorflow tensorflow-cpu keras tf-keras tensorflow-model-optimization tensorflow-datasets
    ai-edge-litert ml-dtypes numpy psutil
"""
_BUILD_INFO = "tensorflow/python/platform/build_info.py"


def package_versions() -> dict[str, str]:
    """Return the versions of Python, tfopt, what of the rest is installed, and all of NVIDIA's."""
    found = {"python": platform.python_version(), "tfopt": tfopt.__version__}
    for name in _NAMED.split():
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    nvidia = {
        name.lower(): each.version
        for each in distributions()
        if (name := each.metadata["Name"] or "").lower().startswith("nvidia-")
    }
    return {**found, **dict(sorted(nvidia.items()))}


def tensorflow_build() -> dict[str, Any]:
    """Return what TensorFlow says it was built with; empty where it does not."""
    for package in ("tensorflow", "tensorflow-cpu"):
        try:
            path = distribution(package).locate_file(_BUILD_INFO)
            return _literal(Path(str(path)).read_text(encoding="utf-8"))
        except (PackageNotFoundError, OSError, SyntaxError, ValueError):
            continue
    return {}


def _literal(source: str) -> dict[str, Any]:
    """Return the pairs in ``build_info = collections.OrderedDict([...])``."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            return dict(ast.literal_eval(node.value.args[0]))
    return {}


def read_provenance() -> Provenance:
    """Return the provenance of what this process, and the workers it starts, measure."""
    memories = gpu_memories()
    gpus = () if isinstance(memories, str) else tuple(gpu.name for gpu in memories)
    limits, build, folder = read_limits(), tensorflow_build(), Path.cwd()
    cuda = {"driver up to": newest_cuda(), "TensorFlow built for": build.get("cuda_version")}
    return Provenance(
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu_model(),
        cpu_flags=cpu_flags(),
        cpu_count=usable_cores(),
        cpu_limit=limits.cpu,
        memory_gib=round(psutil.virtual_memory().total / 1024**3, 1),
        memory_limit_gib=limits.memory_gib,
        container=container_kind(),
        gpus=gpus,
        no_gpu_reason=None if gpus else why_no_gpu(),
        driver=driver_version(),
        cuda=", ".join(f"{what} {found}" for what, found in cuda.items() if found) or None,
        cudnn=build.get("cudnn_version"),
        packages=package_versions(),
        git=git_state(folder),
        variables=relevant_variables(),
        # Its name alone: a report is shown to others, a path tells of its owner.
        directory=folder.name,
    )
