"""The environment variables that change how TensorFlow, CUDA, Keras and the threads behave.

Guarantees: a value whose name or form looks like a secret is masked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

MASKED = "(masked)"

_PREFIXES = (
    "TF_",
    "CUDA_",
    "NVIDIA_",
    "CUDNN_",
    "CUBLAS_",
    "NCCL_",
    "XLA_",
    "KERAS_",
    "OMP_",
    "GOMP_",
    "MKL_",
    "KMP_",
    "OPENBLAS_",
    "ONEDNN_",
    "DNNL_",
    "MALLOC_",
)
# Terraform's.
_NOT = ("TF_VAR_", "TF_CLI_", "TF_TOKEN_")
_NAMES = frozenset(
    {
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "GLIBC_TUNABLES",
        "PYTHONHASHSEED",
        "PYTHONMALLOC",
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "SLURM_JOB_PARTITION",
        "SLURM_NNODES",
        "SLURM_NTASKS",
        "SLURM_CPUS_PER_TASK",
        "SLURM_GPUS_ON_NODE",
    }
)
_SECRET_NAME = re.compile("TOKEN|KEY|PASSWORD|PASSWD|SECRET|CREDENTIAL", re.IGNORECASE)
_SECRET_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def relevant_variables(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those that are set, in alphabetical order."""
    return {
        name: MASKED if _SECRET_NAME.search(name) else _SECRET_IN_ADDRESS.sub(MASKED, value)
        for name, value in sorted(variables.items())
        if name in _NAMES or (name.startswith(_PREFIXES) and not name.startswith(_NOT))
    }
