"""Read saved models, with what tfopt holds in them.

Importing this registers what ``keras.models.load_model`` needs for such files. A file saved after
``tfopt.strip`` needs nothing of it.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

from tfopt.compress.saved_class import CompressedModel
from tfopt.compress.weight_clusters import WeightClusters
from tfopt.compress.weight_mask import WeightMask
from tfopt.errors import UserError, first_line

__all__ = [
    "CompressedModel",
    "WeightClusters",
    "WeightMask",
    "as_model",
    "read_model",
]


def as_model(model: Any) -> Any:
    """Return the Keras model in a .keras file, or the model that was given in its place."""
    return read_model(model) if isinstance(model, str | os.PathLike) else model


def read_model(path: str | os.PathLike[str], *, compiled: bool = True) -> Any:
    """Return the Keras model in a .keras file."""
    import keras

    file = Path(path).expanduser()
    if not file.is_file() or not zipfile.is_zipfile(file):
        raise UserError(
            f"{file} is not a saved Keras 3 model.",
            expected="a .keras file, as model.save('model.keras') writes it",
            received="no such file"
            if not file.exists()
            else "another kind of file, or a damaged one",
            fix="model.save('model.keras') in the program that has the model",
        )
    try:
        return keras.models.load_model(file, compile=compiled)
    except Exception as error:
        raise UserError(
            f"Keras cannot load {file}.",
            expected="a file whose classes are Keras's, tfopt's or registered",
            received=first_line(error),
            fix="import the module that registers your classes "
            "(@keras.saving.register_keras_serializable()) before, or pass the model itself; on "
            "the command line `tfopt export --examples my.module:function` imports it, and "
            "`tfopt optimize --data my.module:function`",
        ) from error
