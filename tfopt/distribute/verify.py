"""Prove on a few real batches, before the first epoch, that replicas train as one device does.

The same model takes the same steps of its own, on the same data, from the same weights: once on one
device and once on the replicas. Weights, the optimizer's variables and logs are compared, and all
is put back. No second model is needed: outside its strategy a model reads the first copy of each
variable and assigns all of them, so that its own ``train_step`` runs on one device as it is.

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

from tfopt.distribute.proof_data import Batches, CannotRead, of_the_chief, read_batches
from tfopt.distribute.proof_state import (
    SavedState,
    exact_products,
    functions_traced_anew,
    of_proof,
    same_for_each_example,
)
from tfopt.distribute.step import (
    Step,
    has_own,
    metrics_of,
    optimizers_of,
    unsynchronized,
    variables_of,
)
from tfopt.distribute.whole_batch import replicas_of
from tfopt.errors import UserError, first_line
from tfopt.hooks import replaced
from tfopt.keras_internals import BUILD, layers_of, stored
from tfopt.resume.variables import put_back, values_of

_LOG = logging.getLogger("tfopt")
_MOST_STEPS = 8
# By how much of its way a weight may differ; sums over replicas are taken in another order.
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-4, 1e-2
_UNIT, _UNITS_OF_16_BITS = 2.0**-23, {"float16": 2.0**-10, "bfloat16": 2.0**-7}
# What a weight may differ by: so often what it does if all begin some units in the last place away.
_NOISE, _UNITS_AWAY = 10, (1, 8, 64)
_OF_GRADIENTS = (
    "a sum declared a mean, or the reverse; a loss divided by the size of the local batch; "
    "gradients changed before apply(); a step that mixes means and sums"
)
_OF_WEIGHTS = "a layer that keeps statistics of its own replica's examples"
_OF_LOGS = "a metric, or a number that the step returns, that does not add up over the examples"


@dataclass(frozen=True)
class Difference:
    """One weight, variable of an optimizer, or log that is another on the replicas."""

    name: str
    by: float
    of: float
    """How far it moved on one device; of a log, its value."""
    group: str = ""

    def __str__(self) -> str:
        return f"{self.name} by {self.by:.1e} of {self.of:.1e}"


@dataclass
class Verdict:
    """What a proof has found.

    >>> print(verdict)
    equal: 2 steps on 2 replicas gave the weights and logs of one device (1.4 s)
    """

    kind: str
    """Equal, different, or inconclusive."""
    differ: list[Difference] = field(default_factory=list)
    """What differs, the worst first."""
    reasons: list[str] = field(default_factory=list)
    """Why it is inconclusive."""
    is_rest_equal: bool = False
    """Whether an inconclusive proof found everything else equal."""
    steps: int = 0
    replicas: int = 0
    seconds: float = 0.0

    @property
    def worst(self) -> str:
        """Return the worst three differences."""
        return "; ".join(map(str, self.differ[:3]))

    @property
    def causes(self) -> str:
        """Return what usually causes such differences."""
        groups = {each.group for each in self.differ if not each.name.startswith("log ")}
        if not groups:
            return _OF_LOGS
        return _OF_WEIGHTS if groups == {"weights"} else _OF_GRADIENTS

    def __str__(self) -> str:
        where = f"{self.steps} steps on {self.replicas} replicas"
        if self.kind == "equal":
            return f"equal: {where} gave the weights and logs of one device ({self.seconds:.1f} s)"
        if self.kind == "inconclusive":
            rest = "all else is equal" if self.is_rest_equal else "not proven"
            return f"inconclusive: {'; '.join(self.reasons)}: {rest} ({self.seconds:.1f} s)"
        return f"different after {where}: {self.worst}. Usual causes: {self.causes}"


def prove(step: Step, arguments: dict[str, Any]) -> Verdict:
    """Verify a model in front of ``fit`` and say what was found; refuse one that is different."""
    verdict = verify(step, arguments)
    if verdict.kind == "different":
        raise _refusal(step, verdict)
    if verdict.kind == "equal":
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
        arguments: Those of ``fit`` by their names. A generator among them is replaced by one that
            begins with what was read; other data are read anew, and left as they were.
    """
    begin = time.perf_counter()
    with SavedState(step.model) as state:
        found = _read(step, arguments)
        state.note_random_state()  # a generator has drawn what it gave
        if isinstance(found, Verdict):
            verdict = found
        else:
            getattr(step.model, BUILD)(data_batch=found.specs())
            state.save()
            # In a thread of its own, where this one's scope is not open.
            with ThreadPoolExecutor(1) as outside:
                verdict = outside.submit(_Proof(step, found, state).verdict).result()
            verdict = _of_all_workers(step.exchange, verdict)
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
        fix=f"{declare}mend the cause; distribute(verify=False) trains with these numbers",
    )


