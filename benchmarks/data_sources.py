"""How fast each source yields the same rows, beside what one writes by hand.

``python benchmarks/data_sources.py`` makes 1,000,000 rows of 12 numbers, stores them as Parquet and
as TFRecord, and reads whole epochs in batches of 256. In each round the two sources of a comparison
are read back to back, in random order, and the figure is the ratio of their seconds. Finally
it reads 2 GiB of shuffled Parquet and prints the growth in memory.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import dask.dataframe
import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow as tf

import tfopt
from figures import save_figures
from tfopt.data import Dask, Parquet, Spark, TFRecord
from tfopt.measure.memory import peak_host_mib
from tfopt.report.statistics import compare_pairs
from tfopt.subprocesses import Child

BATCH = 256
NUMBERS = [f"f{i}" for i in range(12)]
BY_PANDAS = "pandas rows by hand"
PANDAS_PART, PANDAS_ROUNDS = 10, 2
"""Only a tenth of the rows go through the slowest, in two rounds; its seconds count ten times."""


def write_rows(folder: Path, rows: int) -> None:
    """Write the same rows as eight Parquet files and eight TFRecord files."""
    rng = np.random.default_rng(0)
    for part in range(8):
        x = rng.normal(size=(rows // 8, 12)).astype("float32")
        y = rng.integers(0, 2, rows // 8)
        (folder / "parquet").mkdir(exist_ok=True)
        (folder / "tfrecord").mkdir(exist_ok=True)
        table = pa.table({**dict(zip(NUMBERS, x.T, strict=True)), "y": y})
        pq.write_table(table, folder / "parquet" / f"{part}.parquet", row_group_size=1 << 16)
        with tf.io.TFRecordWriter(str(folder / "tfrecord" / f"{part}.tfrecord")) as writer:
            for row, label in zip(x, y, strict=True):
                writer.write(example(row, label))


def example(x: Any, y: int) -> bytes:
    features = {
        "x": tf.train.Feature(float_list=tf.train.FloatList(value=x)),
        "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[y])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def by_pandas(folder: Path) -> Any:
    """Return what tutorials write: a generator over the rows of a data frame."""
    frame = pd.read_parquet(folder / "parquet")
    frame = frame.iloc[: len(frame) // PANDAS_PART]

    def rows() -> Iterator[Any]:
        for row in frame.itertuples(index=False):
            yield np.array(row[:-1], "float32"), row[-1]

    spec = (tf.TensorSpec((12,), tf.float32), tf.TensorSpec((), tf.int64))
    return tf.data.Dataset.from_generator(rows, output_signature=spec).batch(BATCH).prefetch(2)


def by_arrow(folder: Path) -> Any:
    """Return a generator over Arrow's blocks of rows, cut into the batches of a step."""

    def blocks() -> Iterator[Any]:
        for part in range(8):
            file = pq.ParquetFile(folder / "parquet" / f"{part}.parquet")
            for batch in file.iter_batches(1 << 16):
                x = np.stack([batch[name].to_numpy() for name in NUMBERS], axis=1)
                yield x, batch["y"].to_numpy()

    spec = (tf.TensorSpec((None, 12), tf.float32), tf.TensorSpec((None,), tf.int64))
    dataset = tf.data.Dataset.from_generator(blocks, output_signature=spec).prefetch(2)
    return dataset.rebatch(BATCH).prefetch(tf.data.AUTOTUNE)


def through_tfopt(source: Any) -> Any:
    return tfopt.pipeline(source, batch_size=BATCH, shuffle=False)


def sources(folder: Path) -> dict[str, Callable[[], Any]]:
    """Return, by name, functions that make a dataset of one epoch."""
    rows, parquet = {"label": "y", "stack": True}, folder / "parquet"
    return {
        "parquet": lambda: through_tfopt(Parquet(parquet, **rows)),
        BY_PANDAS: lambda: by_pandas(folder),
        "arrow blocks by hand": lambda: by_arrow(folder),
        "tfrecord": lambda: through_tfopt(
            TFRecord(
                folder / "tfrecord", label="y", features="x", examples=Parquet(parquet).count()
            )
        ),
        "dask": lambda: through_tfopt(Dask(dask.dataframe.read_parquet(parquet), **rows)),
        "spark": lambda: through_tfopt(Spark(spark_frame(folder), **rows)),
    }


