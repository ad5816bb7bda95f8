"""Make calls in threads, some of them before their results are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def called_ahead(calls: Iterable[Callable[[], T]], threads: int) -> Generator[T, None, None]:
    """Yield the results of calls in order, while ``threads`` threads make the next ones."""
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[Future[T]] = deque()
        try:
            for call in calls:
                pending.append(pool.submit(call))
                if len(pending) > threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
