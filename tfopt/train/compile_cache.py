"""Keep the programs that XLA compiles, so that later processes do not compile them again.

TensorFlow finds a program by its operations and devices, but not by XLA's flags, and a truncated
entry makes ``fit`` end without an error. So the cache has a folder per combination of versions,
devices and flags, and removes truncated entries at a start.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from tfopt.errors import CannotCombine, DevicesAlreadyInitialised, UserError, require_count
from tfopt.files import prepare_folder
from tfopt.job.cgroup import cpu_flags
from tfopt.job.versions import library_versions
from tfopt.monitor.nvml import device_facts, driver_version

_LIMIT_MIB = 4096
_LONGEST_HEAD = 20  # two numbers of a protocol buffer
_PROGRAMS = "--tf_xla_persistent_cache_directory="
_OWN = "tfopt-xla"  # only files in this folder are removed
_AUTOTUNING = "--xla_gpu_per_fusion_autotune_cache_dir="
_CALL = "compile_cache()"
_set_by: set[str] = set()
"""The functions that have set TensorFlow's flags in this process."""


def compile_cache(folder: str | Path | None = None, *, limit_mib: int = _LIMIT_MIB) -> Path:
    """Keep XLA's programs in a folder from now on, and return it.

    Call it before TensorFlow lists a device. It sets ``TF_XLA_FLAGS``, and on a GPU ``XLA_FLAGS``
    for the results of autotuning; child processes inherit them.

    Args:
        folder: None: ``~/.cache/tfopt``. It has a subfolder per combination of versions, GPUs and
            flags.
        limit_mib: The size limit of the folder; the oldest programs are removed first.

    A second call keeps the folder of the first.

    Raises:
        UserError: TensorFlow has initialised its devices, the folder has a space in its path, or
            another call has set another folder.

    Example:
        tfopt.compile_cache()  # right after the imports
        model = build()
        model.compile("adam", "mse")
        model.fit(x, y)
    """
    require_count("limit_mib", limit_mib)
    earlier = kept_in(os.environ) if _CALL in _set_by else None
    if earlier is not None:
        base = earlier.parents[1]
        if folder is not None and Path(folder).expanduser().resolve() != base:
            raise CannotCombine(
                "This process has a compile cache in another folder.",
                expected=f"{base}, which TensorFlow has read",
                received=str(folder),
                fix="call compile_cache() once",
            )
        folder = base
    kept, variables = _prepared(os.environ, folder, limit_mib)
    set_before_devices(variables, _CALL, fix="move tfopt.compile_cache() right after the imports")
    return kept


def set_before_devices(variables: Mapping[str, str], by: str, fix: str) -> Callable[[], None]:
    """Set environment variables before TensorFlow reads them; what comes back undoes it."""
    earlier = {name: os.environ[name] for name in variables if name in os.environ}

    def undo() -> None:
        for name in variables:
            os.environ.pop(name, None)
        os.environ.update(earlier)

    if _set_by - {by}:
        raise CannotCombine(
            f"{by} comes after {', '.join(_set_by)}, which made TensorFlow read its flags.",
            expected="one of the two in a process",
            fix="set XLA_FLAGS in the environment of the process, and leave out Execution(xla=...)",
        )
    _set_by.add(by)
    os.environ.update(variables)
    if _has_devices():  # after the flags are set, since the check makes TensorFlow read them
        undo()
        raise DevicesAlreadyInitialised(
            f"{by} came too late: TensorFlow has read its flags in this process.",
            expected=f"{by} before the first tensor or model",
            fix=fix,
        )
    return undo


def kept_in(environment: Mapping[str, str]) -> Path | None:
    """Return the cache folder in an environment's flags, if any."""
    flags = environment.get("TF_XLA_FLAGS", "").split()
    folders = [flag.removeprefix(_PROGRAMS) for flag in flags if flag.startswith(_PROGRAMS)]
    return Path(folders[-1]) if folders else None