def spark_frame(folder: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    return builder.getOrCreate().read.parquet(str(folder / "parquet"))


def epoch(dataset: Any) -> tuple[float, float]:
    """Return the seconds of a whole epoch, and of what comes after its first batch."""
    begin = time.perf_counter()
    iterator = iter(dataset)
    next(iterator)
    first = time.perf_counter()
    for _ in iterator:
        pass
    end = time.perf_counter()
    return end - begin, end - first


# (tried, reference, after the first batch)
COMPARED = (
    (BY_PANDAS, "parquet", False),
    ("parquet", "arrow blocks by hand", False),
    ("parquet", "tfrecord", False),
    ("dask", "parquet", True),
    ("spark", "parquet", True),
)
LARGE_FILES, LARGE_ROWS = 24, 1_300_000


def write_large(folder: Path) -> float:
    """Write 24 files of about 60 MiB; return their MiB together."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    x = rng.normal(size=(LARGE_ROWS, 12)).astype("float32")
    table = pa.table({**dict(zip(NUMBERS, x.T, strict=True)), "y": np.zeros(LARGE_ROWS, "int64")})
    pq.write_table(table, folder / "0.parquet", row_group_size=1 << 16)
    for number in range(1, LARGE_FILES):
        shutil.copy(folder / "0.parquet", folder / f"{number}.parquet")
    return sum(each.stat().st_size for each in folder.iterdir()) / 1024**2


def peak_mib(folder: Path) -> float:
    """Return by how many MiB this process grows at most while it reads one shuffled epoch."""
    data = tfopt.pipeline(Parquet(folder, label="y", stack=True), batch_size=BATCH)
    next(iter(data))  # what TensorFlow and Arrow take once
    before = psutil.Process().memory_info().rss / 1024**2
    for _ in data:
        pass
    return peak_host_mib({}) - before


def main() -> None:
    from data_sources import peak_mib  # by a name that a child process finds

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder, options.rows)
        made = {name: make() for name, make in sources(folder).items()}
        seconds: dict[str, list[float]] = {name: [] for name in made}
        pairs: dict[Any, list[tuple[float, float]]] = {each: [] for each in COMPARED}
        rng = np.random.default_rng(0)
        for number in range(options.rounds + 1):
            for compared in (COMPARED[i] for i in rng.permutation(len(COMPARED))):
                tried, reference, after_first = compared
                if tried == BY_PANDAS and number > PANDAS_ROUNDS:
                    continue
                taken = {}
                for name in rng.permutation([tried, reference]):
                    taken[name] = epoch(made[name])
                    print(f"round {number}: {name} {taken[name][0]:.2f} s", flush=True)
                if number:  # the first one warms up caches and Java
                    part = PANDAS_PART if tried == BY_PANDAS else 1
                    times = part * taken[tried][after_first], taken[reference][after_first]
                    pairs[compared].append(times)
                    for name in taken:
                        seconds[name].append(taken[name][0])
        large_mib = write_large(folder / "large")
        with Child() as child:
            peak = child(peak_mib, folder / "large")
        print(f"{large_mib:.0f} MiB read, the process grew by {peak:.0f} MiB")
    ratios = {}
    for (tried, reference, after_first), times in pairs.items():
        name = f"seconds of {tried} / {reference}" + (", after the first batch" * after_first)
        own, other = zip(*times, strict=True)
        ratios[name] = asdict(compare_pairs(other, own))
        print(name, ratios[name])
    rates = {
        name: round(options.rows / (PANDAS_PART if name == BY_PANDAS else 1) / float(np.median(s)))
        for name, s in seconds.items()
    }
    figures = {"examples_per_second": rates, "large_mib": large_mib, "grown_mib": peak}
    save_figures("data_sources", ratios=ratios, **figures)


if __name__ == "__main__":
    main()
