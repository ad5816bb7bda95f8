"""Read Spark DataFrames through Arrow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tfopt.data.sources.source import needs
from tfopt.data.sources.table import BLOCK_BYTES, Table
from tfopt.errors import UserError

_CAUSE = r"^(?:: |Caused by: )?([\w.$]*(?:Error|Exception): .*)"
"""The line of a Python or Java traceback with the error; the last one is the root cause."""


@dataclass(frozen=True, repr=False)
class Spark(Table):
    """Rows of a Spark DataFrame.

    The executors convert their partitions to Arrow batches, and each epoch runs the plan again,
    partition by partition and one in advance; ``frame.cache()`` avoids this. For several epochs or
    runs, ``frame.write.parquet(path)`` once, and ``Parquet(path)``.

    Attributes:
        data: A ``pyspark.sql.DataFrame``.

    Example:
        data = tfopt.pipeline(Spark(frame.cache(), label="y"), batch_size=256)
    """

    data: Any

    def schema(self) -> Any:
        return _arrow_schema(self._frame)

    def count_examples(self) -> int:
        return int(_run("be counted", self._frame.count))

    def splits(self) -> Sequence[Any]:
        # Partitions arrive in order: only the shuffle buffer mixes rows.
        return ("all",)

    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
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
        if not hasattr(self.data, "_jdf"):
            raise UserError(
                "A DataFrame of Spark Connect cannot be streamed.",
                expected="a DataFrame of a session with a driver in this process",
                received=f"{type(self.data).__module__}.{type(self.data).__name__}",
                fix="frame.write.parquet(path), which this process can read too, and Parquet(path)",
            )
        return self.data


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
