"""Run a job under transforms: the one place that enters scopes, builds, compiles and fits.

At a moment of the run its method is called on all transforms of the chain; their effects are in the
outcome. Dtype policy, TF32 and strategy scope are restored, also after an exception.
"""

from __future__ import annotations

import gc
import inspect
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.data.examples_checks import check_examples, require_finite, translate_fit_errors
from tfopt.data.feeding import build_by, evaluation_input, readable, training_input
from tfopt.data.fit_data import (
    DEFAULT_BATCH,
    Examples,
    batch_shapes,
    describe_data,
    examples_of,
    parts_of,
    vary_in_shape,
)
from tfopt.data.pipeline import Pipeline, require_batch_size
from tfopt.data.sources.open import with_sources
from tfopt.errors import UserError
from tfopt.files import prepare_folder, write_atomically
from tfopt.job.job import RETURNS, Job
from tfopt.job.parts import Artefact, Data, Effect, Facts
from tfopt.job.transform import Chain, Run, Transform, as_chain
from tfopt.job.versions import quiet_without_gpu
from tfopt.keras_internals import flat_logs
from tfopt.report.format import count
from tfopt.train.out_of_memory import explain_out_of_memory

if TYPE_CHECKING:
    import keras

    from tfopt.report.display import Verbose

_log = logging.getLogger("tfopt")
ENDLESS = 1_000_000  # epochs of a training that a callback ends
_EVALUATION_BATCH = 256
_BATCHES_THAT_FIT = 8  # of the training's size, without activations for gradients


@dataclass(frozen=True, repr=False)
class Outcome:
    """The result of a run; it prints as a few lines."""

    model: keras.Model
    history: Mapping[str, Sequence[float]]
    evaluation: Mapping[str, float] | None
    artefacts: tuple[Artefact, ...]
    effects: tuple[tuple[Transform, Effect], ...]
    data: Data

    def __repr__(self) -> str:
        epochs = max(map(len, self.history.values()), default=0)
        last = {name: values[-1] for name, values in self.history.items() if values}
        parameters = sum(math.prod(weight.shape) for weight in self.model.weights)
        lines = [
            f"model: {self.model.name}, {parameters:,} parameters",
            f"trained: {', '.join([count(epochs, 'epoch'), *_figures(last)])}",
            f"evaluation: {', '.join(_figures(self.evaluation or {})) or 'no test data'}",
            *(f"file: {artefact!r}" for artefact in self.artefacts),
            *(f"{transform!r}: {effect.note}" for transform, effect in self.effects),
            f"data: {describe_data(self.data)}",
        ]
        return "\n  ".join(["Outcome", *lines])

    def save(self, folder: str | Path) -> tuple[Path, ...]:
        """Write ``model.keras`` and the artefacts; each file appears whole or not at all."""
        target = prepare_folder(folder)
        files = {artefact.filename: artefact.content for artefact in self.artefacts}
        contents = {"model.keras": self.model.save, **files}
        return tuple(write_atomically(target / name, each) for name, each in contents.items())


def run(
    job: Job,
    chain: Transform | None = None,
    *,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: Verbose = "auto",
) -> Outcome:
    """Run a job: build, compile, fit, finish, evaluate.

    Args:
        job: The job to train.
        chain: A transform, or several as ``chain(...)``.
        callbacks: Further Keras callbacks, after those of the job and the chain.
        verbose: As in ``model.fit``: "auto" shows its progress, 0 nothing.

    Raises:
        UserError: A function of the job returns another type, or a transform cannot be applied.
        OutOfMemory: Memory ran out; the error has a batch that would fit.

    Example:
        outcome = run(job, chain(MixedPrecision(), Prune(0.8)))
        outcome.save("out")
    """
    quiet_without_gpu()
    with explain_out_of_memory() as watched, prepared(job, chain) as ready:
        watched.watch(ready.model, ready.facts.batch_size)
        return ready.fit(callbacks=callbacks, verbose=verbose)


def _figures(values: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} {value:.4g}" if isinstance(value, int | float) else f"{name} {value}"
        for name, value in values.items()
    ]


def require_job(job: object, caller: str = "run") -> None:
    """Raise unless ``job`` is a job; ``caller`` is the function it was given to."""
    if isinstance(job, Job):
        return
    if isinstance(job, Transform):
        fix = f"pass it after the job: {caller}(job, chain)"
    elif callable(job) and not hasattr(job, "fit"):
        fix = f"call it, if it returns the job: {caller}(job())"
    else:
        fix = f"describe a compiled model as one: {caller}(Job.from_model(model, data))"
    raise UserError(f"{caller}() takes a job.", expected="a tfopt.Job", received=repr(job), fix=fix)


