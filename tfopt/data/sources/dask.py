"""Read Dask DataFrames and Arrays, partition by partition, on the user's own scheduler."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from tfopt.data.sources.columns import Array
from tfopt.data.sources.source import Reading, Source, are_even, needs
from tfopt.data.sources.table import Table, shuffled_blocks, streamed
from tfopt.errors import UserError, first_line, require_count


@dataclass(frozen=True, repr=False)
class Dask(Table):
    """Rows of a Dask DataFrame.

    A partition is computed on the scheduler that is in charge (threads, processes, or the cluster
    of a ``distributed.Client``), ``ahead`` of them while earlier ones train. Every epoch computes
    them anew; ``frame.persist()`` keeps them in the cluster's memory.

    Attributes:
        data: A ``dask.dataframe.DataFrame``.
        ahead: Partitions that are computed before they are needed.

    Example:
        data = tfopt.pipeline(Dask(dask.dataframe.read_parquet("s3://…"), label="y"))
    """

    data: Any
    ahead: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("Dask.ahead", self.ahead)

    def schema(self) -> Any:
        arrow = needs("pyarrow", "Dask", "dask")
        return arrow.Schema.from_pandas(self._frame._meta, preserve_index=False)

    def count_examples(self) -> int:
        frame = self._frame
        if self.on_bad == "skip":
            frame = frame.dropna(subset=self.layout().unfilled)
        try:
            return int(sum(frame.map_partitions(len).compute()))
        except Exception as error:
            raise _not_computed("The rows", error) from error

    def splits(self) -> Sequence[Any]:
        return range(self._frame.npartitions)

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
        arrow = needs("pyarrow", "Dask", "dask")
        schema = arrow.schema([self.schema().field(name) for name in columns])
        parts = self._frame[list(columns)].to_delayed()
        for number, frame in computed([(i, parts[i]) for i in splits], self.ahead):
            try:
                table = arrow.Table.from_pandas(frame, schema, preserve_index=False)
            except (arrow.ArrowException, KeyError) as error:
                raise UserError(
                    f"Partition {number} has not the columns that the DataFrame declares.",
                    expected=", ".join(f"{each.name}: {each.type}" for each in schema),
                    received=first_line(error),
                    fix="give dask its meta=, or make every partition alike: frame.astype(...)",
                ) from error
            for batch in table.to_batches():
                yield f"partition {number}", batch

    @cached_property
    def _frame(self) -> Any:
        frames = needs("dask.dataframe", "Dask", "dask")
        if not isinstance(self.data, frames.DataFrame):
            raise UserError(
                "Dask takes a DataFrame.",
                expected="a dask.dataframe.DataFrame",
                received=type(self.data).__name__,
                fix="for Dask Arrays there is DaskArrays(x, y)",
            )
        return self.data


@dataclass(frozen=True, repr=False)
class DaskArrays(Source):
    """Examples of Dask Arrays whose first axis counts them, chunked along it alike.

    Example:
        data = tfopt.pipeline(DaskArrays(images, labels), batch_size=64)
    """

    x: Any
    y: Any = None
    ahead: int = 2

    def count_examples(self) -> int:
        rows = self._arrays[0].shape[0]
        if not math.isnan(rows):
            return int(rows)
        dask = needs("dask", "DaskArrays", "dask")
        return int(sum(dask.compute(*(dask.delayed(len)(part) for part in self._parts(0)))))

    def _parts(self, which: int) -> Sequence[Any]:
        return list(self._arrays[which].to_delayed().ravel())

    def can_share(self, count: int) -> bool:
        rows = self._arrays[0].chunks[0]
        return are_even([1] * len(rows) if any(map(math.isnan, rows)) else rows, count)

    def batches(self, batch_size: int, how: Reading) -> Any:
        import tensorflow as tf

        arrays = self._arrays
        signature = tuple(tf.TensorSpec((None, *a.shape[1:]), tf.as_dtype(a.dtype)) for a in arrays)
        every = zip(*map(self._parts, range(len(arrays))), strict=True)
        parts = how.share.of(list(enumerate(every)))

        def blocks(order: np.random.Generator | None) -> Iterator[dict[str, Array]]:
            visited = parts if order is None else [parts[i] for i in order.permutation(len(parts))]
            for _, chunk in computed(visited, self.ahead):
                yield {str(i): np.asarray(part) for i, part in enumerate(chunk)}

        return streamed(
            lambda order: shuffled_blocks(blocks(order), order, how.buffer),
            lambda block: tuple(block.values()) if len(arrays) > 1 else block["0"],
            signature if len(arrays) > 1 else signature[0],
            shuffle=how.shuffle,
            seed=how.seed,
        ).rebatch(batch_size, drop_remainder=how.drop_remainder)

    @cached_property
    def _arrays(self) -> tuple[Any, ...]:
        """Return the arrays, with everything but their first axis in one chunk."""
        arrays = needs("dask.array", "DaskArrays", "dask")
        found = tuple(a for a in (self.x, self.y) if a is not None)
        for each in found:
            if not isinstance(each, arrays.Array):
                raise UserError(
                    "DaskArrays takes Dask Arrays.",
                    expected="dask.array.Array",
                    received=type(each).__name__,
                    fix="dask.array.from_array(...), or give NumPy arrays to pipeline as they are",
                )
        if len({each.chunks[0] for each in found}) > 1:
            raise UserError(
                "x and y are not chunked alike along the examples.",
                expected=f"chunks {found[0].chunks[0]}",
                received=f"{found[1].chunks[0]}",
                fix="y = y.rechunk((x.chunks[0], *y.chunks[1:]))",
            )
        return tuple(a.rechunk(dict.fromkeys(range(1, a.ndim), -1)) for a in found)


def computed(parts: Sequence[tuple[int, Any]], ahead: int) -> Iterator[tuple[int, Any]]:
    """Yield the values of delayed parts in order, ``ahead`` of them being computed meanwhile."""
    dask = needs("dask", "Dask", "dask")
    client = _client()
    with ThreadPoolExecutor(ahead) as pool:

        def submit(part: Any) -> Any:
            if client is not None:
                return client.compute(part)
            return pool.submit(lambda: dask.compute(part)[0])

        waiting: deque[tuple[int, Any]] = deque()
        try:
            for number, part in parts:
                waiting.append((number, submit(part)))
                if len(waiting) > ahead:
                    yield _result(*waiting.popleft())
            while waiting:
                yield _result(*waiting.popleft())
        finally:
            for _, future in waiting:
                future.cancel()


def _client() -> Any:
    """Return the client of the distributed cluster in charge; None without one."""
    try:
        return import_module("distributed").default_client()
    except (ImportError, ValueError):
        return None


def _result(number: int, future: Any) -> tuple[int, Any]:
    try:
        return number, future.result()
    except Exception as error:
        raise _not_computed(f"Partition {number}", error) from error


def _not_computed(what: str, error: Exception) -> UserError:
    return UserError(
        f"{what} could not be computed by Dask.",
        expected="a scheduler that runs, and a graph without errors",
        received=f"{type(error).__name__}: {first_line(error)}",
        fix="see the whole error by computing it yourself: frame.partitions[0].compute()",
    )
