"""Feed a training from ``tf.data``: ``pipeline`` and the transform ``Pipeline``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.data.augment import in_model, random_layers
from tfopt.data.flow import build
from tfopt.data.plan import Function, PipelineOptions, Plan, Prefetch
from tfopt.data.sources.open import open_source
from tfopt.errors import UserError, hashable, keep_plain, require_one_of
from tfopt.job.parts import Facts
from tfopt.job.references import check_reference, resolve_function
from tfopt.job.transform import Run, Transform

if TYPE_CHECKING:
    import keras

__all__ = ["Pipeline", "PipelineOptions", "pipeline"]

_log = logging.getLogger("tfopt")


def pipeline(
    data: Any,
    *,
    label: str | tuple[str, ...] | None = None,
    features: str | tuple[str, ...] | None = None,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    cache: str | None = None,
    map: Function = None,
    map_batch: Function = None,
    augment: Any = None,
    deterministic: bool = True,
    prefetch: Prefetch = "auto",
    service: str | None = None,
    examples: int | None = None,
    seed: int = 0,
    options: PipelineOptions | None = None,
) -> Any:
    """Return a ``tf.data.Dataset`` of batches to give to ``fit``; ``data`` is only read.

    The order is: map, cache, shuffle, batch, map_batch, augment, prefetch.

    Args:
        data: A path (Parquet, CSV, TFRecord, a folder of images), a source with more settings
            (``tfopt.data.Parquet(...)``), a data frame of pandas, Dask or Spark; or what ``fit``
            takes. Arrays, as ``(x, y)`` or ``(x, y, sample_weight)``, each possibly
            nested in tuples and dicts, hold single examples; a ``tf.data.Dataset``, a
            ``PyDataset`` or a function returning a generator yields batches.
        label: The column of a path or data frame that becomes y.
        features: The columns that become x: one name gives its array, several a dict by name;
            None takes all the others.
        batch_size: Examples a batch; None keeps the source's, or Keras's 32 for arrays.
        shuffle: A new order every epoch. None does what ``fit`` would: arrays, sources and the
            batches of a ``PyDataset`` are shuffled, other streams are not.
        cache: "memory", or "file:/path"; holds what comes out of ``map``.
        map: A function of one example, ``(x, y)``; for what is the same in every epoch.
        map_batch: A function of a whole batch, called in every epoch; for augmentation.
        augment: Keras layers that act only in training, such as ``RandomFlip``, or a function
            that returns them; called on whole batches in every epoch.
        deterministic: Keeps the order when functions run in parallel.
        prefetch: Batches kept ready; "auto" lets TensorFlow choose, 0 is none.
        service: "grpc://host:port" as ``tfopt launch --data-workers`` prints it: other processes
            read, map and batch, in an order that varies.
        examples: The number of examples, for a source of unknown length.
        seed: Decides the orders.
        options: Rarely needed settings: see ``PipelineOptions``.

    Raises:
        UserError: Two settings contradict each other, or the data cannot be read as they say, such
            as a column that is not there.

    Example:
        model.fit(tfopt.pipeline((x, y), batch_size=64, cache="memory"), epochs=5, shuffle=False)
        data = tfopt.pipeline("train.parquet", label="y", batch_size=256)  # x: a dict of columns
    """
    plan = Plan(
        batch_size=batch_size,
        shuffle=shuffle,
        cache=cache,
        map=_function("map", map),
        map_batch=_function("map_batch", map_batch),
        augment=augment,
        deterministic=deterministic,
        prefetch=prefetch,
        service=service,
        examples=examples,
        options=PipelineOptions() if options is None else options,
    )
    dataset, notes = build(plan, open_source(data, label, features), seed=seed)
    _log.info("pipeline: %s", ", ".join(notes))
    return dataset


@dataclass(frozen=True, repr=False)
class Pipeline(Transform):
    """Feeds the training from ``tf.data``; the fields are the arguments of ``tfopt.pipeline``.

    ``source``, a path, replaces the job's training examples.

    Functions are given by name, "package.module:function", and imported when the job runs. Every
    epoch trains each example once; the shuffled order differs from that of ``fit``, and so do the
    trained weights. With ``shuffle=False`` they equal those of ``fit`` without shuffling.

    ``augment`` names a function that returns Keras's random layers. With ``augment_in="model"``
    they run in front of the model, on its device; the trained model contains them, inactive.

    Example:
        outcome = run(job, Pipeline(batch_size=256, cache="memory"))
    """

    source: str | None = None
    label: str | None = None
    features: tuple[str, ...] | None = None
    batch_size: int | None = None
    shuffle: bool | None = None
    cache: str | None = None
    map: str | None = None
    map_batch: str | None = None
    augment: str | None = None
    augment_in: Literal["input", "model"] = "input"
    deterministic: bool = True
    prefetch: Prefetch = "auto"
    service: str | None = None
    examples: int | None = None
    options: PipelineOptions = field(default_factory=PipelineOptions)

    exact: ClassVar[bool] = False
    functions: ClassVar[tuple[str, ...]] = ("map", "map_batch", "augment")

    def __post_init__(self) -> None:
        keep_plain(self)
        require_one_of("Pipeline.augment_in", self.augment_in, ("input", "model"))
        for name in self.functions:
            function = getattr(self, name)
            if function is None:
                continue
            if not isinstance(function, str):
                raise UserError(
                    f"Pipeline.{name} must be the name of a function.",
                    expected='"package.module:function"',
                    received=repr(function),
                    fix=f"name it, or call tfopt.pipeline(data, {name}=function) in your script",
                )
            check_reference(function)
        object.__setattr__(self, "features", hashable(self.features))
        if self.source is None and (self.label is not None or self.features is not None):
            raise UserError(
                "Pipeline.label and features name columns of source=, which is missing.",
                expected="source=, a path",
                received=f"label={self.label!r}, features={self.features!r}",
                fix="name the columns where the data is described: Data(train=..., label=...)",
            )
        self._plan()

    @property
    def _in_model(self) -> bool:
        return self.augment is not None and self.augment_in == "model"

    def rebuild(self, run: Run, model: keras.Model) -> keras.Model:
        if not self._in_model:
            return model
        layers = random_layers(_function("augment", self.augment))
        names = ", ".join(type(layer).__name__ for layer in layers)
        run.note(f"augmented in the model by {names}")
        return in_model(model, layers)

    @property
    def batch_asked(self) -> int | None:
        return self.batch_size

    def data(self, run: Run, train: Any) -> Any:
        whole = any(part.whole_batches for part in run.chain.parts)
        dataset, notes = self.read(train, run.facts, whole=whole)
        run.note(", ".join([*notes, *(["whole batches only"] if whole else [])]))
        return dataset

    def read(self, train: Any, facts: Facts, *, whole: bool = False) -> tuple[Any, list[str]]:
        """Return the training input, of ``whole`` batches only, and the notes that describe it."""
        plan = self._plan(
            options=replace(self.options, drop_remainder=whole or self.options.drop_remainder),
            batch_size=facts.batch_size,
            map=_function("map", self.map),
            map_batch=_function("map_batch", self.map_batch),
            augment=None if self._in_model else _function("augment", self.augment),
        )
        if self.source is not None:
            train = open_source(self.source, self.label, self.features)
        endless = facts.steps_per_epoch is not None
        dataset, notes = build(plan, train, seed=facts.seed, endless=endless)
        if facts.update_batch != facts.tuned_batch_size:
            notes.append(
                f"the job's learning rate is for batches of {facts.tuned_batch_size}: "
                "LearningRate scales it"
            )
        return dataset, notes

    def _plan(self, **changes: Any) -> Plan:
        names = {field.name for field in fields(Plan)} & {field.name for field in fields(self)}
        settings = {name: getattr(self, name) for name in names}
        return Plan(**{**settings, **dict.fromkeys(self.functions), **changes})


def _function(name: str, function: Function) -> Callable[..., Any] | None:
    """Return a function, imported if it is given by name."""
    if function is None or callable(function):
        return function
    if not isinstance(function, str):
        raise UserError(
            f"{name} is not a function.",
            expected='a function, or its name as "package.module:function"',
            received=repr(function),
        )
    return resolve_function(function)


def require_batch_size(asked: int, yielded: int, micro_batches: int) -> None:
    """Refuse a batch size other than that of the data, where no ``Pipeline`` changes it."""
    size = asked // micro_batches
    if size != yielded:
        raise UserError(
            f"The data yields batches of {yielded}, and the job asks for batches of {size}.",
            expected="no batch size for data that is batched already, or the same one",
            received=f"{asked}, in {micro_batches} step(s), from the job or its chain",
            fix=f"add Pipeline(batch_size={asked}) to the chain, or batch the data by {size}",
        )
