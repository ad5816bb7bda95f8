"""Train a small network on a table: numbers normalised, categories embedded.

Run it with ``python -m tfopt.recipes.tabular``: it writes a table as Parquet. ``--data dask`` and
``--data spark`` read the same table through those engines, ``--data PATH`` reads yours.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt import Execution, Job, LearningRate, Pipeline, Quantize, chain
from tfopt.data.sources.source import ReadOrder, Source
from tfopt.errors import UserError, require_count
from tfopt.job.parts import Data
from tfopt.recipes.plain_job import BINARY, plain_job, require_counts, run_recipe

if TYPE_CHECKING:
    import keras
    import numpy as np

CHAIN = chain(
    LearningRate(peak=0.004, warmup=0.1, decay="cosine"),
    Pipeline(batch_size=200, cache="memory"),
    Execution(steps_per_execution=20),
    Quantize(precision="int8"),
)
NUMBERS = tuple(f"number_{i}" for i in range(8))
CATEGORIES = {"device": 6, "city": 200, "weekday": 7}
MADE = ("auto", "synthetic", "dask", "spark")
_TABLE_VERSION = 1  # of what made_table writes: another number is another folder


def job(
    *,
    data: str = "auto",
    label: str = "label",
    categories: str | Sequence[str] = tuple(CATEGORIES),
    rows: int = 40_000,
    width: int = 64,
    batch_size: int = 32,
    epochs: int = 3,
    steps: int | None = None,
    seed: int = 0,
) -> Job:
    """Return the plain job: two layers, Adam at its default rate, batches of 32.

    Args:
        data: "auto" makes a table and reads it from Parquet, "dask" and "spark" through those
            engines; or a folder with ``train`` and ``test`` in it, of Parquet or CSV.
        label: The column of a table of yours that is 0 or 1.
        categories: Its column, or columns, of whole numbers from 0 that stand for categories, as
            those of texts do; all the others are taken as numbers.
        rows: Of the table that is made, for training; a quarter as many for the test.
        width: Units of each hidden layer.
    """
    require_count("rows", rows, minimum=100)
    require_counts(width=width)
    if data not in MADE and not Path(data).expanduser().is_dir():
        raise UserError(
            "There is no such table.",
            expected=f"{', '.join(MADE)}, or a folder with train and test in it",
            received=repr(data),
        )
    categories = (categories,) if isinstance(categories, str) else tuple(categories)
    source = functools.partial(load_table, data, label, rows)
    build = functools.partial(network, source, categories, width)
    return plain_job("tabular", build, source, batch_size, epochs, steps, seed, loss=BINARY)


def network(source: Any, categories: tuple[str, ...], width: int) -> keras.Model:
    """Return a network of one input a column, fitted to the training part.

    Each category that it lacks is the same one more.
    """
    import keras
    from keras import layers

    table = source().train
    columns = _statistics(table)
    categories += tuple(getattr(table, "texts", ()))
    if unknown := sorted({*categories} - columns.keys()):
        raise UserError(
            f"categories names columns that the table does not have: {', '.join(unknown)}.",
            expected=f"some of {', '.join(columns)}; [] for none",
            received=repr(list(categories)),
        )
    inputs, parts = {}, []
    for name, (mean, variance, largest) in columns.items():
        inputs[name] = keras.Input((1,), name=name)
        if name in categories:
            unseen = int(largest) + 1
            index = keras.ops.minimum(keras.ops.cast(inputs[name], "int32"), unseen)
            parts.append(layers.Flatten()(layers.Embedding(unseen + 1, 8)(index)))
        else:
            parts.append(layers.Normalization(mean=mean, variance=variance)(inputs[name]))
    x = layers.Concatenate()(parts)
    for _ in range(2):
        x = layers.Dense(width, activation="relu")(x)
    outputs = layers.Dense(1, activation="sigmoid", name="head")(x)
    return keras.Model(inputs, outputs, name="tabular")


def load_table(data: str, label: str, rows: int) -> Data:
    """Return the sources of both parts; a table that is to be made is written first, once."""
    folder = made_table(rows) if data in MADE else Path(data).expanduser()
    parts = {part: _opened_by(data, folder / part, label) for part in ("train", "test")}
    if data not in MADE:
        return Data(**_numbered(**parts), name=str(folder))
    note = f"made of random numbers, {rows:,} rows of Parquet, not real"
    return Data(**parts, name="table", note=note if data in MADE[:2] else f"{note}, by {data}")


class _Numbered(Source):
    """A table with numbers in place of ``texts``: from 1 those of the training, 0 for any other."""

    def __init__(self, table: Source, texts: Mapping[str, list[str]]) -> None:
        self.table, self.texts = table, texts

    def __repr__(self) -> str:
        return repr(self.table)

    def count_examples(self) -> int:
        return self.table.count()

    def batches(self, batch_size: int, reading: ReadOrder) -> Any:
        import keras

        number = {name: keras.layers.StringLookup(vocabulary=v) for name, v in self.texts.items()}

        def numbered(x: Mapping[str, Any], y: Any) -> tuple[dict[str, Any], Any]:
            return {n: number[n](value) if n in number else value for n, value in x.items()}, y

        return self.table.batches(batch_size, reading).map(numbered)


def _numbered(train: Source, test: Source) -> dict[str, Any]:
    """Return both parts with the texts of the training part as numbers."""
    texts: dict[str, set[bytes]] = {}
    for x, _ in train:
        for name in (name for name, values in x.items() if values.dtype == object):
            texts.setdefault(name, set()).update(x[name])
        if not texts:
            return {"train": train, "test": test}
    known = {name: sorted(text.decode() for text in values) for name, values in texts.items()}
    return {"train": _Numbered(train, known), "test": _Numbered(test, known)}


def _opened_by(engine: str, path: Path, label: str) -> Any:
    """Return a folder of files as a source, that of an engine where ``engine`` names one."""
    from tfopt.data.sources.open import open_source
    from tfopt.data.sources.source import needs

    if engine == "dask":
        frame = needs("dask.dataframe", "--data dask", "dask").read_parquet(path)
        return open_source(frame, label=label)
    if engine == "spark":
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        sql = needs("pyspark.sql", "--data spark", "spark")
        session = sql.SparkSession.builder.master("local[*]").getOrCreate()
        return open_source(session.read.parquet(str(path)).cache(), label=label)
    return open_source(path, label=label)


def made_table(rows: int, folder: Path | None = None) -> Path:
    """Return a folder with ``train`` and ``test``, written under ``~/.cache/tfopt`` unless there.

    The label is 1 with a chance that depends on products of numbers and on the city.
    """
    import numpy as np

    root = folder or Path.home() / ".cache" / "tfopt" / f"tabular_{rows}_v{_TABLE_VERSION}"
    rng = np.random.default_rng(0)
    of_city = rng.normal(size=CATEGORIES["city"])
    for part, count in (("train", rows), ("test", max(rows // 4, 25))):
        columns = {name: rng.normal(size=count).astype("float32") for name in NUMBERS}
        columns |= {name: rng.integers(0, n, count) for name, n in CATEGORIES.items()}
        first, second, third = (columns[name] for name in NUMBERS[:3])
        score = 2 * first * second + third + of_city[columns["city"]]
        columns["label"] = (score + rng.logistic(size=count) * 0.5 > 0).astype("int32")
        _write(root / part / "rows.parquet", columns)
    return root


def _write(path: Path, columns: dict[str, np.ndarray[Any, Any]]) -> None:
    """Write a table as Parquet unless it is there; several processes may do so at a time."""
    from tfopt.data.sources.source import needs
    from tfopt.files import prepare_folder, write_atomically

    if path.exists():
        return
    arrow = needs("pyarrow", "The table", "parquet")
    parquet = needs("pyarrow.parquet", "The table", "parquet")
    prepare_folder(path.parent)
    table = arrow.table(columns)
    write_atomically(path, lambda target: parquet.write_table(table, target, row_group_size=5_000))


def _statistics(source: Any) -> dict[str, tuple[float, float, float]]:
    """Return mean, variance and maximum of each column, reading the table once."""
    import numpy as np

    count = 0
    sums: dict[str, tuple[float, float, float]] = {}
    for x, y in source:
        if not np.isin(y, (0, 1)).all():
            raise UserError(
                "The label is not 0 or 1 in every row.",
                expected="two classes, numbered 0 and 1",
                received=", ".join(map(repr, np.unique(y)[:5].tolist())),
            )
        for name, values in x.items():
            whole = values.astype("float64")
            first, second, largest = sums.get(name, (0.0, 0.0, -np.inf))
            sums[name] = (
                first + whole.sum(),
                second + np.square(whole).sum(),
                max(largest, whole.max()),
            )
        count += len(values)
    return {
        name: (first / count, max(second / count - (first / count) ** 2, 1e-12), largest)
        for name, (first, second, largest) in sums.items()
    }


if __name__ == "__main__":
    folder = "a folder with train and test of Parquet or CSV"
    run_recipe("tabular", CHAIN, sources=MADE, data=folder)
