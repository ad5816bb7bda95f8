"""Run the training step in several ways, by turns, and time each.

A turn is one training under Keras's own loop; its first execution and its warm-up are not counted.
Afterwards the model's train function and ``steps_per_execution`` are what they were, whether or not
an exception passed through.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from tfopt.data.caching import fills_a_cache
from tfopt.data.fit_data import INFINITE, Kind, kind_of
from tfopt.errors import UserError, first_line
from tfopt.job.job import Job, Transform
from tfopt.measure.blocks import Span, ended_early
from tfopt.measure.resident import Batch, builds_anew, first_batch, resident, stand_in
from tfopt.run import ENDLESS, Prepared

if TYPE_CHECKING:
    import keras

    from tfopt.measure.clock import WindowClock

# What decides which transform could help a job: its machine, its step, its input.

Half = Literal["mixed_float16", "mixed_bfloat16"]


@dataclass(frozen=True)
class Circumstances:
    """What a training step stands in.

    Attributes:
        gpus: How many TensorFlow may use.
        whole_executions: The number of steps that a ``steps_per_execution`` must divide; None
            where it need not.
        jit_compile: Whether the step is compiled by XLA.
        half: The half precision that this machine gains from, where the model is all float32.
        source: What the job's training data is.
        endless: Whether it has no end.
        generated: How many a generator yields at most; None where that is unknown, and for
            sources that tell it themselves.
        own_input: Whether the job makes its training input by a function of its own.
    """

    replicas: int
    gpus: int
    steps_per_execution: int
    whole_executions: int | None
    jit_compile: bool
    eager: bool
    half: Half | None
    source: Kind
    endless: bool
    generated: int | None
    own_input: bool


def circumstances_of(ready: Prepared) -> Circumstances:
    """Read them off a job that is ready to train."""
    import tensorflow as tf

    job, facts, model = ready.job, ready.facts, ready.model
    return Circumstances(
        replicas=facts.replicas,
        gpus=len(tf.config.list_logical_devices("GPU")),
        steps_per_execution=model.steps_per_execution,
        whole_executions=job.steps_per_epoch,
        jit_compile=bool(model.jit_compile),
        eager=bool(model.run_eagerly),
        half=_half(model, facts.replicas),
        source=kind_of(ready.data.train),
        endless=_is_endless(ready.data.train),
        generated=_generated(ready),
        own_input=makes_its_input(job),
    )


def makes_its_input(job: Job) -> bool:
    """Return whether a job makes its training input by a function of its own."""
    owner = getattr(job.input, "__self__", None)
    return job.input is not None and not isinstance(owner, Transform)


def _is_endless(part: Any) -> bool:
    kind = kind_of(part)
    if kind == "pydataset":
        return part.num_batches is None
    return kind == "dataset" and int(part.cardinality()) == INFINITE


def _generated(ready: Prepared) -> int | None:
    """Return the count of a generator that has been read through once, without a pipeline."""
    facts = ready.facts
    counted = kind_of(ready.data.train) == "generator" and ready.job.steps_per_epoch is None
    if not counted or facts.steps_per_epoch is None or facts.batch_size is None:
        return None
    return facts.steps_per_epoch * facts.batch_size


def _half(model: keras.Model, replicas: int) -> Half | None:
    from tfopt.train.precision import choose_policy, gpu_capabilities

    if {layer.compute_dtype for layer in model._flatten_layers()} & {"float16", "bfloat16"}:
        return None
    chosen = choose_policy()[0]
    if chosen == "mixed_bfloat16" or (chosen == "mixed_float16" and replicas == 1):
        return chosen
    # float16 needs loss scaling, which several replicas break; Ampere and newer have the other.
    ampere = chosen == "mixed_float16" and min(gpu_capabilities()) >= (8, 0)
    return "mixed_bfloat16" if ampere else None


Function = Callable[[Any], Any]
_NEVER = 10**9


class Mode:
    """A way to run a training: by its own ``function``, or Keras's.

    A mode that must work raises what goes wrong; any other keeps it, in words, in ``failed``.
    """

    def __init__(
        self,
        ready: Prepared,
        each: int,
        function: Function | None = None,
        *,
        warm_up_s: float = 0.0,
        must_work: bool = False,
    ) -> None:
        self.each = each
        self.failed: str | None = None
        self.turns_ms: list[tuple[float, ...]] = []
        self.gaps_ms: list[float] = []
        self.opening_ms: list[float] = []
        self.epoch_length: int | None = None
        self._ready = ready
        self._function = function
        self._warm_up_s = warm_up_s
        self._must_work = must_work

    @classmethod
    def broken(cls, ready: Prepared, error: Exception) -> Mode:
        """Return a mode that could not even be made."""
        mode = cls(ready, 1)
        mode.failed = _message(error)
        return mode

    def open(self, limit_s: float, epochs: int) -> None:
        """Run a first stretch: until so many epochs have ended, or so long after the first step.

        Its steps are no windows yet; what passes between its epochs counts.
        """
        import keras

        clock = self._clock(windows=_NEVER, window_ms=0.0, warm_up_s=0.0)
        model, begun, reached = self._ready.model, [0.0], [0]

        def step(batch: int, logs: object) -> None:
            reached[0] = batch + 1
            begun[0] = begun[0] or time.perf_counter()
            seen = 0 < epochs <= len(clock.between_epochs_ms)
            late = clock.windows_ms and time.perf_counter() - begun[0] > limit_s
            if seen or late:
                model.stop_training = True

        def end(epoch: int, logs: object) -> None:
            if not model.stop_training:
                self.epoch_length = reached[0]

        watch = keras.callbacks.LambdaCallback(on_train_batch_end=step, on_epoch_end=end)
        self._train(clock, watch)
        self.opening_ms = clock.windows_ms
        self.gaps_ms += clock.between_epochs_ms
        if not clock.windows_ms:
            self._ended_early(1, 0)

    def turn(self, windows: int, window_ms: float) -> None:
        """Measure so many windows more."""
        clock = self._clock(windows=windows, window_ms=window_ms, warm_up_s=self._warm_up_s)
        self._train(clock)
        self.turns_ms.append(tuple(round(window, 4) for window in clock.windows_ms))
        self.gaps_ms += clock.between_epochs_ms
        if len(clock.windows_ms) < windows:
            self._ended_early(windows, len(clock.windows_ms))

    def _clock(self, **span: Any) -> WindowClock:
        from tfopt.measure.clock import WindowClock

        return WindowClock(self._ready.facts.steps_per_epoch, **span)

    def _train(self, *callbacks: Any) -> None:
        if self.failed is not None:
            return
        try:
            with self._in_place():
                self._ready.train(callbacks=callbacks, epochs=ENDLESS, validate=False)
        except Exception as error:
            if self._must_work:
                raise
            # The job trains by itself: a mode of ours that does not is a fact about the mode.
            self.failed = _message(error)

    @contextmanager
    def _in_place(self) -> Iterator[None]:
        model, function = self._ready.model, self._function
        if function is None:
            yield
            return
        kept = model.train_function, model.steps_per_execution
        model.train_function, model.steps_per_execution = function, self.each
        try:
            yield
        finally:
            ran = model.train_function is function
            model.train_function, model.steps_per_execution = kept
        if not ran:
            raise builds_anew()

    def _ended_early(self, wanted: int, got: int) -> None:
        if self.failed is not None:
            return
        error = ended_early(wanted, got)
        if self._must_work:
            raise error
        self.failed = _message(error)


def drain(each: int) -> Function:
    """Return a train function that only takes ``each`` batches a call, compiled as Keras's is."""
    import tensorflow as tf

    @tf.function(reduce_retracing=True, autograph=False)  # type: ignore[untyped-decorator]
    def take(iterator: Any) -> Any:
        if each == 1:
            # Meets the end as a step of Keras's does: by an exception.
            iterator.get_next()
            return tf.constant(True)

        def another(left: Any, more: Any) -> tuple[Any, Any]:
            return left - 1, iterator.get_next_as_optional().has_value()

        first = iterator.get_next_as_optional().has_value()
        tf.while_loop(lambda left, more: tf.logical_and(left > 0, more), another, [each - 1, first])
        return first

    def function(iterator: Any) -> dict[str, Any]:
        if not take(iterator):
            raise StopIteration
        return {}

    return function


