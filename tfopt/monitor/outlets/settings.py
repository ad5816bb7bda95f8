"""What ``tfopt.Monitor`` was asked for, checked before a training begins.

Guarantees: a wrong argument, or a package that is not there, is told when the callback is made. A
cluster's workers write beside each other, never into the same file.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from tfopt.errors import UserError
from tfopt.files import target_of
from tfopt.monitor.outlets.prometheus import require_client, require_port
from tfopt.places import place_in_cluster
from tfopt.scalars import within

SLOWEST_HZ, FASTEST_HZ = 0.1, 10.0


@dataclass(frozen=True)
class Settings:
    """Checked; ``log_dir`` and ``file`` are this worker's own."""

    hz: float
    log_dir: Path | None
    file: Path | None
    prometheus_port: int | None
    prometheus_host: str
    show: bool


def checked(
    hz: object,
    log_dir: object,
    file: object,
    prometheus_port: int | None,
    prometheus_host: str,
    show: bool,
) -> Settings:
    """Refuses what could not work."""
    if not isinstance(hz, int | float) or not within(hz, SLOWEST_HZ, FASTEST_HZ + 1e-9):
        raise UserError(
            "hz is not a rate to sample at.",
            expected=f"samples a second, from {SLOWEST_HZ} to {FASTEST_HZ:.0f}",
            received=repr(hz),
        )
    if prometheus_port is not None:
        require_port(prometheus_port)
        require_client()
    place = place_in_cluster()
    own = "" if place is None or place.workers == 1 else f"-{place.kind}-{place.index}"
    return Settings(
        float(hz),
        None if log_dir is None else _log_dir(log_dir, own),
        None if file is None else _file(file, own),
        prometheus_port,
        prometheus_host,
        show,
    )


def _log_dir(path: object, own: str) -> Path:
    """TensorBoard's own run below the folder, which need not be there yet."""
    if not isinstance(path, str | Path):
        raise UserError("log_dir is not a path.", expected="a text or a Path", received=repr(path))
    return Path(path).expanduser() / f"monitor{own}"


def _file(path: object, own: str) -> Path:
    target = target_of(path)
    if target.suffix not in (".csv", ".parquet"):
        raise UserError(
            "The samples' file has an ending that says no format.",
            expected="a path that ends in .csv or .parquet",
            received=str(path),
        )
    if target.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise UserError(
            "A Parquet file needs the package pyarrow.",
            received="no pyarrow here",
            fix="pip install 'tfopt[parquet]', or write a .csv",
        )
    return target.with_name(f"{target.stem}{own}{target.suffix}")
