"""Find the source that a path or an object of an engine stands for."""

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
from tfopt.errors import UserError, hashable
from tfopt.job.parts import Data

_SUFFIXES: dict[str, type[Any]] = {
    ".parquet": Parquet,
    ".pq": Parquet,
    ".csv": Csv,
    ".tfrecord": TFRecord,
    ".tfrecords": TFRecord,
}


def open_source(data: Any, label: Any = None, features: Any = None) -> Any:
    """Return the source that a path, a data frame or a table stands for.

    What is no path and belongs to no engine is returned as it is; ``label`` and ``features`` are
    then refused, since arrays and batches have no columns.

    Example:
        open_source("train.parquet", label="y")  # Parquet(label='y', path='train.parquet')
    """
    kind = _kind(data)
    if kind is None:
        if label is not None or features is not None:
            raise UserError(
                "label and features name columns, and the data has none.",
                expected="a path, a data frame, or a table beside them",
                received=type(data).__name__,
                fix="a source takes them itself: Parquet(path, label=...); of arrays give (x, y)",
            )
        return data
    settings = {"label": label, "features": features}
    given = {name: hashable(value) for name, value in settings.items() if value is not None}
    known = {each.name for each in fields(kind)}
    for name in given.keys() - known:
        raise UserError(
            f"{kind.__name__} has no columns, and so no {name}.",
            expected=f"no {name} beside {data}",
            received=f"{name}={settings[name]!r}",
        )
    return kind(data, **given)


def with_sources(data: Data) -> Data:
    """Return a job's data with the sources that its paths and data frames stand for."""
    parts = {
        name: open_source(part, data.label, data.features)
        for name in ("train", "test", "validation")
        if (part := getattr(data, name)) is not None
    }
    return replace(data, **parts, label=None, features=None)


def open_part(data: Any, part: Literal["train", "test"]) -> Any:
    """Return the source of one part of a job's data; of any other data, the source of it all."""
    if not isinstance(data, Data):
        return open_source(data)
    found = getattr(data, part)
    if found is None:
        raise UserError(
            f"The data has no {part} part.",
            expected="tfopt.Data(train=..., test=...)",
            received=f"{part}=None",
        )
    return open_source(found, data.label, data.features)


def _kind(data: Any) -> type[Any] | None:
    """Return the class of the source; None for what ``fit`` takes, and for sources themselves."""
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


def _kind_of_path(path: str) -> type[Any]:
    for suffix in (each.lower() for each in Path(path).suffixes):
        for known, kind in _SUFFIXES.items():
            if suffix == known or suffix.startswith(f"{known}-"):
                return kind
    folder = Path(path).expanduser()
    if folder.is_dir():
        if (folder / "features.json").exists():
            return TFDS
        if (folder / "state.json").exists() or (folder / "dataset_dict.json").exists():
            return HuggingFace
        for file in sorted(each for each in folder.rglob("*") if each.is_file()):
            if file.suffix.lower() in (".jpg", ".jpeg", ".png", ".gif", ".bmp"):
                return ImageFolder
            for part in file.suffixes:
                if part.lower() in _SUFFIXES:
                    return _SUFFIXES[part.lower()]
    raise UserError(
        f"{path} is no data that tfopt knows.",
        expected=f"files {', '.join(_SUFFIXES)}, a folder of them, of images by class, or of a "
        "data set of TFDS or Hugging Face",
        received="a folder without such files" if folder.is_dir() else "no such file or ending",
        fix="name the source: tfopt.data.Parquet(path, ...)",
    )
