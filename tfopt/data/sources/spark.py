"""Read Spark DataFrames through Arrow, or from Parquet files that Spark writes once."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from tfopt.data.sources.parquet import Parquet
from tfopt.data.sources.source import needs
from tfopt.data.sources.table import Table
from tfopt.errors import UserError

_log = logging.getLogger("tfopt")


@dataclass(frozen=True, repr=False)
class Spark(Table):
    """Rows of a Spark DataFrame.

    Without a folder the executors turn their partitions into Arrow batches, and each epoch runs
    the plan again, partition by partition, the next one while the last one trains; ``df.cache()``
    spares Spark that. With ``folder`` Spark writes the rows there once, as Parquet, and every epoch
    reads the files, as later runs do for as long as the folder is there: delete it where the rows
    have changed. Several workers do not write it together: let one process do it before.

    Attributes:
        data: A ``pyspark.sql.DataFrame``.
        folder: Where Spark writes Parquet, readable by this process too; None: nothing is written.

    Example:
        data = tfopt.pipeline(Spark(frame, label="y", folder="/scratch/train"), batch_size=256)
    """

    data: Any
    folder: str | None = None

    def schema(self) -> Any:
        types = needs("pyspark.sql.pandas.types", "Spark", "spark")
        if self.folder is not None:
            return self._written.schema()
        return types.to_arrow_schema(self._frame.schema)

    def count_examples(self) -> int:
        if self.folder is not None:
            return self._written.count()
        frame = self._frame
        if self.on_bad == "skip":
            # dropna would drop NaN as well.
            for name in self.layout().unfilled:
                frame = frame.where(frame[name].isNotNull())
        return int(_run("be counted", frame.count))

    def splits(self) -> Sequence[Any]:
        # Spark hands out partitions in order; a shuffle mixes rows within the buffer.
        return self._written.splits() if self.folder is not None else ("all",)

    def split_bytes(self, split: Any) -> int | None:
        return self._written.split_bytes(split) if self.folder is not None else None

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
        if self.folder is not None:
            yield from self._written.read(splits, columns)
            return
        arrow = needs("pyarrow", "Spark", "spark")
        packed = self._frame.select(*columns).mapInArrow(_to_bytes(), "batch binary")
        rows = _run("be started", lambda: _as_rdd(packed).toLocalIterator(prefetchPartitions=True))
        number = 0
        while (row := _run("hand out a batch", lambda: next(rows, None))) is not None:
            with arrow.ipc.open_stream(row.batch) as stream:
                for batch in stream:
                    yield f"batch {number} of the DataFrame", batch
            number += 1

    @cached_property
    def _frame(self) -> Any:
        needs("pyspark", "Spark", "spark")
        if not hasattr(self.data, "mapInArrow") or not hasattr(self.data, "toLocalIterator"):
            raise UserError(
                "Spark takes a DataFrame of pyspark.sql.",
                expected="a pyspark.sql.DataFrame",
                received=type(self.data).__name__,
            )
        return self.data

    @cached_property
    def _written(self) -> Parquet:
        """Write the rows as Parquet, and return those files as a source."""
        assert self.folder is not None
        folder = Path(self.folder).expanduser()
        if (folder / "_SUCCESS").exists():
            there = Parquet(path=str(folder), **self._settings())
            if sorted(there.schema().names) == sorted(self._frame.columns):
                _log.info("spark: reading the rows that are in %s already", folder)
                return there
        if folder.exists() and any(folder.iterdir()):
            raise UserError(
                f"{folder} is not empty.",
                expected="a folder to write the rows of the DataFrame to",
                received=", ".join(sorted(each.name for each in folder.iterdir())[:3]),
                fix="delete it, or name another folder",
            )
        _log.info("spark: writing the rows once, to %s", folder)
        try:
            _run("be written", lambda: self._frame.write.parquet(str(folder), mode="overwrite"))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Parquet(path=str(folder), **self._settings())

    def _settings(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(Table)}


def _to_bytes() -> Any:
    """Return a function that makes each Arrow batch one row of bytes.

    Spark sends a function made here to its executors by value: tfopt need not be installed there.
    """

    def packed(batches: Any) -> Any:
        import pyarrow as pa

        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.RecordBatch.from_pydict({"batch": [sink.getvalue().to_pybytes()]})

    return packed


def _as_rdd(frame: Any) -> Any:
    """Return the rows as an RDD; a frame of Spark Connect, which refuses or lacks it, as it is.

    After ``DataFrame.toLocalIterator`` Spark 4.3 holds all rows in the driver's memory.
    """
    try:
        return frame.rdd
    except (NotImplementedError, AttributeError):
        return frame


def _run(what: str, action: Any) -> Any:
    """Return what Spark answers; its failures are UserErrors of one line."""
    try:
        return action()
    except UserError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        cause = re.findall(r"^[\w.]*(?:Error|Exception): .*", text, re.MULTILINE)[-1]
        raise UserError(
            f"The Spark DataFrame could not {what}.",
            expected="a Spark session that runs, and a plan without errors",
            received=cause,
            fix="run the action by itself, as frame.count(), to see Spark's whole error",
        ) from error