def _read(step: Step, arguments: dict[str, Any]) -> Batches | Verdict:
    """Return the batches to prove with, the same on all workers; else why there are none."""
    model, strategy = step.model, step.strategy
    counts = [o.gradient_accumulation_steps or 1 for o in optimizers_of(model).values()]
    steps = min(max([2, *counts]), _MOST_STEPS)
    found, reason = None, ""
    try:
        found = read_batches(arguments, steps, replicas_of(strategy), model)
    except CannotRead as error:
        reason = str(error)
    if step.exchange is not None:
        told = step.exchange.gather({"call": "the proof before fit()", "reason": reason})
        reason = next((each["reason"] for each in told.values() if each["reason"]), "")
    if found is None or reason:
        return Verdict("inconclusive", reasons=[reason])
    return found if step.exchange is None else of_the_chief(found, step.exchange, strategy)


def _of_all_workers(exchange: Any, verdict: Verdict) -> Verdict:
    """Return the worst verdict of all workers, so that all of them go on alike."""
    if exchange is None:
        return verdict
    facts = exchange.gather({"call": "the end of the proof", "kind": verdict.kind})
    kinds = {name: each["kind"] for name, each in facts.items()}
    worst = max(kinds.values(), key=["equal", "inconclusive", "different"].index)
    if worst != verdict.kind:
        told = ", ".join(f"{kind} on {name}" for name, kind in kinds.items())
        return Verdict(worst, verdict.differ, [*verdict.reasons, told], False, verdict.steps)
    return verdict


@dataclass(frozen=True)
class _Value:
    """What a run has made of one variable, or of a log."""

    name: str
    copies: list[Any]
    before: Any
    group: str
    """Whose size counts: that of all weights, of the same slot of an optimizer, or its own."""

    def moved(self) -> Any:
        return np.subtract(self.copies[0], self.before, dtype="float64")


_Values = Mapping[str, _Value]


@dataclass(frozen=True)
class _Device:
    """How to take steps: on one device, or on all replicas."""

    train: Callable[[Any], Any]
    data: Any
    is_one: bool


