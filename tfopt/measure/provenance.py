"""Record where figures come from: machine, limits, versions, code and settings.

TensorFlow is not loaded, nothing here waits long, and what is not known is None.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

import psutil

import tfopt
from tfopt.files import text_of
from tfopt.job.cgroup import cpu_flags, cpu_quota, memory_limit_gib, usable_cores
from tfopt.monitor.nvml import driver_version, gpu_memories, newest_cuda
from tfopt.report.bench_report import Provenance
from tfopt.train.compile_cache import without_cache

_GIT = ("git", "--no-optional-locks", "describe", "--always", "--dirty")
_GIT_TIMEOUT_S = 10.0


def git_state(folder: Path) -> str | None:
    """Return what ``git describe`` says of the code in a folder; None outside of git."""
    try:
        done = subprocess.run(
            _GIT, cwd=folder, capture_output=True, text=True, timeout=_GIT_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# Variables that change how TensorFlow, CUDA, Keras and threads behave; secrets are masked.
MASKED = "(masked)"
_PREFIXES = """
    TF_ CUDA_ CUDNN_ CUBLAS_ NCCL_ XLA_ KERAS_ OMP_ GOMP_ MKL_ KMP_ OPENBLAS_ ONEDNN_ DNNL_ MALLOC_
    NVIDIA_TF32_OVERRIDE NVIDIA_VISIBLE_DEVICES LD_PRELOAD LD_LIBRARY_PATH
"""
# Terraform's, which a shared report has no business with.
_NOT = ("TF_VAR_", "TF_CLI_", "TF_TOKEN_")
_SECRET_NAME = re.compile("TOKEN|KEY|PASSW|SECRET|CREDENTIAL", re.IGNORECASE)
_ADDRESS_WITH_PASSWORD = re.compile(r"://[^/\s]+@")


def relevant_variables(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that are set, sorted by name, without those of the compile cache."""

    def is_secret(name: str, value: str) -> bool:
        return bool(_SECRET_NAME.search(name) or _ADDRESS_WITH_PASSWORD.search(value))

    return {
        name: MASKED if is_secret(name, value) else value
        for name, value in sorted(without_cache(variables).items())
        if name.startswith(tuple(_PREFIXES.split())) and not name.startswith(_NOT)
    }


_NAMED = """
    tensorflow tensorflow-cpu tf-nightly keras keras-nightly tf-keras tensorflow-model-optimization
    tensorflow-datasets
    ai-edge-litert ml-dtypes numpy psutil
"""


def package_versions() -> dict[str, str]:
    """Return the versions of Python, tfopt, what of the rest is installed, and all of NVIDIA's."""
    found = {"python": platform.python_version(), "tfopt": tfopt.__version__}
    for name in _NAMED.split():
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    nvidia = {
        name.lower(): package.version
        for package in distributions()
        if (name := package.metadata["Name"] or "").lower().startswith("nvidia-")
    }
    return {**found, **dict(sorted(nvidia.items()))}


# What kernels are chosen by: vector and matrix units, and the half precisions.
_MATTERS = ("amx", "asimd", "avx", "bf16", "f16c", "fma", "fphp", "i8mm", "neon", "sve")


def cpu_model() -> str:
    """Return the processor's name, as the system has it."""
    named = re.search(r"^model name\s*: (.+)", text_of(Path("/proc/cpuinfo")), re.MULTILINE)
    return named[1] if named else platform.processor() or "unknown"


def read_provenance() -> Provenance:
    """Return the provenance of what this process, and the workers it starts, measure."""
    flags = set(cpu_flags().split())
    return Provenance(
        platform=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=cpu_model(),
        cpu_flags=tuple(sorted(flag for flag in flags if flag.startswith(_MATTERS))),
        cpu_count=usable_cores(),
        cpu_limit=cpu_quota(),
        memory_gib=round(psutil.virtual_memory().total / 1024**3, 1),
        memory_limit_gib=memory_limit_gib(),
        gpus=tuple(gpu.name for gpu in gpu_memories()),
        driver=driver_version(),
        cuda=newest_cuda(),
        packages=package_versions(),
        git=git_state(Path.cwd()),
        variables=relevant_variables(),
    )
