"""Verify on a few real batches, before the first epoch, that replicas train as one device does.

The model takes the same steps on the same data from the same weights, once on one device and once
on the replicas. Weights, optimizer variables and logs are compared, and the state is restored. No
second model is needed: outside its strategy a model reads the first copy of each variable and
assigns all of them, so that its ``train_step`` runs on one device.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import functools
import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tfopt.distribute.model_parts import (
    metrics_of,
    optimizer_variables,
    optimizers_of,
    overrides,
    unsynchronized,
)
from tfopt.distribute.proof_data import (
    ProofBatches,
    UnreadableData,
    broadcast_batches,
    read_batches,
)
from tfopt.distribute.proof_state import (
    SavedState,
    compile_once,
    equal_rows_drawn,
    retrace_functions,
    without_tensor_float_32,
)
from tfopt.distribute.step import Step
from tfopt.distribute.whole_batch import replicas_of
from tfopt.errors import UserError, first_line
from tfopt.hooks import replaced
from tfopt.keras_internals import BUILD, layers_of, stored
from tfopt.report.format import few
from tfopt.resume.variables import restore_values, values_of

_LOG = logging.getLogger("tfopt")
_MOST_STEPS = 8
# The tolerance relative to a weight's update; sums over replicas have another order.
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-4, 1e-2
_UNIT, _UNITS_OF_16_BITS = 2.0**-23, {"float16": 2.0**-10, "bfloat16": 2.0**-7}
# The tolerance relative to the effect of weights that begin some units in the last place away.
_NOISE, _UNITS_AWAY = 10, (1, 8, 64)
_CAUSES_OF_GRADIENTS = (
    "a sum declared a mean, or the reverse; a loss divided by the size of the local batch; "
    "gradients changed before apply(); a step that mixes means and sums; a loss that compares a "
    "batch's examples, or squares their mean, outside compile(loss=...) and compute_loss()"
)
_CAUSES_OF_WEIGHTS = "a layer with statistics of one replica's examples"
_CAUSES_OF_LOGS = "a metric, or a number that the step returns, that is no sum over the examples"
_RANDOM = "random numbers differ between the replicas"


@dataclass(frozen=True)
class Difference:
    """A weight, optimizer variable or log that differs on the replicas."""

    name: str
    by: float
    of: float
    """Its update on one device; of a log, its value."""
    group: str = ""

    def __str__(self) -> str:
        return f"{self.name} by {self.by:.1e} of {self.of:.1e}"


@dataclass
class Verdict:
    """The result of a verification.

    >>> print(verdict)
    equal: 2 steps on 2 replicas gave the weights and logs of one device (1.4 s)
    """

    kind: str
    """Equal, different, or inconclusive."""
    differ: list[Difference] = field(default_factory=list)
    """The differences, the largest first."""
    reasons: list[str] = field(default_factory=list)
    """Why it is inconclusive."""
    is_rest_equal: bool = False
    """Whether everything else is equal if it is inconclusive."""
    steps: int = 0
    replicas: int = 0
    seconds: float = 0.0

    @property
    def worst(self) -> str:
        """Return the largest three differences."""
        return "; ".join(map(str, self.differ[:3]))

    @property
    def causes(self) -> str:
        """Return the usual causes of such differences."""
        groups = {value.group for value in self.differ if not value.name.startswith("log ")}
        if not groups:
            return _CAUSES_OF_LOGS
        return _CAUSES_OF_WEIGHTS if groups == {"weights"} else _CAUSES_OF_GRADIENTS

    @property
    def is_expected(self) -> bool:
        """Return whether it is equal, up to random numbers."""
        return self.kind == "equal" or (self.is_rest_equal and self.reasons == [_RANDOM])

    def __str__(self) -> str:
        where = f"{self.steps} steps on {self.replicas} replicas"
        if self.kind == "equal":
            return f"equal: {where} gave the weights and logs of one device ({self.seconds:.1f} s)"
        if self.kind == "inconclusive":
            rest = "all else is equal" if self.is_rest_equal else "not proven"
            return f"inconclusive: {'; '.join(self.reasons)}: {rest} ({self.seconds:.1f} s)"
        return f"different after {where}: {self.worst}. Usual causes: {self.causes}"


def prove(step: Step, arguments: dict[str, Any]) -> Verdict:
    """Verify a model before ``fit`` and log the verdict; refuse a model that trains differently."""
    verdict = verify(step, arguments)
    if verdict.kind == "different":
        raise _refusal(step, verdict)
    if verdict.is_expected:
        _LOG.info("%s: %s", step.model.name, verdict)
    else:
        warnings.warn(f"{step.model.name}: {verdict}", RuntimeWarning, stacklevel=2)
    return verdict


def verify(step: Step, arguments: dict[str, Any]) -> Verdict:
    """Return whether a model trains on its replicas as on one device, by a few steps of both.

        verdict = verify(distributed(model).step, {"x": x, "y": y, "batch_size": 64})
        assert verdict.kind == "equal", verdict

    Args:
        step: The step of the model on its replicas.
        arguments: The arguments of ``fit`` by their names. A generator among them is replaced by
            one that begins with the batches that were read.
    """
    begin = time.perf_counter()
    with SavedState(step.model) as state:
        batches = _read(step, arguments)
        state.save_random_state()  # which reading a generator has changed
        if isinstance(batches, Verdict):
            verdict = batches
        else:
            getattr(step.model, BUILD)(data_batch=batches.specs())
            state.save()
            # In another thread, outside the scope of this one.
            with ThreadPoolExecutor(1) as outside:
                verdict = outside.submit(_Proof(step, batches, state).verdict).result()
            verdict = _worst_of_workers(step.exchange, verdict)
    verdict.replicas, verdict.seconds = replicas_of(step.strategy), time.perf_counter() - begin
    return verdict


def _refusal(step: Step, verdict: Verdict) -> UserError:
    other = {"mean": "sum", "sum": "mean"}.get(str(step.own_losses))
    declare = f'declare own_losses="{other}" in distribute(), or ' if other else ""
    return UserError(
        f"{step.model.name!r} does not train on {verdict.replicas} replicas as on one "
        f"device. Nothing was trained. Usual causes: {verdict.causes}.",
        expected="the weights and logs of one device",
        received=f"after {verdict.steps} steps, {verdict.worst}",
        fix=f"{declare}fix the cause; distribute(verify=False) trains in spite of it",
    )


def _read(step: Step, arguments: dict[str, Any]) -> ProofBatches | Verdict:
    """Return the batches to verify on, the same on all workers; or an inconclusive verdict."""
    model, strategy = step.model, step.strategy
    counts = [o.gradient_accumulation_steps or 1 for o in optimizers_of(model).values()]
    steps = min(max([2, *counts]), _MOST_STEPS)
    batches, reason = None, ""
    try:
        batches = read_batches(arguments, steps, replicas_of(strategy), model)
    except UnreadableData as error:
        reason = str(error)
    if step.exchange is not None:
        facts = step.exchange.gather({"call": "the proof before fit()", "reason": reason})
        reason = next((fact["reason"] for fact in facts.values() if fact["reason"]), "")
    if batches is None or reason:
        return Verdict("inconclusive", reasons=[reason])
    return batches if step.exchange is None else broadcast_batches(batches, step.exchange, strategy)


def _worst_of_workers(exchange: Any, verdict: Verdict) -> Verdict:
    """Return the worst verdict of all workers, by which all of them continue or stop."""
    if exchange is None:
        return verdict
    facts = exchange.gather({"call": "the end of the proof", "kind": verdict.kind})
    kinds = {name: fact["kind"] for name, fact in facts.items()}
    worst = max(kinds.values(), key=["equal", "inconclusive", "different"].index)
    if worst != verdict.kind:
        by_worker = ", ".join(f"{kind} on {name}" for name, kind in kinds.items())
        return Verdict(worst, verdict.differ, [*verdict.reasons, by_worker], False, verdict.steps)
    return verdict


@dataclass(frozen=True)
class _Value:
    """A variable or a log after a run."""

    name: str
    copies: list[Any]
    before: Any
    group: str
    """The values whose largest update counts: all weights, one slot of an optimizer, or itself."""

    def moved(self) -> Any:
        return np.subtract(self.copies[0], self.before, dtype="float64")


_Values = Mapping[str, _Value]


@dataclass(frozen=True)
class _Device:
    """A function that takes steps, on one device or on all replicas, and its data."""

    train: Callable[[Any], Any]
    data: Any
    is_one: bool


class _Proof:
    """Runs of one model on the same batches."""

    def __init__(self, step: Step, batches: ProofBatches, state: SavedState) -> None:
        self.step, self.strategy, self.model = step, step.strategy, step.model
        self.batches, self.state = batches, state
        kinds = [layer.compute_dtype for layer in layers_of(self.model)]
        self.unit = max([_UNIT, *(_UNITS_OF_16_BITS.get(kind, 0.0) for kind in kinds)])
        self.tolerance = _TOLERANCE if self.unit == _UNIT else _TOLERANCE_OF_16_BITS

    def verdict(self) -> Verdict:
        """Compare the runs, and return the verdict."""
        model, steps = self.model, len(self.batches.all)
        with ExitStack() as undo:
            reasons = _use_moving_statistics(model, undo)
            undo.enter_context(without_tensor_float_32())
            undo.enter_context(retrace_functions())
            drawn = undo.enter_context(equal_rows_drawn())
            differ, doubts = self._compare()
        if drawn:
            reasons.append(_RANDOM)
        if differ and not doubts:
            return Verdict("different", differ, reasons, steps=steps)
        if doubts or reasons:
            return Verdict("inconclusive", differ, reasons + doubts, not doubts, steps)
        return Verdict("equal", steps=steps)

    def _compare(self) -> tuple[list[Difference], list[str]]:
        """Return the differences, and reasons why they are no proof."""
        on_one, on_all = self._one_device(), self._all_replicas()
        try:
            one = self._run(on_one)
        except Exception as error:
            self._run(on_all)  # fails as well if the error is that of the step
            return [], [f"one device fails ({type(error).__name__}: {first_line(error)})"]
        replicas = self._run(on_all)
        differ = self._differences(one, replicas)
        if not differ:
            return [], self._why_nothing_moved(one)
        noisy: list[_Values] = []
        for units in _UNITS_AWAY:
            noisy.append(self._run(on_one, units_away=units))
            differ = self._differences(one, replicas, noisy)
            if not differ:
                return [], self._why_nothing_moved(one)
        again = self._run(self._one_device(), is_seed_other=True)
        if self._differences(one, again, noisy):
            return differ, ["the results depend on the seed"]
        return differ, []

    def _one_device(self) -> _Device:
        train = self._function(self.model.train_step)
        return _Device(train, self.batches.dataset(), is_one=True)

    def _all_replicas(self) -> _Device:
        train = self._function(functools.partial(self.step.run, "train_step"))
        data = self.strategy.experimental_distribute_dataset(self.batches.dataset())
        return _Device(self.step.limited(train), data, is_one=False)

    def _function(self, step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def on_iterator(iterator: Any) -> Any:
            return step(self.batches.pack(iterator.get_next()))

        return on_iterator if self.model.run_eagerly else compile_once(on_iterator)

    def _run(self, device: _Device, units_away: int = 0, is_seed_other: bool = False) -> _Values:
        """Return the values after the steps, from the saved state or from changed weights."""
        self.state.restore()
        if is_seed_other:
            self.state.change_seeds()
        begin = _move_by(units_away * self.unit, self.model) if units_away else {}
        with _as_on_one_device(self.model) if device.is_one else ExitStack():
            self.model.reset_metrics()
            data = iter(device.data)
            logs = {
                f"step {n + 1}": self._logs_as_fit_shows(device.train(data))
                for n in range(len(self.batches.all))
            }
            values = dict(self._variables(begin, 1 if device.is_one else None))
        for where, log in logs.items():
            for key, value in (log if isinstance(log, dict) else {"result": log}).items():
                for place, leaf in enumerate(tf.nest.flatten(value)):
                    name = f"log {key!r} of {where}"
                    array = _array(leaf)
                    values[f"{name} {place}"] = _Value(name, [array], np.zeros_like(array), name)
        return values

    def _logs_as_fit_shows(self, logs: Any) -> Any:
        """Return the logs of ``fit``: metrics, if a custom step returns their names."""
        if not overrides(self.model, "train_step") or not isinstance(logs, dict):
            return logs
        shown = self.model.get_metrics_result()
        return shown if shown.keys() == logs.keys() else logs

    def _variables(self, begin: dict[int, Any], number: int | None) -> Iterator[tuple[str, _Value]]:
        model = self.model
        trained = {id(v) for v in model.trainable_variables}
        grouped = [(v, "trained" if id(v) in trained else "weights") for v in model.weights]
        for where, optimizer in optimizers_of(model).items():
            grouped += [(v, f"{where} {_slot(v)}") for v in optimizer_variables(optimizer)]
        for place, (variable, group) in enumerate(grouped):
            before = begin.get(id(variable), self.state.before(variable))
            if before is not None and _is_float(before):
                arrays = list(map(_array, values_of(stored(variable))[:number]))
                yield f"{place}", _Value(variable.path, arrays, _array(before), group)

    def _differences(
        self, one: _Values, other: _Values, noisy: Sequence[_Values] = ()
    ) -> list[Difference]:
        """Return the differences of a run from that on one device, the largest first."""
        largest = _largest_of_groups(one)
        ranked = []
        for key, value in one.items():
            if key not in other:
                of = largest[value.group]
                ranked.append((np.inf, Difference(value.name, np.inf, of, value.group)))
                continue
            allowed = self._allowed(value, largest, [run[key] for run in noisy if key in run])
            by = max(_gap(copy, value.copies[0]) for copy in other[key].copies)
            if by > allowed:
                moved = _largest(value.moved())
                ranked.append((by / allowed, Difference(value.name, by, moved, value.group)))
        return [difference for _, difference in sorted(ranked, key=lambda pair: -pair[0])]

    def _allowed(
        self, value: _Value, largest: dict[str, float], noisy: Sequence[_Value] = ()
    ) -> float:
        """Return the difference of a value that rounding explains."""
        moved = _largest(value.moved())
        rounded = 2 * _UNIT * _largest(value.copies[0])
        allowed = self.tolerance * max(moved, 1e-3 * largest[value.group]) + rounded + 1e-12
        noise = [_gap(run.moved(), value.moved()) for run in noisy]
        return allowed + _NOISE * max(noise, default=0.0)

    def _why_nothing_moved(self, one: _Values) -> list[str]:
        """Return why equal results prove nothing: no weight moved far enough."""
        largest = _largest_of_groups(one)
        for value in one.values():
            is_trained = value.group != "weights" and not value.name.startswith("log ")
            if is_trained and _largest(value.moved()) > 10 * self._allowed(value, largest):
                return []
        return [f"no weight moved by more than rounding in {len(self.batches.all)} steps"]


def _use_moving_statistics(model: Any, undo: ExitStack) -> list[str]:
    """Let unsynchronized normalization layers use their moving statistics."""
    layers = unsynchronized(model)
    for layer in layers:

        def call(inputs: Any, training: Any = None, mask: Any = None, _of: Any = layer.call) -> Any:
            return _of(inputs, training=False, mask=mask)

        undo.enter_context(replaced(layer, call=call))
    if not layers:
        return []
    names = few([repr(layer.name) for layer in layers])
    return [
        f"{names} normalize the examples of each replica separately "
        "(BatchNormalization without synchronized=True)"
    ]


@contextmanager
def _as_on_one_device(model: Any) -> Iterator[None]:
    """Let metrics read their first copy, in place of the sum of all copies."""
    variables = [variable for metric in metrics_of(model) for variable in metric.variables]
    values = [stored(variable) for variable in variables]
    plain = [(value, value._aggregation) for value in values if hasattr(value, "_aggregation")]
    try:
        for value, _ in plain:
            value._aggregation = tf.VariableAggregation.ONLY_FIRST_REPLICA
        yield
    finally:
        for value, aggregation in plain:
            value._aggregation = aggregation


def _move_by(share: float, model: Any) -> dict[int, Any]:
    """Change each weight by a share of it, up or down; return the new values."""
    draw = np.random.default_rng(0)
    begin = {}
    for variable in model.trainable_variables:
        value = stored(variable)
        now = values_of(value)[0]
        moved = (now * (1 + share * draw.choice([-1.0, 1.0], now.shape))).astype(now.dtype)
        restore_values(value, [moved])
        begin[id(variable)] = moved
    return begin


def _slot(variable: Any) -> str:
    """Return the slot of an optimizer's variable: "momentum", "velocity" ..."""
    return str(variable.path).rsplit("_", 1)[-1]


def _is_float(value: Any) -> bool:
    return bool(np.issubdtype(value.dtype, np.floating)) or value.dtype.name == "bfloat16"


def _array(value: Any) -> Any:
    array = np.asarray(value.numpy() if hasattr(value, "numpy") else value)
    return array if array.dtype in ("float32", "float64") else array.astype("float32")


def _largest(values: Any) -> float:
    return float(np.max(np.abs(values), initial=0.0, where=np.isfinite(values)))


def _largest_of_groups(values: _Values) -> dict[str, float]:
    largest: dict[str, float] = Counter()  # type: ignore[assignment]
    for value in values.values():
        largest[value.group] = max(largest[value.group], _largest(value.moved()))
    return largest


def _gap(one: Any, other: Any) -> float:
    """Return the largest difference; infinite if only one of both is finite."""
    if one.shape != other.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.subtract(one, other, dtype="float64"))
    equal = (np.isnan(one) & np.isnan(other)) | (one == other)
    return float(np.max(np.where(equal, 0.0, np.nan_to_num(gap, nan=np.inf)), initial=0.0))
