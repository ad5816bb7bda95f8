"""Read Dask DataFrames and Arrays, partition by partition, on the current scheduler."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np

from tfopt.data.sources.columns import Array
from tfopt.data.sources.source import Reading, Source, needs
from tfopt.data.sources.table import Table, shuffled_blocks, streamed
from tfopt.errors import UserError, first_line, require_count


@dataclass(frozen=True, repr=False)
class Dask(Table):
    """Rows of a Dask DataFrame.

    Partitions are computed on the current scheduler (threads, processes, or the cluster of a
    ``distributed.Client``), ``ahead`` of them while earlier ones train. Every epoch computes
    them again; ``frame.persist()`` keeps them in the cluster's memory.

    Attributes:
        data: A ``dask.dataframe.DataFrame``.
        ahead: Partitions to compute in advance.

    Example:
        data = tfopt.pipeline(Dask(dask.dataframe.read_parquet("s3://…"), label="y"))
    """

    data: Any
    ahead: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("Dask.ahead", self.ahead)

    def schema(self) -> Any:
        """Return the Arrow schema; categories that Dask does not know are texts."""
        arrow = needs("pyarrow", "Dask", "dask")
        meta = self._frame._meta
        schema = arrow.Schema.from_pandas(meta, preserve_index=False)
        for place, dtype in enumerate(meta.dtypes):
            if _is_unknown(dtype):
                schema = schema.set(place, schema.field(place).with_type(arrow.large_string()))
        return schema

    def count_examples(self) -> int:
        try:
            return int(sum(self._frame.map_partitions(len).compute()))
        except Exception as error:
            raise _not_computed("The rows", error, "frame.map_partitions(len).compute()") from error

    def splits(self) -> Sequence[Any]:
        return range(self._frame.npartitions)

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
        arrow = needs("pyarrow", "Dask", "dask")
        schema = arrow.schema([self.schema().field(name) for name in columns])
        parts = self._parts(columns)
        for number, frame in computed(
            [(i, parts[i]) for i in splits], self.ahead, "frame.partitions"
        ):
            try:
                table = arrow.Table.from_pandas(frame, schema, preserve_index=False)
            except (arrow.ArrowException, KeyError) as error:
                raise UserError(
                    f"Partition {number} does not have the declared columns of the DataFrame.",
                    expected=", ".join(f"{column.name}: {column.type}" for column in schema),
                    received=first_line(error),
                    fix="give dask its meta=, or convert every partition: frame.astype(...); "
                    "for categories other than texts: frame[c] = frame[c].cat.as_known()",
                ) from error
            for batch in table.to_batches():
                yield f"partition {number}", batch

    def _parts(self, columns: Sequence[str]) -> Sequence[Any]:
        """Return columns of each partition, delayed.

        Simplified, so that nothing else is read, but not optimized: Dask would join partitions of
        small Parquet files, and change their number.
        """
        frame = self._frame[list(columns)].simplify()
        return list(frame.to_delayed(optimize_graph=False))

    @cached_property
    def _frame(self) -> Any:
        frames = needs("dask.dataframe", "Dask", "dask")
        if not isinstance(self.data, frames.DataFrame):
            raise UserError(
                "Dask takes a DataFrame.",
                expected="a dask.dataframe.DataFrame",
                received=type(self.data).__name__,
                fix="use DaskArrays(x, y) for Dask Arrays",
            )
        return self.data


@dataclass(frozen=True, repr=False)
class DaskArrays(Source):
    """Examples of Dask Arrays with equal chunks along the first axis.

    Example:
        data = tfopt.pipeline(DaskArrays(images, labels), batch_size=64)

    Attributes:
        x: An array of examples.
        y: An array of their labels; None: there are none.
        ahead: Chunks that are computed before they are needed.
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

    def batches(self, batch_size: int, reading: Reading) -> Any:
        import tensorflow as tf

        arrays = self._arrays
        signature = tuple(tf.TensorSpec((None, *a.shape[1:]), tf.as_dtype(a.dtype)) for a in arrays)
        parts = list(enumerate(zip(*map(self._parts, range(len(arrays))), strict=True)))

        def blocks(order: np.random.Generator | None) -> Iterator[dict[str, Array]]:
            visited = parts if order is None else [parts[i] for i in order.permutation(len(parts))]
            for _, chunk in computed(visited, self.ahead, "x.blocks"):
                yield {str(i): np.asarray(part) for i, part in enumerate(chunk)}

        return streamed(
            lambda order: shuffled_blocks(blocks(order), order, reading.buffer),
            lambda block: tuple(block.values()) if len(arrays) > 1 else block["0"],
            signature if len(arrays) > 1 else signature[0],
            shuffle=reading.shuffle,
            seed=reading.seed,
        ).rebatch(batch_size, drop_remainder=reading.drop_remainder)

    @cached_property
    def _arrays(self) -> tuple[Any, ...]:
        """Return the arrays, chunked along their first axis only."""
        array_class = needs("dask.array", "DaskArrays", "dask").Array
        arrays = tuple(array for array in (self.x, self.y) if array is not None)
        for array in arrays:
            if not isinstance(array, array_class):
                raise UserError(
                    "DaskArrays takes Dask Arrays.",
                    expected="dask.array.Array",
                    received=type(array).__name__,
                    fix="dask.array.from_array(...), or give NumPy arrays to pipeline directly",
                )
        if len({array.chunks[0] for array in arrays}) > 1:
            raise UserError(
                "x and y have different chunks along the first axis.",
                expected=f"chunks {arrays[0].chunks[0]}",
                received=f"{arrays[1].chunks[0]}",
                fix="y = y.rechunk((x.chunks[0], *y.chunks[1:]))",
            )
        return tuple(a.rechunk(dict.fromkeys(range(1, a.ndim), -1)) for a in arrays)


