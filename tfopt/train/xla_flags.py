"""Set XLA flags for this process; a flag that XLA does not know is an error, not a crash."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Sequence

from tfopt.errors import UserError
from tfopt.train.compile_cache import moved_cache, set_before_devices

_FLAG = re.compile(r"--xla_\w+(=\S*)?")
_PROBE_S = 60.0


def set_xla_flags(flags: Sequence[str]) -> None:
    """Add flags to ``XLA_FLAGS`` for the whole process, before TensorFlow initialises its devices.

    Other values of the same flags are replaced. A compile cache uses the folder for these flags
    from then on.
    """
    require_flags(flags)
    current = os.environ.get("XLA_FLAGS", "").split()
    if set(flags) <= set(current):
        return  # an earlier run has set them
    names = {_name(flag) for flag in flags}
    kept = [flag for flag in current if _name(flag) not in names]
    variables = {"XLA_FLAGS": " ".join([*kept, *flags])}
    variables |= moved_cache({**os.environ, **variables})
    fix = "run the job in a new process"
    undo = set_before_devices(variables, "Execution(xla=...)", fix=fix)
    try:
        for flag in flags:
            _require_known(flag)
    except UserError:
        undo()
        raise


def require_flags(flags: Sequence[object]) -> None:
    """Raise unless all flags have the form of an XLA flag."""
    for flag in flags:
        if not isinstance(flag, str) or not _FLAG.fullmatch(flag):
            raise UserError(
                "Invalid XLA flag.",
                expected='"--xla_NAME=VALUE", such as "--xla_gpu_enable_triton_gemm=false"',
                received=repr(flag),
            )


def _name(flag: str) -> str:
    return flag.partition("=")[0]


def _require_known(flag: str) -> None:
    """Raise unless a process survives this flag."""
    # A fork is safe: TensorFlow may be imported, but has not initialised its devices.
    child = multiprocessing.get_context("fork").Process(target=_read, args=(flag,))
    child.start()
    child.join(_PROBE_S)
    child.kill()
    child.join()
    if child.exitcode != 0:
        raise UserError(
            f"XLA does not know {flag}.",
            expected="a flag of this TensorFlow's XLA, with a valid value",
            fix="remove it: XLA aborts a process with an unknown flag",
        )


def _read(flag: str) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # XLA's error
    os.environ.update(XLA_FLAGS=flag, TF_XLA_FLAGS="", CUDA_VISIBLE_DEVICES="-1")
    import tensorflow as tf

    tf.function(lambda x: x + 1, jit_compile=True)(tf.constant(1.0))
