"""Describe an input pipeline as one validated value.

Whether it fits its data, this machine and its disk is found out when the pipeline is built.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tfopt.data.service import require_service
from tfopt.errors import (
    CannotCombine,
    UserError,
    keep_plain,
    require_count,
    require_switch,
    short_repr,
)

Prefetch = int | Literal["auto"]
Function = str | Callable[..., Any] | None
FILE = "file:"


@dataclass(frozen=True, repr=False)
class PipelineOptions:
    """What few pipelines need.

    Example:
        tfopt.pipeline(data, batch_size=64, options=PipelineOptions(drop_remainder=True))

    Attributes:
        buffer: Examples among which a stream is shuffled; arrays are shuffled whole.
        drop_remainder: Leave out a last batch that is smaller, so that every step has one shape.
        autoshard: How several workers divide the data. With "data" each reads everything and
            takes its part of every batch; "off" is no sharing: each worker has data of its own,
            such as ``Parquet(f"rows/of-{replicas.rank}/")``.
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
        if self.autoshard not in ("data", "off"):
            raise UserError(
                "PipelineOptions.autoshard has an unknown value.",
                expected='"data" or "off"',
                received=repr(self.autoshard),
                fix='give each worker files of its own, and autoshard="off"',
            )


@dataclass(frozen=True)
class Plan:
    """The arguments of ``tfopt.pipeline``, which are documented there."""

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
        require_service(self.service)
        for setting, value in (("cache", self.cache), ("shuffle", self.shuffle)):
            if self.service is not None and value not in (None, True):
                raise CannotCombine(
                    f"A data service cannot be combined with {setting}={value!r}: its workers "
                    "share out each epoch anew, and hand over what is done first.",
                    fix=f"drop service or {setting}",
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
                "options are of the wrong type.",
                expected="tfopt.data.PipelineOptions(...)",
                received=repr(self.options),
            )

    @property
    def cache_file(self) -> Path | None:
        """Return where a cache on disk begins; TensorFlow appends to this name."""
        if self.cache is None or not self.cache.startswith(FILE):
            return None
        return Path(self.cache.removeprefix(FILE)).expanduser()


def _check_cache(cache: object) -> None:
    named = isinstance(cache, str) and cache.startswith(FILE) and len(cache) > len(FILE)
    if cache not in (None, "memory") and not named:
        raise UserError(
            "cache has an unknown value.",
            expected='None, "memory", or "file:" and a path, as in "file:/scratch/train"',
            received=repr(cache),
            fix=f"write {FILE + cache!r}" if isinstance(cache, str) and "/" in cache else None,
        )
