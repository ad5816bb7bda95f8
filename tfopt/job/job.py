"""Describe a training as data: ``Job``.

A :class:`Job` creates no TensorFlow object and does not import TensorFlow. :func:`tfopt.run` trains
it, changed by transforms.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError, keep_plain, require_count
from tfopt.job.parts import Data

if TYPE_CHECKING:
    import keras


@dataclass(frozen=True)
class Job:
    """Describes one training: everything ``run`` needs, nothing done yet.

    Example:
        job = Job(
            build=build,  # returns a model, not compiled
            data=lambda: Data(train=(x, y), test=(x_test, y_test)),
            compile=lambda: {"optimizer": "adam", "loss": "mse"},
        )
        job = Job.from_model(model, (x, y), epochs=10)  # or of a compiled model

    Attributes:
        build: A function that returns the model, not compiled.
        data: A function that returns a ``Data``.
        compile: A function that returns the keyword arguments of ``model.compile``, with a new
            optimizer in every call, since one cannot serve two models.
        name: The name in reports.
        batch_size: Examples per step; None: those of the data's own batches, or 32 for arrays.
        tuned_batch_size: The batch for which the learning rate was chosen; None: ``batch_size``.
        epochs: As in ``fit``.
        steps_per_epoch: As in ``fit``.
        seed: The seed of the weights and of the order of examples.
        callbacks: Functions that return a Keras callback.
        restore: A function that restores state, such as the optimizer's, in the compiled model.
    """

    build: Callable[[], keras.Model]
    data: Callable[[], Data]
    compile: Callable[[], Mapping[str, Any]]
    name: str = "job"
    batch_size: int | None = None
    tuned_batch_size: int | None = None
    epochs: int = 1
    steps_per_epoch: int | None = None
    seed: int = 0

    callbacks: tuple[Callable[[], keras.callbacks.Callback], ...] = ()
    restore: Callable[[keras.Model], None] | None = None

    def __post_init__(self) -> None:
        keep_plain(self)
        for name in RETURNS:
            _require_function(name, getattr(self, name))
        given: tuple[Any, ...] = self.callbacks
        for callback in given:
            if not callable(callback):
                kind = type(callback).__name__
                raise UserError(
                    "Job.callbacks are functions that return a callback: each run takes a new one.",
                    expected=f"callbacks=[lambda: {kind}(...)]",
                    received=kind,
                )
        if self.batch_size is not None:
            require_count("Job.batch_size", self.batch_size)
        require_count("Job.epochs", self.epochs)
        if self.steps_per_epoch is not None:
            require_count("Job.steps_per_epoch", self.steps_per_epoch)

    @staticmethod
    def from_model(model: keras.Model, data: Any, **settings: Any) -> Job:
        """Describe the training of an existing compiled Keras 3 model.

        Weights and compile configuration (optimizer with its state, loss, metrics, loss weights)
        carry over; the model itself is not changed. ``data`` is what ``fit`` takes (arrays as a
        tuple, a dataset, a PyDataset, a generator function), a :class:`Data` with a test part, or
        what Keras's ``load_data()`` returns: ``((x, y), (x_test, y_test))``, or two datasets.
        Several inputs of a subclassed model are a list: ``([a, b], y)``. ``settings`` are further
        fields of Job (``epochs``, ``batch_size`` …).

        Example:
            job = Job.from_model(model, ((x, y), (x_test, y_test)), epochs=3)
        """
        from tfopt.job.from_model import fields_of_model

        _require_fields(settings)
        return Job(**fields_of_model(model, data, settings))

    def with_(self, **changes: Any) -> Job:
        """Return a copy with fields changed; an unknown field raises an error that lists them."""
        _require_fields(changes)
        return replace(self, **changes)


def _require_fields(names: Iterable[str]) -> None:
    """Raise for a name that is no field of Job; what ``fit`` knows by it has its place."""
    known = {f.name for f in fields(Job)}
    for name in names:
        if name not in known:
            raise UserError(
                f"Job has no field {name!r}.",
                expected=", ".join(sorted(known)),
                received=name,
                fix=_PLACES.get(name),
            )


_PLACES = {
    "test": "put it into the data: tfopt.Data(train=(x, y), test=(x_test, y_test))",
    "validation_data": "put it into the data: tfopt.Data(train=(x, y), validation=(x_val, y_val))",
    "class_weight": "give each example the weight of its class: (x, y, weights)",
    "sample_weight": "put the weights into the data: (x, y, weights)",
}
RETURNS = {
    "build": "a model",
    "data": "tfopt.Data(train=..., test=...)",
    "compile": "the arguments of model.compile() as a dict",
}


def _require_function(name: str, value: Any) -> None:
    """Raise unless ``value`` can be called without arguments; Keras objects are values."""
    is_value = not callable(value) or hasattr(type(value), "get_config")
    problem, received = "", f"{type(value).__name__}, not a function"
    if not is_value:
        try:
            inspect.signature(value).bind()
            return
        except TypeError as error:
            problem = f": {error}"
            received = f"{getattr(value, '__name__', name)}{inspect.signature(value)}"
        except ValueError:
            return  # a builtin without a signature
    raise UserError(
        f"Job.{name} must be a function without arguments{problem}.",
        expected=f"def {name}(): that returns {RETURNS[name]}",
        received=received,
        fix=f"pass {name}=lambda: ..., or describe a compiled model: Job.from_model(model, data)",
    )
