"""What machine and versions a report comes from, read without loading TensorFlow."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import psutil

import tfopt
from tfopt.bench.processor import cpu_model
from tfopt.cores import usable_cores
from tfopt.monitor.nvml import driver_version, gpu_memories, why_no_gpu
from tfopt.report.schema import Environment


def read_environment() -> Environment:
    """The environment of this process and of the workers it starts."""
    memories = gpu_memories()
    names = () if isinstance(memories, str) else tuple(gpu.name for gpu in memories)
    return Environment(
        python=platform.python_version(),
        tensorflow=_version("tensorflow"),
        keras=_version("keras"),
        tfopt=tfopt.__version__,
        numpy=_version("numpy"),
        platform=f"{platform.system()} {platform.machine()}",
        cpu=cpu_model(),
        cpu_count=usable_cores(),
        memory_gib=round(psutil.virtual_memory().total / 1024**3, 1),
        gpus=names,
        driver=driver_version(),
        no_gpu_reason=None if names else why_no_gpu(),
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed as a package"