class _Proof:
    """The runs of one model on the same batches."""

    def __init__(self, step: Step, batches: Batches, state: SavedState) -> None:
        self.step, self.strategy, self.model = step, step.strategy, step.model
        self.batches, self.state = batches, state
        kinds = [layer.compute_dtype for layer in layers_of(self.model)]
        self.unit = max([_UNIT, *(_UNITS_OF_16_BITS.get(kind, 0.0) for kind in kinds)])
        self.tolerance = _TOLERANCE if self.unit == _UNIT else _TOLERANCE_OF_16_BITS

    def verdict(self) -> Verdict:
        """Return what the runs show."""
        model, steps = self.model, len(self.batches.all)
        with ExitStack() as undo:
            reasons = _put_statistics_aside(model, undo)
            undo.enter_context(exact_products())
            undo.enter_context(functions_traced_anew())
            drawn = undo.enter_context(same_for_each_example())
            differ, doubts = self._compare()
        if drawn:
            reasons.append("random numbers are drawn, others on each replica")
        if differ and not doubts:
            return Verdict("different", differ, reasons, steps=steps)
        if doubts or reasons:
            return Verdict("inconclusive", differ, reasons + doubts, not doubts, steps)
        return Verdict("equal", steps=steps)

    def _compare(self) -> tuple[list[Difference], list[str]]:
        """Return what differs, and why that is no proof."""
        on_one, on_all = self._one_device(), self._all_replicas()
        try:
            one = self._run(on_one)
        except Exception as error:
            self._run(on_all)  # which fails as well, where the error is the step's own
            return [], [f"one device fails ({type(error).__name__}: {first_line(error)})"]
        replicas = self._run(on_all)
        differ = self._differences(one, replicas)
        if not differ:
            return [], self._why_nothing_is_shown(one)
        noisy: list[_Values] = []
        for units in _UNITS_AWAY:
            noisy.append(self._run(on_one, units_away=units))
            differ = self._differences(one, replicas, noisy)
            if not differ:
                return [], self._why_nothing_is_shown(one)
        again = self._run(self._one_device(), is_seed_other=True)
        if self._differences(one, again, noisy):
            return differ, ["the step gives other numbers with another seed"]
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

        return on_iterator if self.model.run_eagerly else of_proof(on_iterator)

    def _run(self, device: _Device, units_away: int = 0, is_seed_other: bool = False) -> _Values:
        """Return what the steps make of the saved state, or of one in which each weight differs."""
        self.state.put_back()
        if is_seed_other:
            self.state.draw_anew()
        begun = _move_by(units_away * self.unit, self.model) if units_away else {}
        with _as_on_one_device(self.model) if device.is_one else ExitStack():
            self.model.reset_metrics()
            data = iter(device.data)
            logs = {
                f"step {n + 1}": self._logs_as_fit_shows(device.train(data))
                for n in range(len(self.batches.all))
            }
            values = dict(self._variables(begun, 1 if device.is_one else None))
        for where, found in logs.items():
            for key, value in (found if isinstance(found, dict) else {"result": found}).items():
                for place, leaf in enumerate(tf.nest.flatten(value)):
                    name = f"log {key!r} of {where}"
                    array = _array(leaf)
                    values[f"{name} {place}"] = _Value(name, [array], np.zeros_like(array), name)
        return values

    def _logs_as_fit_shows(self, logs: Any) -> Any:
        """Return what ``fit`` shows: metrics, where an own step returns their names."""
        if not has_own(self.model, "train_step") or not isinstance(logs, dict):
            return logs
        shown = self.model.get_metrics_result()
        return shown if shown.keys() == logs.keys() else logs

    def _variables(self, begun: dict[int, Any], number: int | None) -> Iterator[tuple[str, _Value]]:
        model = self.model
        trained = {id(v) for v in model.trainable_variables}
        found = [(v, "trained" if id(v) in trained else "weights") for v in model.weights]
        for where, optimizer in optimizers_of(model).items():
            found += [(v, f"{where} {_slot(v)}") for v in variables_of(optimizer)]
        for place, (variable, group) in enumerate(found):
            before = begun.get(id(variable), self.state.before(variable))
            if before is not None and _is_float(before):
                arrays = [_array(each) for each in values_of(stored(variable))[:number]]
                yield f"{place}", _Value(variable.path, arrays, _array(before), group)

    def _differences(
        self, one: _Values, other: _Values, noisy: Sequence[_Values] = ()
    ) -> list[Difference]:
        """Return where another run differs from that on one device, the worst first."""
        largest = _largest_of_groups(one)
        found = []
        for key, value in one.items():
            allowed = self._allowed(value, largest, [each[key] for each in noisy if key in each])
            copies = other[key].copies if key in other else []
            if key not in other:
                of = largest[value.group]
                found.append((np.inf, Difference(value.name, np.inf, of, value.group)))
            by = max((_gap(copy, value.copies[0]) for copy in copies), default=0.0)
            if by > allowed:
                moved = _largest(value.moved())
                found.append((by / allowed, Difference(value.name, by, moved, value.group)))
        return [each for _, each in sorted(found, key=lambda pair: -pair[0])]

    def _allowed(
        self, value: _Value, largest: dict[str, float], noisy: Sequence[_Value] = ()
    ) -> float:
        """Return by how much a value may differ for rounding."""
        moved = _largest(value.moved())
        rounded = 2 * _UNIT * _largest(value.copies[0])
        allowed = self.tolerance * max(moved, 1e-3 * largest[value.group]) + rounded + 1e-12
        noise = [_gap(each.moved(), value.moved()) for each in noisy]
        return allowed + _NOISE * max(noise, default=0.0)

    def _why_nothing_is_shown(self, one: _Values) -> list[str]:
        """Return why it shows nothing that both are equal: no weight moved, or none far enough."""
        largest = _largest_of_groups(one)
        for value in one.values():
            is_trained = value.group != "weights" and not value.name.startswith("log ")
            if is_trained and _largest(value.moved()) > 10 * self._allowed(value, largest):
                return []
        return [f"no weight moved by more than rounding in {len(self.batches.all)} steps"]


def _put_statistics_aside(model: Any, undo: ExitStack) -> list[str]:
    """Let layers with statistics of a replica's own part of the batch use the moving ones."""
    layers = unsynchronized(model)
    for layer in layers:

        def call(inputs: Any, training: Any = None, mask: Any = None, _of: Any = layer.call) -> Any:
            return _of(inputs, training=False, mask=mask)

        undo.enter_context(replaced(layer, call=call))
    if not layers:
        return []
    names = ", ".join(repr(layer.name) for layer in layers[:3])
    more = f" and {len(layers) - 3} more" if len(layers) > 3 else ""
    return [
        f"{names}{more} normalize by each replica's own examples "
        "(BatchNormalization without synchronized=True)"
    ]


@contextmanager
def _as_on_one_device(model: Any) -> Iterator[None]:
    """Let a metric have what its first copy counts, in place of the sum of all copies."""
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
    """Move each weight by a share of it, up or down; return where each begins."""
    draw = np.random.default_rng(0)
    begun = {}
    for variable in model.trainable_variables:
        value = stored(variable)
        now = values_of(value)[0]
        moved = (now * (1 + share * draw.choice([-1.0, 1.0], now.shape))).astype(now.dtype)
        put_back(value, [moved])
        begun[id(variable)] = moved
    return begun


def _slot(variable: Any) -> str:
    """Return what an optimizer keeps in a variable: "momentum", "velocity" ..."""
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
    """Return the largest difference; infinite where only one of both is finite."""
    if one.shape != other.shape:
        return np.inf
    with np.errstate(invalid="ignore"):
        gap = np.abs(np.subtract(one, other, dtype="float64"))
    alike = (np.isnan(one) & np.isnan(other)) | (one == other)
    return float(np.max(np.where(alike, 0.0, np.nan_to_num(gap, nan=np.inf)), initial=0.0))
