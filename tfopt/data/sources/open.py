"""Choose the source for a path, a data frame or a table."""

from __future__ import annotations

import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

from tfopt.data.sources.arrow_table import ArrowTable
from tfopt.data.sources.csv import Csv
from tfopt.data.sources.dask import Dask
from tfopt.data.sources.hugging_face import HuggingFace
from tfopt.data.sources.image_folder import ImageFolder
from tfopt.data.sources.parquet import Parquet
from tfopt.data.sources.spark import Spark
from tfopt.data.sources.tfds import TFDS
from tfopt.data.sources.tfrecord import TFRecord
from tfopt.errors import UserError
from tfopt.files import nearest_path
from tfopt.job.parts import Data

_SUFFIXES: dict[str, type[Any]] = {
    ".parquet": Parquet,
    ".pq": Parquet,
    ".csv": Csv,
    ".tfrecord": TFRecord,
    ".tfrecords": TFRecord,
}


def open_source(data: Any, label: Any = None, features: Any = None) -> Any:
    """Return the source for a path, a data frame or a table, and anything else as it is.

    Arrays and batches have no columns: ``label`` and ``features`` are refused for them.

    Example:
        open_source("train.parquet", label="y")  # Parquet(label='y', path='train.parquet')
    """
    kind = _kind(data)
    if kind is None:
        if label is not None or features is not None:
            raise UserError(
                "label and features need data with columns.",
                expected="a path, a data frame or a table",
                received=type(data).__name__,
                fix="give them to the source: Parquet(path, label=...); give arrays as (x, y)",
            )
        return data
    settings = {"label": label, "features": features}
    given = {name: value for name, value in settings.items() if value is not None}
    for name in given.keys() - {field.name for field in fields(kind)}:
        raise UserError(
            f"{kind.__name__} has no columns, and so no {name}.",
            expected=f"no {name} beside {data}",
            received=f"{name}={settings[name]!r}",
        )
    return kind(data, **given)


def with_sources(data: Data) -> Data:
    """Return a job's data with sources for its paths and data frames."""
    parts = {
        name: open_source(part, data.label, data.features)
        for name in ("train", "test", "validation")
        if (part := getattr(data, name)) is not None
    }
    return replace(data, **parts, label=None, features=None)


def open_part(data: Any, part: Literal["train", "test"]) -> Any:
    """Return the source of one part of a ``Data``, or of data without parts."""
    if not isinstance(data, Data):
        return open_source(data)
    examples = getattr(data, part)
    if examples is None:
        raise UserError(
            f"The data has no {part} part.",
            expected="tfopt.Data(train=..., test=...)",
            received=f"{part}=None",
        )
    return open_source(examples, data.label, data.features)


def _kind(data: Any) -> type[Any] | None:
    """Return the class of the source; None for data that ``fit`` takes, and for sources."""
    if isinstance(data, str | os.PathLike):
        return _kind_of_path(os.fspath(data))
    package = type(data).__module__.partition(".")[0]
    if package == "dask" and hasattr(data, "to_delayed") and hasattr(data, "columns"):
        return Dask
    if package == "pyspark":
        return Spark
    if package == "datasets":
        return HuggingFace
    return ArrowTable if hasattr(data, "__arrow_c_stream__") else None


def _kind_of_name(path: Path) -> type[Any] | None:
    """Return the class for a file by its endings: "a.csv.gz", "a.tfrecord-00000-of-00010"."""
    endings = (suffix.partition("-")[0].lower() for suffix in path.suffixes)
    return next((_SUFFIXES[ending] for ending in endings if ending in _SUFFIXES), None)


def _kind_of_path(path: str) -> type[Any]:
    folder = Path(path).expanduser()
    if kind := _kind_of_name(folder):
        return kind
    if folder.is_dir():
        if (folder / "features.json").exists():
            return TFDS
        if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
            return HuggingFace
        for file in sorted(file for file in folder.rglob("*") if file.is_file()):
            if file.suffix.lower() in (".jpg", ".jpeg", ".png", ".gif", ".bmp"):
                return ImageFolder
            if kind := _kind_of_name(file):
                return kind
    if not folder.exists():
        raise UserError(
            f"{path} does not exist.", expected="a file or a folder", fix=nearest_path(folder)
        )
    raise UserError(
        f"The format of {path} is unknown.",
        expected=f"files {', '.join(_SUFFIXES)}, a folder of them, of images by class, or of a "
        "data set of TFDS or Hugging Face",
        received="a folder without such files" if folder.is_dir() else "another ending",
        fix="name the source: tfopt.data.Parquet(path, ...); load arrays by np.load",
    )
