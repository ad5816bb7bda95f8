"""Hand a compiled model and its data to fresh processes: what ``tfopt.tune(model, data)`` needs.

Both are written to a temporary folder, and each process makes the job out of it anew.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.data.fit_data import examples_of
from tfopt.data.stages import draws_random
from tfopt.errors import UserError, first_line
from tfopt.job.job import Job
from tfopt.job.model_checks import require_built_keras3, require_compiled
from tfopt.job.parts import Data
from tfopt.keras_internals import layers_of
from tfopt.measure.targets import Target

if TYPE_CHECKING:
    import keras

_MODEL, _NOTE, _DATASET, _PICKLE = "model.keras", "note.json", "dataset", "pickle"
_LIBRARIES = ("keras", "tfopt", "builtins")
SAVED_AS_BATCHES = "The dataset was saved as batches: what it costs to make them is not measured."
DRAWN_ONCE = "What it draws at random was drawn once: every epoch trains on the same examples."


def job(*, folder: str, epochs: int = 1, batch_size: int | None = None) -> Job:
    """Return the job of the model and the data in a folder that ``target_of_model`` has made."""
    place = Path(folder)
    model = _load(place / _MODEL, json.loads((place / _NOTE).read_text(encoding="utf-8")))
    data = Data(train=_read(place, "train"), test=_read(place, "test"), name="given data")
    return Job.from_model(model, data, epochs=epochs, batch_size=batch_size)


@contextmanager
def target_of_model(
    model: Any, data: Any, test: Any, settings: Mapping[str, Any]
) -> Iterator[tuple[Target, tuple[str, ...]]]:
    """Write a model and its data to a folder, gone afterwards; yield the target and remarks."""
    require_compiled(model, "tune")
    require_built_keras3(model)
    missing = "data" if data is None else "epochs" if settings["epochs"] is None else None
    if missing is not None:
        raise UserError(
            f"tune(model, ...) needs {missing}.",
            expected="tune(model, (x, y), epochs=10, test=(x_test, y_test))",
            received=f"no {missing}",
        )
    _require_free_gpu()
    with tempfile.TemporaryDirectory(prefix="tfopt-") as folder:
        place = Path(folder)
        parts = _own_parts(model)
        (place / _NOTE).write_text(json.dumps(parts), encoding="utf-8")
        model.save(place / _MODEL)
        _require_loadable(place / _MODEL, parts)
        batches = [_write(place, name, part) for name, part in (("train", data), ("test", test))]
        given = {name: value for name, value in settings.items() if value is not None}
        target = Target(model.name, f"{__name__}:job", arguments={"folder": folder, **given})
        remarks = (SAVED_AS_BATCHES, *([DRAWN_ONCE] if draws_random(data) else []))
        yield target, remarks if batches[0] else ()


def _require_free_gpu() -> None:
    """Refuse a caller whose TensorFlow has taken the whole GPU, which the children need."""
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    by_variable = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() in ("true", "1")
    if not by_variable and not all(tf.config.experimental.get_memory_growth(gpu) for gpu in gpus):
        raise UserError(
            "This process holds the GPU's memory, and the processes to measure in need it.",
            expected="a caller that takes no more than it needs",
            received="TensorFlow with all of the GPU",
            fix="set TF_FORCE_GPU_ALLOW_GROWTH=true before TensorFlow is imported, or write a "
            'function that makes the job, and tune("module:job") in a process of its own',
        )


def _own_parts(model: keras.Model) -> list[tuple[str, str]]:
    """Return (module, name) of the classes and functions that are not Keras's own."""
    import keras

    config = model.get_compile_config() or {}
    parts = [model, *layers_of(model), model.optimizer, model.loss]
    parts += keras.tree.flatten(config.get("metrics") or [])
    own = [part if callable(part) and hasattr(part, "__name__") else type(part) for part in parts]
    notebook = sorted({kind.__name__ for kind in own if kind.__module__ == "__main__"})
    if notebook:
        raise UserError(
            "The model has classes or functions that are made in this notebook or script.",
            expected="those of a module, which a fresh process can import",
            received=", ".join(notebook),
            fix="move them into a module, and import them from there",
        )
    names = {(kind.__module__, kind.__name__) for kind in own}
    return sorted(name for name in names if name[0].partition(".")[0] not in _LIBRARIES)


def _load(path: Path, parts: Iterable[tuple[str, str]]) -> Any:
    """Load a model; of one that was not trained yet, Keras warns of an optimizer without state.

    Its ``parts`` need not be registered.
    """
    import keras

    custom = {name: getattr(import_module(module), name, None) for module, name in parts}
    found = {name: part for name, part in custom.items() if part is not None}
    with warnings.catch_warnings(), keras.saving.custom_object_scope(found):
        warnings.filterwarnings("ignore", "Skipping variable loading", UserWarning)
        return keras.saving.load_model(path)


def _require_loadable(path: Path, parts: Iterable[tuple[str, str]]) -> None:
    try:
        _load(path, parts)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise UserError(
            "The model cannot be loaded from its file, as each fresh process does.",
            expected="layers that Keras saves whole; a Lambda keeps a function that it does not",
            received=first_line(error),
            fix="make a Layer subclass of it in a module, registered by "
            "keras.saving.register_keras_serializable()",
        ) from error


def _write(place: Path, name: str, part: Any) -> bool:
    """Write a part of the data; return whether it was saved as batches."""
    import numpy as np

    if part is None:
        return False
    kind = examples_of(part).kind
    if kind == "arrays":
        import keras

        part = keras.tree.map_structure(np.asarray, part)
    if kind in ("arrays", "source"):
        (place / f"{name}.{_PICKLE}").write_bytes(pickle.dumps(part))
    elif kind == "dataset":
        if int(part.cardinality()) < 0:
            raise UserError(
                f"The {name} dataset has no length, and cannot be saved.",
                expected="a dataset that ends, such as dataset.take(1000)",
                received=f"a cardinality of {int(part.cardinality())}",
                fix="take(...) as many batches as an epoch has, or "
                "dataset.apply(tf.data.experimental.assert_cardinality(n))",
            )
        part.save(str(place / f"{name}.{_DATASET}"))
    else:
        raise UserError(
            f"A {kind} cannot be handed to fresh processes.",
            expected="arrays, a tf.data.Dataset, or a source such as tfopt.data.Parquet(...)",
            received=f"a {type(part).__name__} for {name}",
            fix='write a function that makes the job, and give its name: tune("module:job")',
        )
    return kind == "dataset"


def _read(place: Path, name: str) -> Any:
    """Return what ``_write`` has written; None where there is nothing."""
    if (place / f"{name}.{_DATASET}").exists():
        import tensorflow as tf

        return tf.data.Dataset.load(str(place / f"{name}.{_DATASET}"))
    pickled = place / f"{name}.{_PICKLE}"
    return pickle.loads(pickled.read_bytes()) if pickled.exists() else None