def moved_cache(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a cache of tfopt's with new XLA flags; none without a cache."""
    kept = kept_in(environment)
    if kept is None or kept.parent.name != _OWN:
        return {}
    return _prepared(environment, kept.parents[1], _LIMIT_MIB)[1]


def cache_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that make a process with this environment use the default folder.

    None on a CPU, where few chains compile and would be measured with a warm start. None if the
    environment has a folder already, or if it cannot be prepared.
    """
    with suppress(UserError, OSError):
        if device_facts() and _PROGRAMS not in environment.get("TF_XLA_FLAGS", ""):
            return _prepared(environment, None, _LIMIT_MIB)[1]
    return {}


def _prepared(
    environment: Mapping[str, str], folder: str | Path | None, limit_mib: int
) -> tuple[Path, dict[str, str]]:
    """Return the folder of the programs, and the variables for it."""
    caches = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    base = Path(folder or Path(caches, "tfopt")).expanduser().resolve() / _OWN
    if len(str(base).split()) > 1:
        raise UserError(
            "The compile cache's folder must not have a space in its path: XLA cannot read it.",
            received=str(base),
            fix="choose another folder",
        )
    prepare_folder(base)
    gpus = device_facts()
    kept = prepare_folder(base / _key([gpu.name for gpu in gpus], environment))
    variables = {"TF_XLA_FLAGS": _with_flag(environment, "TF_XLA_FLAGS", _PROGRAMS, kept)}
    if gpus:
        autotuning = prepare_folder(kept / "autotuning")
        variables["XLA_FLAGS"] = _with_flag(environment, "XLA_FLAGS", _AUTOTUNING, autotuning)
    _remove_truncated(kept)
    _remove_oldest(base, limit_mib << 20)
    return kept, variables


def without_cache(variables: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without tfopt's flags, and without variables left empty."""
    kept = dict(variables)
    for name in {"TF_XLA_FLAGS", "XLA_FLAGS"} & kept.keys():
        others = [flag for flag in kept[name].split() if not _is_ours(flag)]
        kept[name] = " ".join(others)
        if not others:
            del kept[name]
    return kept


def _is_ours(flag: str) -> bool:
    return flag.startswith((_PROGRAMS, _AUTOTUNING)) and f"/{_OWN}/" in flag


def _has_devices() -> bool:
    """Return whether TensorFlow has initialised its devices; a mere listing does not count."""
    import tensorflow as tf

    threads = tf.config.threading.get_inter_op_parallelism_threads()
    try:  # an error once devices are initialised
        tf.config.threading.set_inter_op_parallelism_threads(threads + 1)
    except RuntimeError:
        return True
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    return False


def _key(gpus: list[str], environment: Mapping[str, str]) -> str:
    """Return a hash of versions, devices and flags, on which a program depends."""
    flags = environment.get("XLA_FLAGS", "").split()
    flags = [flag for flag in flags if not flag.startswith(_AUTOTUNING)]
    processors = gpus or [cpu_flags() or platform.machine()]
    depends = [*library_versions().values(), driver_version() or "", *processors, *flags]
    return hashlib.sha256("\n".join(depends).encode()).hexdigest()[:16]


def _with_flag(environment: Mapping[str, str], variable: str, flag: str, folder: Path) -> str:
    current = environment.get(variable, "").split()
    others = [other for other in current if not other.startswith(flag)]
    return " ".join([*others, f"{flag}{folder}"])


def _remove_truncated(folder: Path) -> None:
    for path in folder.glob("*.pb"):
        with suppress(FileNotFoundError):  # another process was faster
            if not _is_whole(path):
                path.unlink()


def _is_whole(path: Path) -> bool:
    """Return whether the fields of a protocol buffer end where the file does."""
    position, size = 0, path.stat().st_size
    with path.open("rb") as file:
        while position < size:
            file.seek(position)
            head = file.read(_LONGEST_HEAD)
            try:
                kind, begins = _number(head, 0)
                length, begins = _number(head, begins)
            except IndexError:
                return False
            position += begins + (length if kind & 7 == 2 else 0)
    return position == size > 0


def _number(head: bytes, position: int) -> tuple[int, int]:
    """Return the varint at a position, and where it ends."""
    value = shift = 0
    while True:
        value |= (head[position] & 127) << shift
        shift += 7
        position += 1
        if head[position - 1] < 128:
            return value, position


def _remove_oldest(base: Path, limit: int) -> None:
    entries = list[tuple[float, int, Path]]()
    for path in base.rglob("*"):
        with suppress(FileNotFoundError):
            if path.is_file():
                facts = path.stat()
                entries.append((facts.st_mtime, facts.st_size, path))
    size = sum(entry_size for _, entry_size, _ in entries)
    for _, entry_size, path in sorted(entries):
        if size <= limit:
            return
        path.unlink(missing_ok=True)
        size -= entry_size
