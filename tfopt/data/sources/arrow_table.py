"""Read a table in memory: of Arrow, pandas, polars or duckdb."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tfopt.data.sources.source import needs
from tfopt.data.sources.table_source import MOST_ROWS, TableSource
from tfopt.errors import UserError, first_line


@dataclass(frozen=True, repr=False)
class ArrowTable(TableSource):
    """Rows of a table in memory that has Arrow's stream interface (``__arrow_c_stream__``).

    Example:
        data = tfopt.pipeline(ArrowTable(pandas_frame, label="y"), batch_size=256)

    Attributes:
        table: Of pyarrow, pandas, polars or duckdb, for example.
    """

    table: Any

    def schema(self) -> Any:
        return self._table.schema

    def count_examples(self) -> int:
        return int(self._table.num_rows)

    def splits(self) -> Sequence[int]:
        return range(0, self._table.num_rows, MOST_ROWS)

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
        rows = self._table.select(list(columns))
        for start in splits:
            for batch in rows.slice(start, MOST_ROWS).to_batches():
                yield f"the table, rows from {start:,}", batch

    @cached_property
    def _table(self) -> Any:
        arrow = needs("pyarrow", "A table", "parquet")
        if isinstance(self.table, arrow.Table):
            return self.table
        if type(self.table).__module__.partition(".")[0] == "pandas":
            try:
                # The stream interface of pandas would add its index as a column.
                return arrow.Table.from_pandas(self.table, preserve_index=False)
            except arrow.ArrowException as error:
                raise UserError(
                    "A column of the data frame holds values of several types.",
                    expected="one type a column",
                    received=first_line(error),
                    fix="frame[column] = frame[column].astype(...), or leave it out",
                ) from error
        return arrow.table(self.table)
