"""Keep a training at epochs' ends in a folder, to go on from.

A checkpoint holds the epoch, the model and its optimizers; that of another training is refused.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import logging
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfopt.errors import UserError
from tfopt.resume.folder import take
from tfopt.resume.identity import identity_of, require_the_same
from tfopt.resume.store import Store
from tfopt.resume.variables import Named, put_back, values_of, variables_of

_log = logging.getLogger("tfopt")
_KEPT = 3


def take_folder(checkpoint: str | Path, held: ExitStack) -> Path:
    """Return the folder, made if need be; no other training may use it while ``held`` is open."""
    folder = Path(checkpoint).expanduser()
    take(folder, Store(folder, _KEPT), held, writes=True)
    return folder


class Progress:
    """The checkpoints of one training, that of ``local``, a built model, on such elements."""

    def __init__(self, folder: Path, local: Any, element_spec: Any) -> None:
        self.folder = folder
        self._store = Store(folder, _KEPT)
        self._identity = _identity(local, element_spec)

    def go_on(self, model: Any) -> int:
        """Put back the newest that is whole; return how many epochs that were."""
        found = self._store.read_newest()
        if found is None:
            return 0
        name, state = found
        require_the_same(found, self._identity, self.folder)
        for named, values in zip(_variables(model), state["variables"], strict=True):
            put_back(named.variable, values)
        _log.info("going on from %s", self.folder / name)
        return int(state["epoch"])

    def keep(self, epoch: int, model: Any) -> None:
        """Add a checkpoint of the model after ``epoch`` finished epochs, if there is room."""
        values = [values_of(each.variable) for each in _variables(model)]
        state = {"identity": self._identity, "epoch": epoch, "variables": values}
        try:
            self._store.write(state, epoch)
        except UserError as error:
            warnings.warn(
                f"No checkpoint was written after epoch {epoch}: {error.what} ({error.received}) "
                "The training goes on.",
                RuntimeWarning,
                stacklevel=2,
            )


def copy(model: Any, other: Any) -> None:
    """Copy the variables of ``model`` to ``other``, a second model of the same make."""
    for here, there in zip(_variables(model), _variables(other), strict=True):
        put_back(there.variable, values_of(here.variable))


def _variables(model: Any) -> list[Named]:
    """Return the variables that last: not the metrics, which begin anew with each epoch."""
    passing = {id(each.value) for each in model.metrics_variables}
    found = variables_of(model)
    return [each for each in found if each.trainable or id(each.variable) not in passing]


def _identity(model: Any, element_spec: Any) -> dict[str, Any]:
    """Return what must be the same to go on: not how many workers there are."""
    examples = [
        [str(each.shape[1:]), each.dtype.name] for each in tf.nest.flatten(element_spec, True)
    ]
    return identity_of(model, _variables(model), {"examples": examples}, workers=1)
