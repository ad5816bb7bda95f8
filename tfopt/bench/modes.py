"""Four modes of one training step, measured by turns in one process.

``fit`` as it is; the same step on a batch that is on the device already; the input drained with
nothing trained; and the second again under other ``steps_per_execution``.

Guarantees: all modes run in Keras's own loop and through the train function that ``fit`` has
compiled, so that their differences are shares of one step; they take turns, so that a machine
that grows slower slows them alike; the train function and ``steps_per_execution`` are put back.
The model trains on in all modes but the third: throw it away afterwards.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from tfopt.bench.block import Span
from tfopt.bench.resident import Batch, first_batch, resident, stand_in
from tfopt.bench.setting import Setting, setting_of
from tfopt.bench.turns import Mode, drain
from tfopt.data.caching import fills_a_cache
from tfopt.report.reasons import require_reasons
from tfopt.runner import Prepared

MODES = Span(windows=12, window_ms=100.0, warm_up_s=1.0)
SWEEP = (1, 4, 16)

_TURNS = 4
# Of the first stretch of fit, in warm-ups: it traces, fills caches and shows ends of epochs.
_OPENING = 5
_EPOCHS_SEEN = 2
# A longer execution would take long to measure, and there the host's part is small anyway.
_LONGEST_EXECUTION_MS = 400.0
# Updates a step, under one steps_per_execution over those under another: alike but for the edges.
_SAME_STEPS = (0.5, 2.0)


@dataclass(frozen=True)
class Windows:
    """What one mode gave: time a step in each window, turn by turn, and between epochs.

    ``steps`` are those of each window: a window that was held up has few of them.
    """

    turns_ms: tuple[tuple[float, ...], ...]
    steps: tuple[tuple[int, ...], ...]
    between_epochs_ms: tuple[float, ...]

    def between_ms(self, steps_per_epoch: int | None) -> float:
        """A step's part of what passes between two epochs; 0 where no end of one was seen."""
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
    """What one process measured of one variant.

    Attributes:
        steps_per_epoch: As told by the data, or as counted; None where no epoch has ended.
        resident: ``between_epochs_ms`` is what callbacks and Keras take, without any input.
        sweep: With the job's own ``steps_per_execution``.
        unavailable: Why ``resident``, ``input`` or ``sweep`` is None.

    The modes took as many turns; turns of the same number followed one another closely.
    """

    setting: Setting
    steps_per_epoch: int | None
    fit: Windows
    resident: Windows | None
    input: Windows | None
    sweep: tuple[Swept, ...] | None
    unavailable: Mapping[str, str]

    MAY_BE_NONE: ClassVar[tuple[str, ...]] = ("resident", "input", "sweep")

    def __post_init__(self) -> None:
        require_reasons(self, self.MAY_BE_NONE, self.unavailable)


def _opening_s(ready: Prepared, span: Span) -> float:
    """How long to wait for whole epochs; the first one fills a cache, and is like no other."""
    from tfopt.bench.clock import LONGEST_WARM_UP_S

    cached = fills_a_cache(ready.train_input)
    return LONGEST_WARM_UP_S if cached else _OPENING * span.warm_up_s


def measure_modes(ready: Prepared, span: Span = MODES) -> Modes:
    """Measures all modes of a job that was prepared as endless: the clock ends its epochs."""
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
    """ "resident" and one for every other ``steps_per_execution``, by name."""
    try:
        batch = first_batch(ready)
        own = _resident(ready, batch, each, span)
    except Exception as error:
        return {"resident": Mode.broken(ready, error)}
    own.open(span.warm_up_s / 4, 0)
    if own.failed is None and steps_per_epoch is not None:
        short = _resident(ready, batch, each, span, steps_per_epoch)
        short.open(_OPENING * span.warm_up_s, _EPOCHS_SEEN)
        own.gaps_ms = short.gaps_ms
    if own.failed is not None or ready.facts.replicas > 1:
        return {"resident": own}
    step_ms = statistics.median(own.opening_ms)
    others = [k for k in SWEEP if k != each and k * step_ms <= _LONGEST_EXECUTION_MS]
    return {"resident": own} | {f"sweep {k}": _resident(ready, batch, k, span) for k in others}


def _resident(
    ready: Prepared, batch: Batch, each: int, span: Span, steps_per_epoch: int | None = None
) -> Mode:
    """Endless without ``steps_per_epoch``: no end of an epoch cuts an execution short."""
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
        return Windows(tuple(mode.turns_ms), tuple(mode.steps), _rounded(mode.gaps_ms))

    fit = windows("fit")
    assert fit is not None, "a fit that does not work raises"
    return Modes(
        setting=setting_of(ready),
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
        elif own.updates_a_step and not _alike(mode.updates_a_step, own.updates_a_step):
            unavailable["sweep"] = (
                f"under steps_per_execution={mode.each} the model's own train function did not "
                f"run {mode.each} steps a call"
            )
    if "sweep" in unavailable:
        return None
    points = sorted([own, *others], key=lambda mode: mode.each)
    return tuple(Swept(mode.each, tuple(mode.turns_ms)) for mode in points)


def _alike(updates: float | None, others: float) -> bool:
    low, high = _SAME_STEPS
    return updates is not None and low < updates / others < high


def _rounded(values: list[float]) -> tuple[float, ...]:
    return tuple(round(value, 4) for value in values)
