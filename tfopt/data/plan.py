"""Describe an input pipeline as one validated value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tfopt.errors import (
    CannotCombine,
    UserError,
    keep_plain,
    require_count,
    require_one_of,
    require_switch,
    short_repr,
)

Prefetch = int | Literal["auto"]
Function = str | Callable[..., Any] | None
FILE = "file:"


@dataclass(frozen=True, repr=False)
class PipelineOptions:
    """Rarely needed settings of a pipeline.

    Example:
        tfopt.pipeline(data, batch_size=64, options=PipelineOptions(drop_remainder=True))

    Attributes:
        buffer: Size of the shuffle buffer of a stream; arrays are shuffled whole.
        drop_remainder: Drop a smaller last batch, so that all batches have one shape.
        autoshard: How several workers divide the data. With "data" each worker reads everything
            and takes its part of every batch; with "off" each worker has different files, such
            as ``Parquet(f"rows/of-{replicas.rank}/")``.
    """

    buffer: int = 10_000
    drop_remainder: bool = False
    autoshard: Literal["data", "off"] = "data"

    def __repr__(self) -> str:
        return short_repr(self)

    def __post_init__(self) -> None:
        keep_plain(self)
        # A buffer of one would not shuffle.
        require_count("PipelineOptions.buffer", self.buffer, minimum=2)
        require_switch("PipelineOptions.drop_remainder", self.drop_remainder)
        require_one_of("PipelineOptions.autoshard", self.autoshard, ("data", "off"))


@dataclass(frozen=True)
class Plan:
    """The arguments of ``tfopt.pipeline``."""

    batch_size: int | None = None
    shuffle: bool | None = None
    cache: str | None = None
    map: Function = None
    map_batch: Function = None
    augment: Any = None
    deterministic: bool = True
    prefetch: Prefetch = "auto"
    service: str | None = None
    examples: int | None = None
    options: PipelineOptions = field(default_factory=PipelineOptions)

    def __post_init__(self) -> None:
        keep_plain(self)
        grpc = isinstance(self.service, str) and self.service.startswith("grpc://")
        if self.service is not None and not grpc:
            raise UserError(
                "service is not the address of a data service.",
                expected='"grpc://host:port" as `tfopt launch --data-workers` prints it',
                received=repr(self.service),
            )
        for setting, value in (("cache", self.cache), ("shuffle", self.shuffle)):
            if self.service is not None and value not in (None, True):
                raise CannotCombine(
                    f"A data service cannot be combined with {setting}={value!r}: its workers "
                    "divide every epoch differently, and batches arrive in no fixed order.",
                    fix=f"drop service= or {setting}=",
                )
        for name in ("batch_size", "examples"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name))
        if self.shuffle is not None:
            require_switch("shuffle", self.shuffle, "True, False, or None: as fit would")
        require_switch("deterministic", self.deterministic)
        if self.prefetch != "auto":
            require_count("prefetch", self.prefetch, minimum=0)
        _check_cache(self.cache)
        if not isinstance(self.options, PipelineOptions):
            raise UserError(
                "options has the wrong type.",
                expected="tfopt.data.PipelineOptions(...)",
                received=repr(self.options),
            )

    @property
    def cache_file(self) -> Path | None:
        """Return the path prefix of a cache on disk; None without one."""
        if self.cache is None or not self.cache.startswith(FILE):
            return None
        return Path(self.cache.removeprefix(FILE)).expanduser()


def _check_cache(cache: object) -> None:
    on_disk = isinstance(cache, str) and cache.startswith(FILE) and len(cache) > len(FILE)
    if cache not in (None, "memory") and not on_disk:
        raise UserError(
            "Invalid `cache`.",
            expected='None, "memory", or "file:" and a path, as in "file:/scratch/train"',
            received=repr(cache),
            fix=f"write {FILE + cache!r}" if isinstance(cache, str) and "/" in cache else None,
        )
