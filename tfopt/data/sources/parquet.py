"""Read Parquet files and folders, by ``pyarrow.dataset``."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from tfopt.data.sources.source import needs
from tfopt.data.sources.table_columns import Layout, index_columns
from tfopt.data.sources.table_source import BLOCK_BYTES, MOST_ROWS, TableSource, has_null
from tfopt.errors import UserError, first_line
from tfopt.files import nearest_path


@dataclass(frozen=True, repr=False)
class Parquet(TableSource):
    """Rows of a Parquet file, a folder of them, or files by a pattern.

    Only the selected columns are read, and ``filter`` skips row groups by their statistics.
    ``key=value`` sub-folders of a folder become columns. Rows are streamed: the host's memory holds
    the current row groups and the shuffle buffer, not the data.

    Attributes:
        path: A path, a pattern (``"data/train-*.parquet"``), or an address such as ``s3://…``.
        filter: Conditions that all rows read must meet: ``(("age", ">=", 18),)``.

    Example:
        data = tfopt.pipeline(Parquet("data/train", label="y", stack=True), batch_size=256)
    """

    path: str
    filter: tuple[tuple[str, str, Any], ...] | None = None

    format: ClassVar[str] = "parquet"

    def __post_init__(self) -> None:
        if self.filter is not None:
            object.__setattr__(self, "filter", _conditions(self.filter))
        super().__post_init__()

    def arrow_format(self) -> Any:
        """Return the format of the files for ``pyarrow.dataset``."""
        return self.format

    def schema(self) -> Any:
        return self._files.schema

    def fingerprint(self) -> str:
        return f"{self!r} {self._files.stamps}"

    def count_examples(self) -> int:
        arrow = needs("pyarrow", type(self).__name__, "parquet")
        row_groups = self._files.row_groups
        if self.filter is None:
            return sum(group.rows for group in row_groups)
        try:
            return int(self._dataset(row_groups).count_rows(filter=self._expression()))
        except (arrow.ArrowException, ValueError, TypeError) as error:
            raise UserError(
                "The filter does not fit the columns.",
                expected=", ".join(f"{column.name}: {column.type}" for column in self.schema()),
                received=f"filter={self.filter!r}: {first_line(error)}",
            ) from error

    def splits(self) -> Sequence[_RowGroup]:
        self._files.refuse_changed()
        return self._files.row_groups

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
        arrow = needs("pyarrow", type(self).__name__, "parquet")
        self._files.refuse_changed()
        bytes_a_row = max(sum(s.bytes for s in splits) // max(sum(s.rows for s in splits), 1), 1)
        settings: dict[str, Any] = {
            "columns": list(columns),
            "filter": self._expression(),
            "batch_size": max(min(BLOCK_BYTES // bytes_a_row, MOST_ROWS), 1),
            # The next row group alone: by itself Arrow reads up to 1 GiB ahead.
            "fragment_readahead": 1,
            "batch_readahead": 1,
        }
        try:
            for tagged in self._dataset(splits).scanner(**settings).scan_batches():
                if tagged.record_batch.num_rows:
                    yield _place(tagged.fragment), tagged.record_batch
        except (arrow.ArrowException, OSError) as error:
            raise self._broken(splits, columns, error) from error

    def _dataset(self, splits: Sequence[_RowGroup]) -> Any:
        pads = needs("pyarrow.dataset", type(self).__name__, "parquet")
        files = self._files
        return pads.FileSystemDataset(
            [split.fragment for split in splits], files.schema, files.format, files.filesystem
        )

    def _expression(self) -> Any:
        pq = needs("pyarrow.parquet", type(self).__name__, "parquet")
        return None if self.filter is None else pq.filters_to_expression(list(self.filter))

    def layout(self) -> Layout:
        plan = super().layout()
        if self.filter is None:
            self._files.refuse_nulls(plan.unfilled)
        return plan

    def _broken(
        self, splits: Sequence[_RowGroup], columns: Sequence[str], error: Exception
    ) -> UserError:
        """Return the error that names the first row group that cannot be read."""
        place = self.path
        for split in splits:
            try:
                self._dataset([split]).to_table(columns=list(columns))
            except Exception as cause:
                place, error = _place(split.fragment), cause
                break
        return UserError(
            f"{place} cannot be read.",
            expected=f"intact {self.format} files that do not change",
            received=first_line(error),
            fix="write the file again, or leave it out",
        )

    @cached_property
    def _files(self) -> _Files:
        return _open(self)


@dataclass(frozen=True)
class _RowGroup:
    fragment: Any
    rows: int
    bytes: int
    footer: Any = None  # its metadata; None for CSV


def _conditions(given: Any) -> tuple[tuple[str, str, Any], ...]:
    """Return a filter as a tuple of conditions; refuse anything else."""
    try:
        conditions = tuple((name, op, value) for name, op, value in given)
    except (TypeError, ValueError):
        conditions = ()
    in_text = any(
        how in ("in", "not in") and isinstance(value, str) for _, how, value in conditions
    )
    if not conditions or in_text or not all(isinstance(name, str) for name, _, _ in conditions):
        raise UserError(
            "filter is not a tuple of conditions.",
            expected='(("age", ">=", 18), ("city", "in", ["Bern", "Basel"]))',
            received=repr(given),
        )
    return conditions


@dataclass(frozen=True)
class _Files:
    """Open files: their common schema, their row groups, and their sizes and times."""

    schema: Any
    format: Any
    filesystem: Any
    row_groups: tuple[_RowGroup, ...]
    stamps: dict[str, tuple[int, Any]]

    def refuse_changed(self) -> None:
        """Refuse files that were changed or removed since they were opened."""
        for info in self.filesystem.get_file_info(list(self.stamps)):
            if (info.size, info.mtime_ns) != self.stamps[info.path]:
                raise UserError(
                    f"{info.path} has changed since the training began.",
                    expected="files that do not change",
                    received="another size or time, or no file",
                    fix="write new data to another folder and start again",
                )

    def refuse_nulls(self, columns: Sequence[str]) -> None:
        """Refuse a row group with nulls in these columns by its statistics."""
        for group in self.row_groups:
            if group.footer is None:
                continue
            for column in map(group.footer.column, range(group.footer.num_columns)):
                name = column.path_in_schema
                if name in columns and column.is_stats_set and column.statistics.null_count:
                    received = f"{column.statistics.null_count} nulls"
                    raise has_null(_place(group.fragment), name, received)


def _open(source: Parquet) -> _Files:
    """Read the footers of all files, and refuse files with different columns."""
    arrow = needs("pyarrow", type(source).__name__, "parquet")
    pads = needs("pyarrow.dataset", type(source).__name__, "parquet")
    path: Any = os.path.expanduser(source.path)
    if "://" not in path and glob.has_magic(path):
        path = sorted(glob.glob(path))
    try:
        dataset = pads.dataset(
            path,
            format=source.arrow_format(),
            partitioning="hive" if isinstance(path, str) else None,
        )
    except (arrow.ArrowException, OSError) as error:
        remote, missing = "://" in source.path, isinstance(error, FileNotFoundError)
        fix = nearest_path(Path(source.path)) if missing and not remote else None
        raise UserError(
            f"{source.path} cannot be opened.",
            expected=f"{source.format} files that this process may read",
            received="no such file or folder" if missing else first_line(error),
            fix="check the address, the network and the credentials" if remote else fix,
        ) from error
    if not dataset.files:
        raise UserError(
            f"{source.path} holds no {source.format} files.",
            expected="at least one file",
            received="an empty folder, or a pattern without a match",
        )
    files = list(dataset.get_fragments())
    with ThreadPoolExecutor(8) as pool:
        row_groups = tuple(chain.from_iterable(pool.map(_row_groups, files)))
    _require_alike(source, files)
    schema = files[0].physical_schema
    if not any(group.rows for group in row_groups):
        raise UserError(f"{source.path} holds no rows.", expected="rows", received="empty files")
    partitions = [column for column in dataset.schema if column.name not in schema.names]
    infos = dataset.filesystem.get_file_info([file.path for file in files])
    return _Files(
        arrow.schema([*schema, *partitions], metadata=schema.metadata),
        dataset.format,
        dataset.filesystem,
        row_groups,
        {info.path: (info.size, info.mtime_ns) for info in infos},
    )


def _row_groups(file: Any) -> list[_RowGroup]:
    """Return the row groups of a file by its footer; of CSV, all of it as one."""
    try:
        if not hasattr(file, "split_by_row_group"):
            size = file.filesystem.get_file_info(file.path).size
            return [_RowGroup(file, file.count_rows(), size)]
        groups = [(part, part.row_groups[0]) for part in file.split_by_row_group()]
        return [
            _RowGroup(p, g.num_rows, g.total_byte_size, file.metadata.row_group(g.id))
            for p, g in groups
        ]
    except Exception as error:
        raise UserError(
            f"{file.path} cannot be opened.",
            expected="an intact file",
            received=first_line(error),
            fix="write it again, or remove it",
        ) from error


def _require_alike(source: Parquet, files: Sequence[Any]) -> None:
    """Refuse files that differ in the columns that are read."""
    types: dict[str, Any] = {}
    for file in files:
        types = _columns_read(source, file.physical_schema) | types
    for file in files:
        for name, expected in types.items():
            index = file.physical_schema.get_field_index(name)
            received = file.physical_schema.field(index).type if index >= 0 else "no such column"
            if received != expected:
                raise UserError(
                    f"{file.path}: the column {name!r} differs from that of other files.",
                    expected=str(expected),
                    received=str(received),
                    fix="declare it: types={" + repr(name) + ': "float64"}'
                    if source.format == "csv"
                    else "write the file again with the columns of the others",
                )


def _columns_read(source: Parquet, schema: Any) -> dict[str, Any]:
    """Return the types of the columns that the settings name, or of all without ``features``."""
    names = set(schema.names)
    if source.features is not None:
        settings = (source.features, source.label, source.weight)
        names = {condition[0] for condition in source.filter or ()}.union(
            *([value] if isinstance(value, str) else value or () for value in settings)
        )
    names -= set(index_columns(schema))
    return {column.name: column.type for column in schema if column.name in names}


def _place(fragment: Any) -> str:
    groups = getattr(fragment, "row_groups", None)
    return f"{fragment.path}, row group {groups[0].id}" if groups else str(fragment.path)