def _message(error: Exception) -> str:
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return kind + first_line(error)


# Four modes of one training step, measured by turns in one process.
#
# ``fit`` as it is; the same step on a batch that is on the device already; the input drained with
# nothing trained; and the second again under other ``steps_per_execution``.
#
# All modes run in Keras's own loop and through the train function that ``fit`` has compiled, so
# that their differences are shares of one step; they take turns, so that a machine that grows
# slower slows them alike. The model trains on in all but the third: throw it away afterwards.

MODES = Span(windows=12, window_ms=100.0, warm_up_s=1.0)
SWEEP = (1, 4, 16)

_TURNS = 4
# Of the first stretch of fit, in warm-ups: it traces, fills caches and shows ends of epochs.
_OPENING = 5
_EPOCHS_SEEN = 2
# A longer execution would take long to measure, and there the host's part is small anyway.
_LONGEST_EXECUTION_MS = 400.0


@dataclass(frozen=True)
class Windows:
    """The results of one mode: time a step in each window, turn by turn, and between epochs."""

    turns_ms: tuple[tuple[float, ...], ...]
    between_epochs_ms: tuple[float, ...]

    def between_ms(self, steps_per_epoch: int | None) -> float:
        """Return a step's part of what passes between two epochs; 0 where no epoch ended."""
        if not self.between_epochs_ms or not steps_per_epoch:
            return 0.0
        return statistics.median(self.between_epochs_ms) / steps_per_epoch


