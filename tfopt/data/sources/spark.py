"""Read Spark DataFrames, as Arrow tables in the memory of this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tfopt.data.sources.arrow_table import ArrowTable
from tfopt.data.sources.table_source import TableSource
from tfopt.errors import UserError

_CAUSE = r"^(?:: |Caused by: )?([\w.$]*(?:Error|Exception): .*)"
"""The line of a Python or Java traceback with the error; the last one is the root cause."""


@dataclass(frozen=True, repr=False)
class Spark(TableSource):
    """Rows of a Spark DataFrame.

    Spark computes the selected columns once, and hands them over as an Arrow table. What does not
    fit into memory is written by Spark, ``frame.write.parquet(path)``, and read as
    ``Parquet(path)``.

    Attributes:
        data: A ``pyspark.sql.DataFrame``.

    Example:
        data = tfopt.pipeline(Spark(frame, label="y"), batch_size=256)
    """

    data: Any

    def schema(self) -> Any:
        return _run("be described", lambda: self.data.limit(0).toArrow().schema)

    def count_examples(self) -> int:
        return self._rows.count()

    def splits(self) -> Sequence[Any]:
        return self._rows.splits()

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
        return self._rows.read(splits, columns)

    @cached_property
    def _rows(self) -> ArrowTable:
        frame = self.data.select(*self.layout().columns)
        return ArrowTable(_run("be read", frame.toArrow))


def _run(what: str, action: Callable[[], Any]) -> Any:
    """Return the result of an action of Spark; raise its failure as a UserError."""
    try:
        return action()
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise UserError(
            f"The Spark DataFrame could not {what}.",
            expected="a running Spark session, a plan without errors, and rows that fit in memory",
            received=re.findall(_CAUSE, text, re.MULTILINE)[-1],
            fix="run an action such as frame.count() to see Spark's whole error; rows that do not "
            "fit: frame.write.parquet(path), and read the path",
        ) from error
