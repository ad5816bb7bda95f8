"""Work in this process that may hang: a driver, a network file system, a name server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def within(limit_s: float, work: Callable[[], T]) -> T:
    """What ``work`` returns, or a TimeoutError; then its thread is left behind, as a daemon."""
    ended: list[tuple[T | None, BaseException | None]] = []

    def run() -> None:
        try:
            ended.append((work(), None))
        except BaseException as error:  # handed to who waits
            ended.append((None, error))

    thread = threading.Thread(target=run, name="tfopt-doctor", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not ended:
        raise TimeoutError(f"did not end within {limit_s:g} s: a driver or a file system may hang")
    value, error = ended[0]
    if error is not None:
        raise error
    return value  # type: ignore[return-value]
