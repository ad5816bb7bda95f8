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
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from tfopt.data.class_folders import class_folders
from tfopt.data.sources.image_folder import ImageFolder
from tfopt.data.sources.open import open_source
from tfopt.data.sources.shards import MANIFEST, require_whole
from tfopt.data.sources.source import Source, needs
from tfopt.data.sources.table import Table
from tfopt.data.sources.tfrecord import TFRecord
from tfopt.errors import UserError, require_count
from tfopt.files import prepare_folder, write_atomically
from tfopt.job.cluster_place import usable_cores

Format = Literal["parquet", "tfrecord"]
FORMATS: tuple[Format, ...] = get_args(Format)
_ROW_GROUP = 1 << 16
_FILES = 1_000
"""Images that are read together."""


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
    progress: Callable[[int, int], None] | None = None,
) -> Converted:
    """Write a source as shards that ``tfopt.pipeline`` reads at full speed.

    Call it again after an interruption: it writes the missing shards, if the input files have not
    changed. It cannot tell whether a table in memory, or one of Dask or Spark, has changed.

    Args:
        source: A path, a data frame, or a source such as ``tfopt.data.Csv(...)``. All its columns
            are written as they are; images of a folder as encoded bytes and a label.
        folder: Where the shards go: empty, or what an earlier call for this source left.
        format: "parquet", or "tfrecord" of ``tf.train.Example``.
        shard_mib: About how large a shard is in memory. What a worker writes is held whole.
        workers: Parts that are written at a time; default: the cores.
        progress: Called with the number of each part that was written, and how many there are.

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
    parts = list(_parts(table, most))
    target = prepare_folder(Path(folder))
    origin = {"source": table.fingerprint(), "format": format, "shard_mib": str(shard_mib)}
    manifest = _Manifest.opened(target, origin, len(parts))
    writes = _write_parquet
    if format == "tfrecord":
        writes = partial(_write_records, _lengths(manifest))
    missing = [number for number in range(len(parts)) if not manifest.holds(number)]

    def write(number: int) -> int:
        stem = target / f"part-{number:05}"
        made = list(_write(table, parts[number], stem, format, writes, most))
        manifest.add(number, made)
        if progress is not None:
            progress(number, len(parts))
        return len(made)

    with ThreadPoolExecutor(workers or usable_cores()) as pool:
        written = sum(pool.map(write, missing))
    return Converted(target, manifest.all(), written)


def check_shards(folder: str | os.PathLike[str]) -> Converted:
    """Read the shards that :func:`convert` wrote, and refuse a folder in which one has changed."""
    target = Path(folder)
    if not (target / MANIFEST).is_file():
        raise UserError(
            f"{target} holds no shards of tfopt.",
            expected=f"a folder with {MANIFEST} in it",
            received="none" if target.is_dir() else "no such folder",
        )
    require_whole(target)
    manifest = _Manifest.read(target)
    for shard in manifest.all():
        path = target / shard.name
        found = _digest(path)
        if found != shard.sha256:
            raise UserError(
                f"{path} is not as it was written.",
                expected=f"{shard.bytes:,} bytes with SHA-256 {shard.sha256[:16]}…",
                received=found[:16],
                fix="delete it and convert again: only its part is written",
            )
    return Converted(target, manifest.all(), 0)


class _Manifest:
    """What is known of a folder's shards, written when it begins and after each part."""

    def __init__(
        self, folder: Path, origin: dict[str, str], parts: int, shards: dict[int, list[Shard]]
    ) -> None:
        self.folder, self.origin, self.parts, self.shards = folder, origin, parts, shards
        self._lock = threading.Lock()

    @staticmethod
    def opened(folder: Path, origin: dict[str, str], parts: int) -> _Manifest:
        """Return a folder's manifest, a new one for an empty folder; refuse another origin's."""
        if (folder / MANIFEST).exists():
            kept = _Manifest.read(folder)
            if (kept.origin, kept.parts) == (origin, parts):
                return kept
            raise UserError(
                f"{folder} holds the shards of something else, or of other settings.",
                expected="; ".join(f"{k} {v[:200]}" for k, v in origin.items()),
                received="; ".join(f"{k} {v[:200]}" for k, v in kept.origin.items()),
                fix="name another folder, or delete this one",
            )
        if there := sorted(e.name for e in folder.iterdir() if e.name[0] != "."):
            raise UserError(
                f"{folder} is not empty.",
                expected="an empty folder for the shards",
                received=", ".join(there[:3]),
                fix="name another folder",
            )
        made = _Manifest(folder, origin, parts, {})
        made.write()
        return made

    @staticmethod
    def read(folder: Path) -> _Manifest:
        """Return the manifest that is in a folder."""
        kept = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        shards = {int(k): [Shard(**each) for each in part] for k, part in kept["shards"].items()}
        return _Manifest(folder, kept["origin"], kept["parts"], shards)

    def all(self) -> tuple[Shard, ...]:
        """Return the shards in order."""
        return tuple(shard for number in sorted(self.shards) for shard in self.shards[number])

    def holds(self, number: int) -> bool:
        """Return whether a part's shards were written and are there in their sizes."""

        def there(shard: Shard) -> bool:
            path = self.folder / shard.name
            return path.is_file() and path.stat().st_size == shard.bytes

        return number in self.shards and all(map(there, self.shards[number]))

    def add(self, number: int, shards: list[Shard]) -> None:
        """Note the shards of a part that was written."""
        with self._lock:
            self.shards[number] = shards
            self.write()

    def write(self) -> None:
        """Write what is known."""
        content = {
            "origin": self.origin,
            "parts": self.parts,
            "shards": {k: [asdict(each) for each in self.shards[k]] for k in sorted(self.shards)},
        }
        write_atomically(self.folder / MANIFEST, json.dumps(content, indent=1))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _parts(table: Table, most: int) -> Iterator[list[Any]]:
    """Yield the splits of each part: one after the other until it is as large as a shard."""
    held: list[Any] = []
    size = 0
    for split in table.splits():
        held.append(split)
        known = table.split_bytes(split)
        size += most if known is None else known
        if size >= most:
            yield held
            held, size = [], 0
    if held:
        yield held


