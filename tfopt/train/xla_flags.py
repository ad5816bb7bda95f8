"""Set flags of XLA's for this process; one that XLA does not know is an error, not its end."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Mapping, Sequence

from tfopt.errors import UserError
from tfopt.train.compile_cache import moved_cache, set_before_devices

_FLAG = re.compile(r"--xla_\w+(=\S*)?")
_PROBED_S = 60.0


def set_xla_flags(flags: Sequence[str]) -> None:
    """Add flags to ``XLA_FLAGS`` for the whole process, before TensorFlow has its devices.

    A flag that is there with another value is replaced. The programs of a compile cache are kept
    in the folder for these flags from then on.
    """
    require_flags(flags)
    given = os.environ.get("XLA_FLAGS", "").split()
    if set(flags) <= set(given):
        return  # an earlier run has set them
    names = {_name(flag) for flag in flags}
    kept = [flag for flag in given if _name(flag) not in names]
    variables = {"XLA_FLAGS": " ".join([*kept, *flags])}
    variables |= moved_cache({**os.environ, **variables})
    fix = "run the job in a new process"
    earlier = set_before_devices(variables, "Execution(xla=...)", fix=fix)
    try:
        _require_known(flags)
    except UserError:
        os.environ.update(earlier)
        raise


def require_flags(flags: Sequence[object]) -> None:
    """Refuse what is no flag of XLA's by its form."""
    for flag in flags:
        if not isinstance(flag, str) or not _FLAG.fullmatch(flag):
            raise UserError(
                "This is no flag of XLA's.",
                expected='"--xla_NAME=VALUE", such as "--xla_gpu_enable_triton_gemm=false"',
                received=repr(flag),
            )


def _name(flag: str) -> str:
    return flag.partition("=")[0]


def _require_known(flags: Sequence[str]) -> None:
    if _are_known(flags):
        return
    unknown = [flag for flag in flags if not _are_known([flag])]
    raise UserError(
        f"XLA does not take {' '.join(unknown or flags)}.",
        expected="flags of the XLA in this TensorFlow, with values that they take",
        fix="leave it out: XLA ends a process that has it",
    )


def _are_known(flags: Sequence[str]) -> bool:
    """Return whether a process that reads these flags lives."""
    variables = {"XLA_FLAGS": " ".join(flags), "TF_XLA_FLAGS": "", "CUDA_VISIBLE_DEVICES": "-1"}
    # Forked as what measures is: TensorFlow is loaded at most, and has not started.
    child = multiprocessing.get_context("fork").Process(target=_read, args=(variables,))
    child.start()
    child.join(_PROBED_S)
    child.kill()
    child.join()
    return child.exitcode == 0


def _read(variables: Mapping[str, str]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # XLA's words about it
    os.environ.update(variables)
    import tensorflow as tf

    tf.function(lambda x: x + 1, jit_compile=True)(tf.constant(1.0))
