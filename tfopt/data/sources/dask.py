"""Read Dask DataFrames, partition by partition, on the current scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from tfopt.data.ahead import mapped_ahead
from tfopt.data.sources.source import needs
from tfopt.data.sources.table_source import TableSource
from tfopt.errors import UserError, first_line, require_count


@dataclass(frozen=True, repr=False)
class Dask(TableSource):
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
            categories = getattr(dtype, "categories", None)
            if categories is not None and {*categories} <= {"__UNKNOWN_CATEGORIES__"}:
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
        for number, frame in mapped_ahead(partial(_computed, parts), splits, self.ahead):
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
        """Return columns of each partition, delayed: two threads that optimize may deadlock.

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
                fix="of Dask Arrays give pipeline a function that yields their blocks: "
                "lambda: (dask.compute(*pair) for pair in zip(x.blocks, y.blocks))",
            )
        return self.data


def _computed(parts: Sequence[Any], number: int) -> tuple[int, Any]:
    """Return a partition's number and rows, computed on the current client's cluster, if any."""
    try:
        return number, parts[number].compute()
    except Exception as error:
        see = f"frame.partitions[{number}].compute()"
        raise _not_computed(f"Partition {number}", error, see) from error


def _not_computed(what: str, error: Exception, see: str) -> UserError:
    return UserError(
        f"{what} could not be computed by Dask.",
        expected="a graph without errors, and a scheduler and workers that keep running",
        received=f"{type(error).__name__}: {first_line(error)}",
        fix=f"run {see} to see the whole error; keep the client open, and check the logs of the "
        "workers for a lack of memory",
    )
