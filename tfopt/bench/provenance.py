"""Where figures come from: machine, limits, versions, code and settings.

Guarantees: TensorFlow is not loaded; nothing here waits long; what is not known is None.
"""

from __future__ import annotations

import platform
from pathlib import Path

import psutil

from tfopt.bench.code_state import git_state
from tfopt.bench.container import container_kind, read_limits
from tfopt.bench.packages import cuda_told, cudnn_told, package_versions
from tfopt.bench.processor import cpu_flags, cpu_model
from tfopt.bench.variables import relevant_variables
from tfopt.cores import usable_cores
from tfopt.monitor.nvml import driver_version, gpu_memories, newest_cuda, why_no_gpu
from tfopt.report.bench.provenance import Provenance


def read_provenance() -> Provenance:
    """The provenance of what this process, and the workers it starts, measure."""
    memories = gpu_memories()
    gpus = () if isinstance(memories, str) else tuple(gpu.name for gpu in memories)
    limits, packages, folder = read_limits(), package_versions(), Path.cwd()
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
        cuda=cuda_told(packages, newest_cuda()),
        cudnn=cudnn_told(packages),
        packages=packages,
        git=git_state(folder),
        variables=relevant_variables(),
        # Its name alone: a report is shown to others, a path tells of its owner.
        directory=folder.name,
    )
