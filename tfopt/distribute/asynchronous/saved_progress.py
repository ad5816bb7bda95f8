"""Save a training at the ends of epochs, and resume it.

A checkpoint has the epoch, the model and its optimizers; that of another training is refused.

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
from tfopt.resume.identity import identity_of, require_same_training
from tfopt.resume.peers import SingleWorker
from tfopt.resume.store import Checkpoints
from tfopt.resume.variables import NamedVariable, restore_values, values_of, variables_of

_log = logging.getLogger("tfopt")
_KEPT = 3


class Progress:
    """The checkpoints of a training, in a folder that is locked while ``stack`` is open."""

    def __init__(self, folder: str | Path, stack: ExitStack) -> None:
        self.folder = Path(folder).expanduser()
        self._store = Checkpoints(self.folder, _KEPT, SingleWorker())
        self._identity: dict[str, Any] = {}
        self._store.lock(stack)

    def restore(self, model: Any, local: Any, element_spec: Any) -> int:
        """Restore the newest intact checkpoint; return the number of its epochs.

        It must be of the training of a built model ``local`` on such elements.
        """
        self._identity = _identity(local, element_spec)
        newest = self._store.read_newest()
        if newest is None:
            return 0
        name, state = newest
        require_same_training(newest, self._identity, self.folder)
        for named, values in zip(_variables(model), state["variables"], strict=True):
            restore_values(named.variable, values)
        _log.info("resuming from %s", self.folder / name)
        return int(state["epoch"])

    def save(self, epoch: int, model: Any) -> None:
        """Write a checkpoint of the model after ``epoch`` finished epochs; warn if it fails."""
        values = [values_of(named.variable) for named in _variables(model)]
        state = {"identity": self._identity, "epoch": epoch, "variables": values}
        try:
            self._store.write(state)
        except UserError as error:
            warnings.warn(
                f"No checkpoint was written after epoch {epoch}: {error.what} ({error.received}) "
                "The training continues.",
                RuntimeWarning,
                stacklevel=2,
            )


def copy(model: Any, other: Any) -> None:
    """Copy the variables of ``model`` to ``other``, an equal model."""
    for source, target in zip(_variables(model), _variables(other), strict=True):
        restore_values(target.variable, values_of(source.variable))


def _variables(model: Any) -> list[NamedVariable]:
    """Return the variables without those of metrics, which every epoch resets."""
    of_metrics = {id(variable.value) for variable in model.metrics_variables}
    return [
        named
        for named in variables_of(model)
        if named.trainable or id(named.variable) not in of_metrics
    ]


def _identity(model: Any, element_spec: Any) -> dict[str, Any]:
    """Return what must be equal to resume; the number of workers may differ."""
    examples = [
        [str(spec.shape[1:]), spec.dtype.name] for spec in tf.nest.flatten(element_spec, True)
    ]
    return identity_of(model, _variables(model), {"examples": examples}, workers=1)