@contextmanager
def prepared(
    job: Job, chain: Transform | None = None, *, endless: bool = False
) -> Iterator[Prepared]:
    """Do everything up to ``fit``: build, edit and compile the model inside its scopes.

    ``endless`` repeats the input without end; schedules keep the job's number of epochs.
    """
    require_job(job)
    run = Run(_in_micro_batches(job, as_chain(chain)), as_chain(chain))
    import keras

    with ExitStack() as stack:
        for transform in run.acting():
            transform.setup(run)
        stack.enter_context(_process_state(job.seed))
        for transform in run.acting():
            stack.enter_context(transform.scope(run))
        loss = _compile_arguments(job).get("loss")
        keras.utils.set_random_seed(job.seed)  # compile() may have drawn numbers
        run.data = _load(job)
        examples = parts_of(run.data)
        model = _build(run, examples["train"])
        run.facts = _facts(run, yielded=check_data(examples, model, loss))
        epochs = ENDLESS if endless else job.epochs
        train = _training_input(run, examples["train"], epochs)
        for transform in run.acting():
            transform.attach(run, model)
        _compile(run, model)
        if endless and run.facts.replicas > 1:  # steps to measure, not a training
            from tfopt.distribute.models import skip_verification

            skip_verification(model)
        yield Prepared(run, model, examples, train)