def _write(
    table: Table,
    splits: Sequence[Any],
    stem: Path,
    format: Format,
    writes: Callable[..., None],
    most: int,
) -> Iterator[Shard]:
    """Write a part in as many shards as it needs, each whole or not at all; yield them."""
    schema = table.schema()
    batches = (batch for _, batch in table.read(splits, schema.names))
    for number, shard in enumerate(_cut(batches, most)):
        path = stem.with_name(f"{stem.name}-{number:03}.{format}")
        write_atomically(path, partial(writes, schema=schema, batches=shard))
        rows = sum(batch.num_rows for batch in shard)
        yield Shard(path.name, rows, path.stat().st_size, _digest(path))


def _cut(batches: Iterable[Any], most: int) -> Iterator[list[Any]]:
    """Yield record batches in lists of about ``most`` bytes."""
    held: list[Any] = []
    size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        size += batch.nbytes
        if size >= most:
            yield held
            held, size = [], 0
    if held:
        yield held


def _write_parquet(path: str, schema: Any, batches: Sequence[Any]) -> None:
    arrow = needs("pyarrow", "Parquet", "parquet")
    parquet = needs("pyarrow.parquet", "Parquet", "parquet")
    parquet.write_table(arrow.Table.from_batches(batches, schema), path, row_group_size=_ROW_GROUP)


