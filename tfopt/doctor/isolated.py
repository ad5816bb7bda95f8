"""Ask a process of its own, and keep what it answers before it hangs or crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tfopt.errors import UserError
from tfopt.export.child import Child


@dataclass(frozen=True)
class Answered:
    """What the other process answered.

    Attributes:
        answers: In the order in which they were given.
        ended: None where all was answered; else why the process ended, and its last words.
        at: The stage at which it ended too early.
    """

    answers: tuple[Any, ...]
    ended: str | None = None
    at: str = ""


def ask(
    question: Callable[[Mapping[str, Any]], Iterator[Any]],
    asked: Mapping[str, Any],
    limit_s: float,
    environment: Mapping[str, str] | None = None,
) -> Answered:
    """Return what a generator function yields in another process; texts name its next stage."""
    answers: list[Any] = []
    at = "starting Python"
    try:
        with Child(
            gpu=True, environment={"TF_CPP_MIN_LOG_LEVEL": "2", **(environment or {})}
        ) as child:
            for each in child.each(question, asked, limit_s=limit_s):
                if isinstance(each, str):
                    at = each
                else:
                    answers.append(each)
    except (UserError, RuntimeError) as error:
        return Answered(tuple(answers), str(error), at)
    return Answered(tuple(answers))
