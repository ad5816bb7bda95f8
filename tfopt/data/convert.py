"""Write a source as shards of Parquet or TFRecord: in parallel, resumable, with checksums."""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from tfopt.data.sources.image_folder import ImageFolder
from tfopt.data.sources.open import open_source
from tfopt.data.sources.source import Source, needs
from tfopt.data.sources.table import Table
from tfopt.data.sources.tfrecord import MANIFEST, TFRecord
from tfopt.errors import UserError, require_count
from tfopt.files import prepare_folder, write_atomically
from tfopt.job.cluster_place import usable_cores

Format = Literal["parquet", "tfrecord"]
FORMATS: tuple[Format, ...] = get_args(Format)
_ROW_GROUP = 1 << 16
_FILES = 1_000
"""Images in a shard, before their sizes are known."""


@dataclass(frozen=True)
class Shard:
    """A file that was written."""

    name: str
    rows: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Converted:
    """The shards of a folder; printed, a line."""

    folder: Path
    shards: tuple[Shard, ...]
    written: int
    """How many of them this call wrote; the others were there."""

    @property
    def rows(self) -> int:
        """Return the rows of all shards."""
        return sum(each.rows for each in self.shards)

    def __str__(self) -> str:
        mib = sum(each.bytes for each in self.shards) / 1024**2
        kept = len(self.shards) - self.written
        return (
            f"{self.rows:,} rows in {len(self.shards)} shards, {mib:,.1f} MiB, in {self.folder}"
            + (f"; {kept} of them were there" if kept else "")
        )


def convert(
    source: Any,
    folder: str | os.PathLike[str],
    *,
    format: Format = "parquet",
    shard_mib: int = 128,
    workers: int | None = None,
    progress: Callable[[Shard, int], None] | None = None,
) -> Converted:
    """Write a source as shards that ``tfopt.pipeline`` reads at full speed.

    Called again after an interruption it writes only the shards that are missing.

    Args:
        source: A path, a data frame, or a source such as ``tfopt.data.Csv(...)``. All its columns
            are written as they are; images of a folder as encoded bytes and a label.
        folder: Where the shards go: empty, or what an earlier call for this source left.
        format: "parquet", or "tfrecord" of ``tf.train.Example``.
        shard_mib: About how large a shard is, where the source says how large its parts are; else
            each partition or file is one.
        workers: Shards that are written at a time; default: the cores.
        progress: Called with each shard that was written, and how many there will be.

    Example:
        print(tfopt.data.convert("rows.csv", "rows/"))
        data = tfopt.pipeline("rows/", label="y")
    """
    if format not in FORMATS:
        raise UserError(
            "The format is unknown.", expected=" or ".join(FORMATS), received=repr(format)
        )
    most = require_count("shard_mib", shard_mib) * 1024**2
    table = _as_table(open_source(source))
    parts = list(_shares(table.splits(), most))
    target = prepare_folder(Path(folder))
    names = [f"part-{i:05}-of-{len(parts):05}.{format}" for i in range(len(parts))]
    manifest = _Manifest.opened(target, {"source": repr(source), "format": format})
    missing = [name for name in names if not manifest.holds(name)]

    def write(name: str) -> None:
        rows = _write(table, parts[names.index(name)], target / name, format)
        shard = manifest.add(name, rows)
        if progress is not None:
            progress(shard, len(names))

    with ThreadPoolExecutor(workers or usable_cores()) as pool:
        for _ in pool.map(write, missing):
            pass
    return Converted(target, tuple(manifest.shards[name] for name in names), len(missing))


def check_shards(folder: str | os.PathLike[str]) -> Converted:
    """Read the shards that :func:`convert` wrote, and refuse a folder in which one has changed."""
    target = Path(folder)
    if not (target / MANIFEST).is_file():
        raise UserError(
            f"{target} holds no shards of tfopt.",
            expected=f"a folder with {MANIFEST} in it",
            received="none" if target.is_dir() else "no such folder",
        )
    manifest = _Manifest.opened(target, None)
    for name, shard in manifest.shards.items():
        found = _digest(target / name) if (target / name).is_file() else "no such file"
        if found != shard.sha256:
            raise UserError(
                f"{target / name} is not as it was written.",
                expected=f"{shard.bytes:,} bytes with SHA-256 {shard.sha256[:16]}…",
                received=found[:16],
                fix="delete it and convert again: only this shard is written",
            )
    return Converted(target, tuple(manifest.shards.values()), 0)


class _Manifest:
    """What is known of a folder's shards, written after each of them."""

    def __init__(self, path: Path, origin: dict[str, str], shards: dict[str, Shard]) -> None:
        self._path, self._origin, self.shards = path, origin, shards
        self._lock = threading.Lock()

    @staticmethod
    def opened(folder: Path, origin: dict[str, str] | None) -> _Manifest:
        """Return a folder's manifest; refuse a folder that holds something else than ``origin``."""
        path = folder / MANIFEST
        if not path.exists():
            if there := sorted(e.name for e in folder.iterdir() if e.name[0] != "."):
                raise UserError(
                    f"{folder} is not empty.",
                    expected="an empty folder for the shards",
                    received=", ".join(there[:3]),
                    fix="name another folder",
                )
            return _Manifest(path, origin or {}, {})
        kept = json.loads(path.read_text(encoding="utf-8"))
        if origin not in (None, kept["origin"]):
            raise UserError(
                f"{folder} holds the shards of something else.",
                expected=str(origin),
                received=str(kept["origin"]),
                fix="name another folder, or delete this one",
            )
        shards = {each["name"]: Shard(**each) for each in kept["shards"]}
        return _Manifest(path, kept["origin"], shards)

    def holds(self, name: str) -> bool:
        """Return whether a shard was written and is there in its size."""
        path = self._path.with_name(name)
        known = self.shards.get(name)
        return known is not None and path.is_file() and path.stat().st_size == known.bytes

    def add(self, name: str, rows: int) -> Shard:
        """Note a shard that was written, and return it."""
        path = self._path.with_name(name)
        shard = Shard(name, rows, path.stat().st_size, _digest(path))
        with self._lock:
            self.shards[name] = shard
            ordered = [asdict(self.shards[each]) for each in sorted(self.shards)]
            content = {"origin": self._origin, "shards": ordered}
            write_atomically(self._path, json.dumps(content, indent=1))
        return shard


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _shares(splits: Sequence[Any], most: int) -> Iterator[list[Any]]:
    """Yield the splits of each shard: one after the other until it is large enough."""
    held: list[Any] = []
    size = 0
    for split in splits:
        held.append(split)
        size += getattr(split, "bytes", 0) or most
        if size >= most:
            yield held
            held, size = [], 0
    if held:
        yield held


