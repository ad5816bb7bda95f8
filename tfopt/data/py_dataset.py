"""The batches of a ``keras.utils.PyDataset``, epoch by epoch.

Guarantees: every batch once an epoch and in the asked-for order, also with several workers;
on_epoch_begin and on_epoch_end are called as in ``fit``, the latter when all batches of the
epoch have been made.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from tfopt.data.signature import BATCHES_FOR_SIGNATURE, batch_signature, conform, standardised


def epoch_orders(count: int, seed: int) -> Callable[[], Iterator[np.ndarray[Any, Any]]]:
    """Gives an order of ``count`` things for every time it is called, the n-th always the same."""
    epochs = itertools.count()

    def order() -> Iterator[np.ndarray[Any, Any]]:
        yield np.random.default_rng((abs(seed), int(seed < 0), next(epochs))).permutation(count)

    return order


def py_dataset_epochs(
    data: Any, *, shuffle: bool, seed: int
) -> tuple[Callable[[], Iterator[Any]], Any]:
    """A function giving the batches of one epoch after the other, and their signature."""
    count = data.num_batches
    owner = type(data).__name__
    number = BATCHES_FOR_SIGNATURE if count is None else min(count, BATCHES_FOR_SIGNATURE)
    signature = batch_signature([standardised(data[i]) for i in range(number)], owner)
    orders = epoch_orders(count, seed) if shuffle and count is not None else None
    return partial(_epoch, data, count, orders, signature), signature


def _epoch(data: Any, count: int | None, orders: Any, signature: Any) -> Iterator[Any]:
    """One epoch, in which on_epoch_end comes before the last batch is handed out.

    ``fit`` knows the length and never asks for more, so nothing after the last batch would run.
    """
    numbers = (
        itertools.count() if count is None else iter(next(orders()) if orders else range(count))
    )
    data.on_epoch_begin()
    batches = _fetched(data, map(int, numbers), max(data.workers, 1))
    for position, batch in enumerate(batches, start=1):
        whole = conform(batch, signature, type(data).__name__)
        if position == count:
            batches.close()
            data.on_epoch_end()
        yield whole


def _fetched(data: Any, numbers: Iterator[int], workers: int) -> Generator[Any, None, None]:
    """The batches in order, ``workers`` of them being made at a time."""
    if workers == 1:
        yield from (data[number] for number in numbers)
        return
    with ThreadPoolExecutor(workers) as pool:
        pending: list[Future[Any]] = []
        try:
            for number in numbers:
                pending.append(pool.submit(data.__getitem__, number))
                if len(pending) > workers:
                    yield pending.pop(0).result()
            while pending:
                yield pending.pop(0).result()
        finally:
            for future in pending:
                future.cancel()