def _write_records(lengths: dict[str, int], path: str, schema: Any, batches: Sequence[Any]) -> None:
    """Write rows as records; ``lengths`` holds how many values each column has in a row."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(path) as writer:
        for row in (row for batch in batches for row in batch.to_pylist()):
            flat = {name: _flat(value) for name, value in row.items()}
            features = {name: _feature(name, values) for name, values in flat.items()}
            for name, values in flat.items():
                _require_length(name, len(values), lengths.setdefault(name, len(values)))
            example = tf.train.Example(features=tf.train.Features(feature=features))
            writer.write(example.SerializeToString())


def _lengths(manifest: _Manifest) -> dict[str, int]:
    """Return how many values each column has in a row that an earlier call wrote."""
    import tensorflow as tf

    whole = (manifest.shards[number] for number in manifest.shards if manifest.holds(number))
    for shard in (shard for part in whole for shard in part):
        path = str(manifest.folder / shard.name)
        record = next(iter(tf.data.TFRecordDataset(path).take(1))).numpy()
        features = tf.train.Example.FromString(record).features.feature
        kinds = {name: getattr(each, each.WhichOneof("kind")) for name, each in features.items()}
        return {name: len(each.value) for name, each in kinds.items()}
    return {}


def _flat(value: Any) -> list[Any]:
    """Return the values of lists in lists one after the other; of anything else, it alone."""
    values = value if isinstance(value, list) else [value]
    while values and isinstance(values[0], list):
        values = [each for some in values for each in some]
    return values


def _require_length(name: str, length: int, first: int) -> None:
    """Refuse a row whose list is not as long as that of the first row."""
    if length != first:
        raise UserError(
            f"The lists of the column {name!r} are not all of one length.",
            expected=f"{first} values in each row, as in the first, which TFRecord is read by",
            received=f"{length}",
            fix="pad or cut them before, or write Parquet",
        )


def _feature(name: str, values: list[Any]) -> Any:
    """Return the values of a row as a feature of ``tf.train.Example``, truth values as 0 and 1."""
    import tensorflow as tf

    kinds = {type(each) for each in values}
    if kinds <= {int, bool} and max(values, default=0) < 2**63:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=map(int, values)))
    if kinds <= {int, float} and float in kinds:
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    if kinds <= {str, bytes}:
        encoded = [each.encode() if isinstance(each, str) else each for each in values]
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))
    raise UserError(
        f"The column {name!r} does not go into TFRecord.",
        expected="numbers (whole ones below 2**63), texts, bytes, or lists of them, without nulls",
        received=f"{', '.join(sorted(each.__name__ for each in kinds))}: {values!r:.60}",
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


def _stamps(files: Sequence[str]) -> list[tuple[str, int, int]]:
    """Return size and time of each local file."""
    local = (each for each in files if os.path.exists(each))
    return [(each, os.stat(each).st_size, os.stat(each).st_mtime_ns) for each in local]


@dataclass(frozen=True, repr=False)
class _ImageRows(Table):
    """The images of a folder as encoded bytes, with the numbers of their classes."""

    path: str

    def schema(self) -> Any:
        arrow = needs("pyarrow", "The table", "parquet")
        return arrow.schema({"image": arrow.binary(), "label": arrow.int64()})

    def count_examples(self) -> int:
        return ImageFolder(self.path).count()

    def fingerprint(self) -> str:
        return f"{self!r} {_stamps(ImageFolder(self.path).files())}"

    def splits(self) -> Sequence[Any]:
        files = ImageFolder(self.path).files()
        return [files[i : i + _FILES] for i in range(0, len(files), _FILES)]

    def split_bytes(self, split: Any) -> int | None:
        return sum(os.path.getsize(each) for each in split)

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
        arrow = needs("pyarrow", "The table", "parquet")
        folder = ImageFolder(self.path)
        classes, root = folder.classes, class_folders(self.path).train
        for files in splits:
            rows = {
                "image": [Path(each).read_bytes() for each in files],
                "label": [classes.index(Path(each).relative_to(root).parts[0]) for each in files],
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

    def count_examples(self) -> int:
        return self.records.count()

    def fingerprint(self) -> str:
        return f"{self.records!r} {_stamps(self.records.files())}"

    def splits(self) -> Sequence[Any]:
        return self.records.files()

    def split_bytes(self, split: Any) -> int | None:
        return os.path.getsize(split) if os.path.exists(split) else None

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