@dataclass(frozen=True)
class Swept:
    """The resident step under so many steps a call."""

    steps_per_execution: int
    turns_ms: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Modes:
    """The measurements of one variant in one process.

    Attributes:
        steps_per_epoch: As told by the data, or as counted; None where no epoch has ended.
        resident: ``between_epochs_ms`` is what callbacks and Keras take, without any input.
        sweep: With the job's own ``steps_per_execution``.
        unavailable: Why ``resident``, ``input`` or ``sweep`` is None.

    The modes took as many turns; turns of the same number followed one another closely.
    """

    setting: Circumstances
    steps_per_epoch: int | None
    fit: Windows
    resident: Windows | None
    input: Windows | None
    sweep: tuple[Swept, ...] | None
    unavailable: Mapping[str, str]


def _opening_s(ready: Prepared, span: Span) -> float:
    """Return how long to wait for whole epochs; the first one, which fills a cache, is longer."""
    from tfopt.measure.clock import LONGEST_WARM_UP_S

    cached = fills_a_cache(ready.train_input)
    return LONGEST_WARM_UP_S if cached else _OPENING * span.warm_up_s


def measure_modes(ready: Prepared, span: Span = MODES) -> Modes:
    """Measure all modes of a job that was prepared as endless: the clock ends its epochs."""
    each = ready.model.steps_per_execution
    fit = Mode(ready, each, warm_up_s=span.warm_up_s / 2, must_work=True)
    fit.open(_opening_s(ready, span), _EPOCHS_SEEN)
    steps = ready.facts.steps_per_epoch or fit.epoch_length
    # Fit and the resident step are neighbours: their difference is what matters most.
    modes = {"input": _drained(ready, each, span), "fit": fit}
    modes |= _resident_modes(ready, each, steps if fit.gaps_ms else None, span)
    for turn in range(_TURNS):
        order = list(modes.values())
        for mode in order if turn % 2 == 0 else reversed(order):
            mode.turn(max(span.windows // _TURNS, 1), span.window_ms)
    return _gathered(ready, steps, each, modes)


def _drained(ready: Prepared, each: int, span: Span) -> Mode:
    quiet = replace(ready, job=ready.job.with_(callbacks=()))
    return Mode(quiet, each, drain(each), warm_up_s=span.warm_up_s / 2)


def _resident_modes(
    ready: Prepared, each: int, steps_per_epoch: int | None, span: Span
) -> dict[str, Mode]:
    """Return "resident" and one for every other ``steps_per_execution``, by name."""
    try:
        batch = first_batch(ready)
        own = resident_mode(ready, batch, each, span)
    except Exception as error:
        return {"resident": Mode.broken(ready, error)}
    own.open(span.warm_up_s / 4, 0)
    if own.failed is None and steps_per_epoch is not None:
        short = resident_mode(ready, batch, each, span, steps_per_epoch)
        short.open(_OPENING * span.warm_up_s, _EPOCHS_SEEN)
        own.gaps_ms = short.gaps_ms
    if own.failed is not None or ready.facts.replicas > 1:
        return {"resident": own}
    step_ms = statistics.median(own.opening_ms)
    others = [k for k in SWEEP if k != each and k * step_ms <= _LONGEST_EXECUTION_MS]
    return {"resident": own} | {f"sweep {k}": resident_mode(ready, batch, k, span) for k in others}


def resident_mode(
    ready: Prepared, batch: Batch, each: int, span: Span, steps_per_epoch: int | None = None
) -> Mode:
    """Return the mode, endless without ``steps_per_epoch``: no epoch's end cuts it short."""
    model, function = ready.model, ready.model.train_function
    iterator = resident(batch, model, each)
    holding = replace(
        ready,
        job=ready.job.with_(steps_per_epoch=None),
        facts=replace(ready.facts, steps_per_epoch=steps_per_epoch),
        train_input=stand_in(batch, model.distribute_strategy, steps_per_epoch),
    )
    return Mode(holding, each, lambda _: function(iterator), warm_up_s=span.warm_up_s / 10)


def _gathered(ready: Prepared, steps: int | None, each: int, modes: dict[str, Mode]) -> Modes:
    unavailable: dict[str, str] = {}

    def windows(name: str) -> Windows | None:
        mode = modes[name]
        if mode.failed is not None:
            unavailable[name] = mode.failed
            return None
        return Windows(tuple(mode.turns_ms), _rounded(mode.gaps_ms))

    fit = windows("fit")
    assert fit is not None, "a fit that does not work raises"
    return Modes(
        setting=circumstances_of(ready),
        steps_per_epoch=steps,
        fit=fit,
        resident=windows("resident"),
        input=windows("input"),
        sweep=_sweep(ready, each, modes, unavailable),
        unavailable=unavailable,
    )


def _sweep(
    ready: Prepared, each: int, modes: dict[str, Mode], unavailable: dict[str, str]
) -> tuple[Swept, ...] | None:
    own = modes["resident"]
    others = [mode for name, mode in modes.items() if name.startswith("sweep ")]
    if own.failed is not None:
        unavailable["sweep"] = "the resident step could not be measured"
    elif ready.facts.replicas > 1:
        unavailable["sweep"] = "Keras 3.15 cannot loop over steps under several replicas"
    elif not others:
        unavailable["sweep"] = "a step takes so long that the host's part of it cannot be seen"
    for mode in others:
        if mode.failed is not None:
            unavailable["sweep"] = mode.failed
    if "sweep" in unavailable:
        return None
    points = sorted([own, *others], key=lambda mode: mode.each)
    return tuple(Swept(mode.each, tuple(mode.turns_ms)) for mode in points)


def _rounded(values: list[float]) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in values)