@dataclass
class Prepared:
    """A compiled model with its input, inside its scopes, ready to fit once."""

    run: Run
    model: keras.Model
    examples: Mapping[str, Examples] = field(repr=False)
    """The given parts of the data, by their names in ``Data``."""
    train_input: Any = field(repr=False)

    @property
    def job(self) -> Job:
        """Return the job."""
        return self.run.job

    @property
    def facts(self) -> Facts:
        """Return the settings of the run."""
        return self.run.facts

    @property
    def data(self) -> Data:
        """Return the job's data."""
        return self.run.data

    @property
    def effects(self) -> tuple[tuple[Transform, Effect], ...]:
        """Return the effects of the transforms so far."""
        return self.run.effects

    @property
    def epoch_examples(self) -> int | None:
        """Return the examples of an epoch; None without a length."""
        steps, batch = self.facts.steps_per_epoch, self.facts.batch_size
        if steps is None or batch is None:
            return None
        train, most = self.examples["train"], steps * batch
        alone = None if train.keeps_batches else train.steps(1)
        return alone if alone is not None and 0 <= most - alone < batch else most

    @property
    def last_batch(self) -> int | None:
        """Return the examples of an epoch's last batch, which may be smaller; None if unknown."""
        examples, steps = self.epoch_examples, self.facts.steps_per_epoch
        if examples is None or steps is None or self.facts.batch_size is None:
            return None
        return examples - (steps - 1) * self.facts.batch_size

    @property
    def compiled_shapes(self) -> tuple[str, ...]:
        """Return the shapes for which XLA compiles the step: a batch, and a smaller last one."""
        sizes = dict.fromkeys((self.facts.batch_size, self.last_batch))
        known = [size for size in sizes if size is not None and self.model.jit_compile]
        return tuple(batch_shapes(self.train_input, size) for size in known)

    def is_idle(self, transform: Transform) -> bool:
        """Return whether a transform has noted that it changed nothing."""
        own = [effect for applied, effect in self.effects if applied == transform]
        return bool(own) and not any(effect.acted for effect in own)

    def fit(
        self, *, callbacks: Sequence[keras.callbacks.Callback] = (), verbose: Verbose = 0
    ) -> Outcome:
        """Train, take the steps after ``fit``, and evaluate on the test part."""
        run = self.run
        self._warn_of_shapes()
        history = self.train(callbacks=callbacks, verbose=verbose)
        for transform in run.acting(sorted(run.chain.parts, key=_finishes)):
            transform.finish(run, self.model)
        # After ``finish``, so that the metrics are those of the saved weights.
        evaluation = self.evaluate() if run.data.test is not None else None
        return Outcome(
            self.model,
            dict(history.history),
            evaluation,
            tuple(run.files),
            run.effects,
            run.data,
        )

    def _warn_of_shapes(self) -> None:
        """Warn of batches of several shapes, for each of which XLA compiles the step."""
        shapes = self.compiled_shapes
        if shapes and vary_in_shape(self.train_input):
            _log.warning(
                "XLA compiles the step again for each new shape, and batches are %s. Pad them to "
                "one length or a few, or compile with jit_compile=False.",
                shapes[0],
            )
        elif len(shapes) > 1:
            _log.warning(
                "XLA compiles the step a second time at the end of the first epoch: batches are "
                "%s and the last one %s. A batch size that divides the examples, or "
                "PipelineOptions(drop_remainder=True), avoids it.",
                *shapes,
            )

    def train(
        self,
        *,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        epochs: int | None = None,
        validate: bool = True,
        verbose: Verbose = 0,
    ) -> keras.callbacks.History:
        """Train, with the callbacks of the job and the chain before ``callbacks``."""
        import keras

        run, facts = self.run, self.run.facts
        own = [make() for make in run.job.callbacks]
        own += [callback for transform in run.acting() for callback in transform.callbacks(run)]
        validation = self.examples.get("validation") if validate else None
        with translate_fit_errors(run.data.train, run.data.validation):
            history = self.model.fit(
                **examples_of(self.train_input).fit_arguments(facts.batch_size),
                # Keras warns when asked to shuffle a dataset, and asks itself by default.
                shuffle=not hasattr(self.train_input, "element_spec"),
                epochs=epochs or run.job.epochs,
                steps_per_epoch=run.job.steps_per_epoch,
                validation_data=readable(validation, facts.batch_size),
                callbacks=[*own, *keras.tree.flatten(callbacks)],
                verbose=verbose,
            )
        if self.model.stop_training:
            # Stopped within an epoch, Keras's iterator is in a reference cycle. Collected in its
            # own producer thread, it would wait for itself, and block the garbage collector.
            gc.collect()
        require_finite(history.history.get("loss", ()))
        return history

    def evaluate(self, *, batches: int | None = None) -> dict[str, float]:
        """Return the metrics on the test part, or on ``batches`` batches spread over it."""
        data = self._test_input
        if batches is not None:
            data = data.shard(max(int(data.cardinality()) // batches, 1), 0)
        with translate_fit_errors(self.data.test):
            return flat_logs(self.model.evaluate(data, return_dict=True, verbose=0))

    @cached_property
    def _test_input(self) -> Any:
        trained = self.facts.batch_size or DEFAULT_BATCH
        batch = max(trained, min(_EVALUATION_BATCH, trained * _BATCHES_THAT_FIT))
        return evaluation_input(self.examples["test"], batch - batch % self.facts.replicas)


def _finishes(transform: Transform) -> int:
    """Return a transform's rank in ``finish``: it reads constraints, removes them, or neither.

    So files are of the finished model, wherever their transforms are in the chain.
    """
    return 0 if transform.reads_constraints else 1 if transform.holds else 2


@contextmanager
def _process_state(seed: int) -> Iterator[None]:
    """Seed the run; restore the global dtype policy afterwards."""
    import keras

    policy = keras.config.dtype_policy()
    keras.utils.set_random_seed(seed)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(policy)


def _compile_arguments(job: Job) -> dict[str, Any]:
    arguments = job.compile()
    if not isinstance(arguments, Mapping):
        raise _not_returned(
            "compile",
            repr(arguments),
            fix='return them: compile=lambda: {"optimizer": "adam", "loss": "mse"}',
        )
    return dict(arguments)


def _load(job: Job) -> Data:
    data = job.data()
    if not isinstance(data, Data):
        raise _not_returned(
            "data", type(data).__name__, fix="wrap it: data=lambda: tfopt.Data(train=(x, y))"
        )
    return with_sources(data)


def _not_returned(name: str, received: str, fix: str) -> UserError:
    return UserError(f"Job.{name}() must return {RETURNS[name]}.", received=received, fix=fix)


def _build(run: Run, train: Examples) -> keras.Model:
    from tfopt.job.model_checks import has_weights, require_built_keras3, require_keras3

    model = run.job.build()
    if model is None:
        raise _not_returned("build", "None", "end it with `return model`")
    build_by(model, train)
    require_keras3(model)
    if not has_weights(model):
        require_built_keras3(model)
    for transform in run.acting():
        model = transform.rebuild(run, model)
    return model


def check_data(examples: Mapping[str, Examples], model: keras.Model, loss: Any) -> int | None:
    """Raise for examples that cannot train this model with this loss.

    Returns the batch size that the training part yields; None for arrays.
    """
    classes, ignored = _classes(model, loss), getattr(loss, "ignore_class", None)
    seen = {
        name: check_examples(part, name=name, classes=classes, ignored=ignored)
        for name, part in examples.items()
    }
    return seen["train"] if examples["train"].keeps_batches else None


def _classes(model: keras.Model, loss: Any) -> int | None:
    """Return the number of classes if labels are class indices; else None."""
    import keras

    sparse = isinstance(loss, keras.losses.SparseCategoricalCrossentropy) or loss in (
        "sparse_categorical_crossentropy",
        "SparseCategoricalCrossentropy",
        keras.losses.sparse_categorical_crossentropy,
    )
    # A subclassed model has no output shape.
    shape = getattr(model, "output_shape", None)
    return int(shape[-1]) if sparse and isinstance(shape, tuple) and shape[-1] else None


def _in_micro_batches(job: Job, chain: Chain) -> Job:
    """Return the job with ``steps_per_epoch`` counted in micro-batches, as ``fit`` counts."""
    from tfopt.train.accumulate import micro_batches

    steps = job.steps_per_epoch
    return job if steps is None else job.with_(steps_per_epoch=steps * micro_batches(chain))


def _facts(run: Run, *, yielded: int | None) -> Facts:
    """Return the settings known before the input; ``yielded`` is the data's own batch size."""
    from tfopt.train.accumulate import micro_batch_size, micro_batches

    job, replicas, chain = run.job, run.replicas, run.chain
    asked = chain.batch_asked or job.batch_size
    if replicas is not None and replicas.global_batch is not None:
        asked = replicas.global_batch
    own_batch, steps = yielded or DEFAULT_BATCH, micro_batches(chain)
    if yielded and not any(isinstance(part, Pipeline) for part in chain.parts):
        require_batch_size(asked or own_batch, yielded, steps)
    return Facts(
        replicas=1 if replicas is None else replicas.count,
        batch_size=micro_batch_size(asked or own_batch, steps),
        # Without a declaration the learning rate was tuned for the job's own batch.
        tuned_batch_size=job.tuned_batch_size or job.batch_size or own_batch,
        steps_per_epoch=job.steps_per_epoch,
        epochs=job.epochs,
        seed=job.seed,
        accumulate=steps,
    )


def _training_input(run: Run, examples: Examples, epochs: int) -> Any:
    """Return the input for ``fit``, and set ``steps_per_epoch`` of the facts."""
    data, facts = examples.given, run.facts
    for transform in run.acting():
        data = transform.data(run, data)
    part = examples if data is examples.given else data
    data, steps = training_input(
        part, facts.steps_per_epoch, epochs=epochs, batch=facts.batch_size, seed=facts.seed
    )
    run.facts = replace(facts, steps_per_epoch=steps)
    return data


def _compile(run: Run, model: keras.Model) -> None:
    from tfopt.train.accumulate import accumulate

    job = run.job
    arguments = _compile_arguments(job)
    for transform in run.acting():
        arguments = transform.compile(run, arguments)
    _require_whole_executions(job.steps_per_epoch, arguments.get("steps_per_execution") or 1)
    try:
        inspect.signature(model.compile).bind(**arguments)
    except TypeError as error:
        raise UserError(
            f"{type(model).__name__}.compile() does not take what this run passes.",
            expected=f"the arguments {', '.join(arguments)}",
            received=str(error),
            fix="let a compile() of your own pass **kwargs on: super().compile(**kwargs)",
        ) from error
    model.compile(**arguments)
    if job.restore is not None and run.keeps_optimizer:
        job.restore(model)
    if run.facts.accumulate > 1:  # after the optimizer's state was restored
        accumulate(model, run.facts.accumulate)


def _require_whole_executions(steps: int | None, per_execution: int) -> None:
    """Raise for an epoch with a partial execution, which Keras 3.15 would run in full."""
    if steps is None or steps % per_execution == 0:
        return
    lower = steps - steps % per_execution
    raise UserError(
        "steps_per_epoch is not a multiple of steps_per_execution: Keras would train more steps.",
        expected=f"a multiple of steps_per_execution={per_execution}",
        received=f"steps_per_epoch={steps}, which would train {lower + per_execution}",
        fix=f"use {lower or per_execution} or {lower + per_execution} steps, or another "
        "steps_per_execution",
    )
