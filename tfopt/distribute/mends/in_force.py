"""Work around defects of Keras and TensorFlow while models of a strategy are made and called.

Each module named here says in its docstring what is wrong, and has ``mended(strategy)``, a context
behind which the libraries are what they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache
from typing import Any

from tfopt.compress.hooks import Shared
from tfopt.distribute.mends import (
    borrowed_arrays,
    cleared_sessions,
    variables_as_numbers,
    worker_files,
    worker_input,
)
from tfopt.job.cluster_place import exchange_of


def mends_in_force(strategy: Any) -> AbstractContextManager[None]:
    """Work around the defects while inside.

    Calls may lie inside each other, and threads overlap: the last one puts everything back.
    """
    return _shared(strategy)()


@cache
def _shared(strategy: Any) -> Shared:
    return Shared(lambda: _mended(strategy))


@contextmanager
def _mended(strategy: Any) -> Iterator[None]:
    with ExitStack() as held:
        for mend in (borrowed_arrays, variables_as_numbers, cleared_sessions):
            held.enter_context(mend.mended(strategy))
        if exchange_of(strategy) is not None:
            for over_workers in (worker_input, worker_files):
                held.enter_context(over_workers.mended(strategy))
        yield
