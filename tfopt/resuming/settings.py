"""What a user asks of the checkpoints, checked before a training begins."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tfopt.errors import UserError
from tfopt.scalars import keep_plain, real, whole


@dataclass(frozen=True)
class Settings:
    """The arguments of ``tfopt.resume``."""

    folder: Path
    every_steps: int | None
    every_seconds: float | None
    keep: int
    on_nan: str
    rollbacks: int
    grace_seconds: float

    def __post_init__(self) -> None:
        keep_plain(self)
        for name, least in (("every_steps", 1), ("keep", 1), ("rollbacks", 0)):
            value = getattr(self, name)
            count = whole(value)
            if value is not None and (count is None or count < least):
                raise _wrong(name, f"a whole number of at least {least}", value)
        for name in ("every_seconds", "grace_seconds"):
            value = getattr(self, name)
            number = real(value)
            if value is not None and (number is None or not 0 < number < float("inf")):
                raise _wrong(name, "a number above 0", value)
        if None in (self.keep, self.rollbacks, self.grace_seconds):
            raise _wrong("keep, rollbacks or grace_seconds", "a number", None)
        if self.on_nan not in ("stop", "rollback"):
            raise _wrong("on_nan", '"stop" or "rollback"', self.on_nan)


def folder_of(path: object) -> Path:
    """The folder that a user names."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise UserError(
            "The folder of the checkpoints is not one.",
            expected="a text or a pathlib.Path",
            received=repr(path),
        )
    return Path(path).expanduser().absolute()


def _wrong(name: str, expected: str, received: object) -> UserError:
    return UserError(f"resume({name}=...) is not usable.", expected=expected, received=received)
