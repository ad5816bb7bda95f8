"""Read CSV files and folders, by ``pyarrow.dataset``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tfopt.data.sources.parquet import Parquet
from tfopt.data.sources.source import needs


@dataclass(frozen=True, repr=False)
class Csv(Parquet):
    """Rows of a CSV file, a folder of them, or files by a pattern; ``.gz`` too.

    The first line names the columns. Their types are inferred from each file's first megabyte,
    unless ``types`` declares them. An empty field is a null.

    Attributes:
        types: Names of Arrow types, by column: ``{"zip": "string", "price": "float32"}``.
        delimiter: The separator of fields.

    Example:
        data = tfopt.pipeline(Csv("train.csv", label="y", fill={"age": 0}), batch_size=256)
    """

    types: Mapping[str, str] = field(default_factory=dict)
    delimiter: str = ","

    format: ClassVar[str] = "csv"

    def arrow_format(self) -> Any:
        """Return the settings of Arrow's CSV reader."""
        arrow = needs("pyarrow", "Csv", "parquet")
        csv = needs("pyarrow.csv", "Csv", "parquet")
        pads = needs("pyarrow.dataset", "Csv", "parquet")
        types = {name: arrow.type_for_alias(kind) for name, kind in self.types.items()}
        return pads.CsvFileFormat(
            parse_options=csv.ParseOptions(delimiter=self.delimiter),
            convert_options=csv.ConvertOptions(
                column_types=types, null_values=[""], strings_can_be_null=True
            ),
        )