def computed(parts: Sequence[tuple[int, Any]], ahead: int, whose: str) -> Iterator[tuple[int, Any]]:
    """Yield the values of delayed parts in order, and compute ``ahead`` of them in advance.

    ``whose[number]`` names a part in errors.
    """
    dask = needs("dask", "Dask", "dask")
    client = _client()
    with ThreadPoolExecutor(ahead) as pool:

        def submit(part: Any) -> Any:
            if client is not None:
                return client.compute(part)
            return pool.submit(lambda: dask.compute(part)[0])

        def named(number: int, step: Callable[[], Any]) -> Any:
            try:
                return step()
            except Exception as error:
                see = f"{whose}[{number}].compute()"
                raise _not_computed(f"Partition {number}", error, see) from error

        waiting: deque[tuple[int, Any]] = deque()
        try:
            for number, part in parts:
                waiting.append((number, named(number, partial(submit, part))))
                if len(waiting) > ahead:
                    first, future = waiting.popleft()
                    yield first, named(first, future.result)
            while waiting:
                first, future = waiting.popleft()
                yield first, named(first, future.result)
        finally:
            for _, future in waiting:
                with suppress(Exception):  # of a closed client
                    future.cancel()


def _is_unknown(dtype: Any) -> bool:
    """Return whether it has categories that only the partitions show."""
    categories = getattr(dtype, "categories", None)
    return categories is not None and (
        not len(categories) or "__UNKNOWN_CATEGORIES__" in categories
    )


def _client() -> Any:
    """Return the current client of a distributed cluster; None without one."""
    try:
        return import_module("distributed").default_client()
    except (ImportError, ValueError):
        return None


def _not_computed(what: str, error: Exception, see: str) -> UserError:
    return UserError(
        f"{what} could not be computed by Dask.",
        expected="a graph without errors, and a scheduler and workers that keep running",
        received=f"{type(error).__name__}: {first_line(error)}",
        fix=f"run {see} to see the whole error; keep the client open, and check the logs of the "
        "workers for a lack of memory",
    )
