"""Read data sets of Hugging Face ``datasets``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tfopt.data.sources.source import needs
from tfopt.data.sources.table_source import TableSource
from tfopt.errors import UserError, first_line

_ROWS = 1 << 12


@dataclass(frozen=True, repr=False)
class HuggingFace(TableSource):
    """Rows of a ``datasets.Dataset``, or of a folder that ``save_to_disk`` wrote.

    Its Arrow files are memory-mapped, not loaded. An ``Image`` column needs ``images``.

    Attributes:
        data: The data set, or the path of its folder.
        split: The split of a ``DatasetDict``; None for a single data set.

    Example:
        data = tfopt.pipeline(HuggingFace("imdb_on_disk", split="train", label="label"))
    """

    data: Any
    split: str | None = None

    def schema(self) -> Any:
        return self._rows.features.arrow_schema

    def count_examples(self) -> int:
        return len(self._rows)

    def splits(self) -> Sequence[int]:
        return range(0, len(self._rows), _ROWS)

    def fingerprint(self) -> str:
        return f"{self!r} {self._rows._fingerprint}"

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
        rows = self._rows.select_columns(list(columns)).with_format("arrow")
        for start in splits:
            for batch in rows[start : start + _ROWS].to_batches():
                yield f"the data set, rows from {start:,}", batch

    @cached_property
    def _rows(self) -> Any:
        datasets = needs("datasets", "HuggingFace", "huggingface")
        data = self.data
        if isinstance(data, str | os.PathLike):
            try:
                data = datasets.load_from_disk(os.fspath(data))
            except (OSError, ValueError) as error:
                raise UserError(
                    f"{self.data} is not a saved data set.",
                    expected="a folder that datasets' save_to_disk wrote",
                    received=first_line(error),
                ) from error
        if isinstance(data, datasets.DatasetDict):
            if self.split not in data:
                raise UserError(
                    "The data set has several splits." if self.split is None else "No such split.",
                    expected=f"split= one of {', '.join(data)}",
                    received=repr(self.split),
                )
            data = data[self.split]
        if not isinstance(data, datasets.Dataset):
            raise UserError(
                "HuggingFace takes a data set of the library datasets.",
                expected="a datasets.Dataset, or the path of a folder",
                received=type(data).__name__,
            )
        return data
