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
from tfopt.data.sources.table import BLOCK_BYTES, Table
from tfopt.errors import UserError

_log = logging.getLogger("tfopt")
_CAUSE = r"^(?:: |Caused by: )?([\w.$]*(?:Error|Exception): .*)"
"""The line of a Python or Java traceback with the error; the last one is the root cause."""


@dataclass(frozen=True, repr=False)
class Spark(Table):
    """Rows of a Spark DataFrame.

    Without a folder the executors convert their partitions to Arrow batches, and each epoch runs
    the plan again, partition by partition and one in advance; ``df.cache()`` avoids this. With
    ``folder`` Spark writes the rows there once, as Parquet, and every epoch and later run reads
    the files: delete the folder when the rows have changed. With several workers, write it
    before by one process.

    Attributes:
        data: A ``pyspark.sql.DataFrame``.
        folder: A folder for Parquet files that Spark and this process can both reach; None
            writes nothing.

    Example:
        data = tfopt.pipeline(Spark(frame, label="y", folder="/scratch/train"), batch_size=256)
    """

    data: Any
    folder: str | None = None

    def schema(self) -> Any:
        return _arrow_schema(self._frame) if self.folder is None else self._written.schema()

    def count_examples(self) -> int:
        if self.folder is not None:
            return self._written.count()
        return int(_run("be counted", self._frame.count))

    def splits(self) -> Sequence[Any]:
        # Partitions arrive in order: only the shuffle buffer mixes rows.
        return self._written.splits() if self.folder is not None else ("all",)

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
        if self.folder is not None:
            yield from self._written.read(splits, columns)
            return
        arrow = needs("pyarrow", "Spark", "spark")
        frame = self._frame.select(*columns)
        schema, batches = _arrow_schema(frame), _run("be started", lambda: _arrow_batches(frame))
        full = int(frame.sparkSession.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))
        block, number = [], 0
        while (batch := _run("yield a batch", lambda: next(batches, None))) is not None:
            block.append(arrow.ipc.read_record_batch(arrow.py_buffer(batch), schema))
            # A batch that is not full ends its partition, and the next partition may take long.
            is_full = 0 < full <= block[-1].num_rows
            if not is_full or sum(part.nbytes for part in block) >= BLOCK_BYTES:
                yield f"batch {number} of the DataFrame", arrow.concat_batches(block)
                number += 1
                block.clear()
        if block:
            yield f"batch {number} of the DataFrame", arrow.concat_batches(block)

    @cached_property
    def _frame(self) -> Any:
        needs("pyspark", "Spark", "spark")
        if not isinstance(self.data, needs("pyspark.sql", "Spark", "spark").DataFrame):
            raise UserError(
                "Spark takes a DataFrame of pyspark.sql.",
                expected="a pyspark.sql.DataFrame",
                received=type(self.data).__name__,
            )
        if self.folder is None and not hasattr(self.data, "_jdf"):
            raise UserError(
                "A DataFrame of Spark Connect cannot be streamed.",
                expected="a DataFrame of a session with a driver in this process, or folder=",
                received=f"{type(self.data).__module__}.{type(self.data).__name__}",
                fix='folder="...", which Spark and this process can both reach',
            )
        return self.data

    @cached_property
    def _written(self) -> Parquet:
        """Write the rows as Parquet, and return those files as a source."""
        assert self.folder is not None
        folder = Path(self.folder).expanduser()
        if (folder / "_SUCCESS").exists():
            _log.warning("spark: reading the existing rows in %s", folder)
            return Parquet(path=str(folder), **self._settings())
        if folder.exists() and any(folder.iterdir()):
            raise UserError(
                f"{folder} is not empty.",
                expected="an empty folder for the rows of the DataFrame",
                received=", ".join(sorted(path.name for path in folder.iterdir())[:3]),
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
        return {field.name: getattr(self, field.name) for field in fields(Table)}


def _arrow_schema(frame: Any) -> Any:
    """Return the schema of a frame's Arrow batches, without running it."""
    return _run("be described", lambda: frame.limit(0).toArrow().schema)


def _arrow_batches(frame: Any) -> Iterator[bytes]:
    """Yield Arrow batches in the stream format, partition by partition, one in advance.

    By the private methods behind ``DataFrame.toArrow``, which holds all rows at once. In Spark
    4.3 ``mapInArrow`` takes 1.5 times as long, and ``DataFrame.toLocalIterator`` keeps all rows
    of an epoch in the driver's memory.
    """
    rdd = needs("pyspark.rdd", "Spark", "spark")
    serializers = needs("pyspark.serializers", "Spark", "spark")
    java_rdd = frame._jdf.toArrowBatchRdd().toJavaRDD()
    batches = rdd.RDD(java_rdd, frame.sparkSession.sparkContext, serializers.NoOpSerializer())
    return iter(batches.toLocalIterator(prefetchPartitions=True))


def _run(what: str, action: Any) -> Any:
    """Return the result of an action of Spark; raise its failure as a UserError."""
    try:
        return action()
    except UserError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        cause = re.findall(_CAUSE, text, re.MULTILINE)[-1]
        raise UserError(
            f"The Spark DataFrame could not {what}.",
            expected="a running Spark session, and a plan without errors",
            received=cause,
            fix="run an action such as frame.count() to see Spark's whole error",
        ) from error