def _write(table: Table, splits: Sequence[Any], path: Path, format: Format) -> int:
    """Write a shard whole or not at all; return its rows."""
    schema = table.schema()
    batches = (batch for _, batch in table.read(splits, schema.names))
    rows = 0

    def content(target: str) -> None:
        nonlocal rows
        writes = _write_parquet if format == "parquet" else _write_records
        rows = writes(target, schema, batches)

    write_atomically(path, content)
    return rows


def _write_parquet(path: str, schema: Any, batches: Iterable[Any]) -> int:
    arrow = needs("pyarrow", "Parquet", "parquet")
    parquet = needs("pyarrow.parquet", "Parquet", "parquet")
    rows, held = 0, []
    with parquet.ParquetWriter(path, schema) as writer:
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            if sum(each.num_rows for each in held) >= _ROW_GROUP:
                writer.write_table(arrow.Table.from_batches(held, schema))
                held = []
        if held or not rows:
            writer.write_table(arrow.Table.from_batches(held, schema))
    return rows


def _write_records(path: str, schema: Any, batches: Iterable[Any]) -> int:
    import tensorflow as tf

    rows = 0
    with tf.io.TFRecordWriter(path) as writer:
        for batch in batches:
            for row in batch.to_pylist():
                features = {name: _feature(name, value) for name, value in row.items()}
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())
            rows += batch.num_rows
    return rows


def _feature(name: str, value: Any) -> Any:
    """Return a value of a row as a feature of ``tf.train.Example``."""
    import tensorflow as tf

    values = value if isinstance(value, list) else [value]
    while values and isinstance(values[0], list):
        values = [each for some in values for each in some]
    kinds = {type(each) for each in values}
    if kinds <= {int, bool}:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    if kinds <= {int, float}:
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    if kinds <= {str, bytes}:
        encoded = [each.encode() if isinstance(each, str) else each for each in values]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))
    raise UserError(
        f"The column {name!r} does not go into TFRecord.",
        expected="numbers, texts, bytes, or lists of them, without nulls",
        received=", ".join(sorted(each.__name__ for each in kinds)),
        fix="write Parquet, or turn it into numbers before",
    )


# Sources that are no tables


def _as_table(source: Any) -> Table:
    if isinstance(source, Table):
        return replace(source, on_bad="error")
    if isinstance(source, ImageFolder):
        return _ImageRows(path=source.path)
    if isinstance(source, TFRecord):
        return _RecordRows(records=source)
    raise UserError(
        "Only files and tables can be converted.",
        expected="a path, a data frame, or a source of tfopt.data",
        received=type(source).__name__ if isinstance(source, Source) else repr(source)[:100],
    )


@dataclass(frozen=True, repr=False)
class _ImageRows(Table):
    """The images of a folder as encoded bytes, with the numbers of their classes."""

    path: str

    def schema(self) -> Any:
        arrow = needs("pyarrow", "The table", "parquet")
        return arrow.schema({"image": arrow.binary(), "label": arrow.int64()})

    def count(self) -> int:
        return ImageFolder(self.path).count()

    def splits(self) -> Sequence[Any]:
        files = ImageFolder(self.path).files()
        return [files[i : i + _FILES] for i in range(0, len(files), _FILES)]

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
        arrow = needs("pyarrow", "The table", "parquet")
        classes = ImageFolder(self.path).classes
        for files in splits:
            rows = {
                "image": [Path(each).read_bytes() for each in files],
                "label": [classes.index(Path(each).parent.name) for each in files],
            }
            yield files[0], arrow.record_batch(rows, schema=self.schema())


@dataclass(frozen=True, repr=False)
class _RecordRows(Table):
    """The features of ``tf.train.Example``s as columns."""

    records: TFRecord

    def schema(self) -> Any:
        arrow = needs("pyarrow", "The table", "parquet")
        kinds = {"string": arrow.binary(), "float32": arrow.float32(), "int64": arrow.int64()}
        spec = self.records.first_spec()
        return arrow.schema(
            {
                name: arrow.list_(kinds[each.dtype.name], math.prod(each.shape))
                if each.shape
                else kinds[each.dtype.name]
                for name, each in spec.items()
            }
        )

    def count(self) -> int:
        return self.records.count()

    def splits(self) -> Sequence[Any]:
        return self.records.files()

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
        import tensorflow as tf

        arrow = needs("pyarrow", "The table", "parquet")
        schema, spec = self.schema(), self.records.first_spec()
        for file in splits:
            serialized = self.records.records([file]).batch(4096)
            parsed = serialized.map(lambda many: tf.io.parse_example(many, spec))
            for batch in parsed.as_numpy_iterator():
                rows = {name: batch[name].tolist() for name in schema.names}
                yield file, arrow.record_batch(rows, schema=schema)
