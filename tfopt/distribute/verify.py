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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from tfopt.distribute.model_parts import optimizer_variables, optimizers_of, overrides
from tfopt.distribute.proof_conditions import (
    SavedState,
    equal_rows_drawn,
    metrics_of_one_device,
    moving_statistics,
    retrace_functions,
    without_tensor_float_32,
)
from tfopt.distribute.proof_data import (
    ProofBatches,
    UnreadableData,
    broadcast_batches,
    read_batches,
)
from tfopt.distribute.proof_values import Value, Values, as_array, differences
from tfopt.distribute.step import Step
from tfopt.distribute.whole_batch import replicas_of
from tfopt.errors import UserError, first_line
from tfopt.keras_internals import BUILD, LOGS_OF_EPOCH, layers_of, stored
from tfopt.resume.variables import restore_values, values_of

_LOG = logging.getLogger("tfopt")
_MOST_STEPS = 8
# The tolerance relative to a value's update; sums over replicas have another order.
_TOLERANCE, _TOLERANCE_OF_16_BITS = 1e-4, 1e-2
# The share by which weights are changed to see what rounding does.
_CHANGE, _CHANGE_OF_16_BITS = 64 * 2.0**-23, {"float16": 64 * 2.0**-10, "bfloat16": 64 * 2.0**-7}
_CAUSES_OF_GRADIENTS = (
    "a sum declared a mean, or the reverse; a loss divided by the size of the local batch; "
    "gradients changed before apply(); a step that mixes means and sums; a loss that compares a "
    "batch's examples, or squares their mean, outside compile(loss=...) and compute_loss()"
)
_CAUSES_OF_WEIGHTS = "a layer with statistics of one replica's examples"
_CAUSES_OF_LOGS = "a metric, or a number that the step returns, that is no sum over the examples"
_RANDOM = "random numbers differ between the replicas"
_KINDS = ("equal", "inconclusive", "different")  # the worst last


@dataclass
class Verdict:
    """The result of a verification.

    >>> print(verdict)
    equal: 2 steps on 2 replicas gave the weights and logs of one device (1.4 s)

    Attributes:
        kind: "equal", "different" or "inconclusive".
        differences: The largest differences, in words.
        causes: The usual causes of such differences.
        reasons: Why it is inconclusive.
        is_rest_equal: Whether everything else is equal if it is inconclusive.
        steps: The number of steps.
        replicas: The number of replicas.
        seconds: How long the verification took.
    """

    kind: Literal["equal", "different", "inconclusive"]
    differences: str = ""
    causes: str = ""
    reasons: list[str] = field(default_factory=list)
    is_rest_equal: bool = False
    steps: int = 0
    replicas: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        where = f"{self.steps} steps on {self.replicas} replicas"
        if self.kind == "equal":
            return f"equal: {where} gave the weights and logs of one device ({self.seconds:.1f} s)"
        if self.kind == "inconclusive":
            rest = "all else is equal" if self.is_rest_equal else "not proven"
            return f"inconclusive: {'; '.join(self.reasons)}: {rest} ({self.seconds:.1f} s)"
        return f"different after {where}: {self.differences}. Usual causes: {self.causes}"


def prove(step: Step, arguments: dict[str, Any]) -> Verdict:
    """Verify a model before ``fit`` and log the verdict; refuse a model that trains differently."""
    verdict = verify(step, arguments)
    if verdict.kind == "different":
        other = {"mean": "sum", "sum": "mean"}.get(str(step.own_losses))
        declare = f'declare own_losses="{other}" in distribute(), or ' if other else ""
        raise UserError(
            f"{step.model.name!r} does not train on {verdict.replicas} replicas as on one "
            f"device. Nothing was trained. Usual causes: {verdict.causes}.",
            expected="the weights and logs of one device",
            received=f"after {verdict.steps} steps, {verdict.differences}",
            fix=f"{declare}fix the cause; distribute(verify=False) trains in spite of it",
        )
    only_random = verdict.is_rest_equal and verdict.reasons == [_RANDOM]
    if verdict.kind == "equal" or only_random:
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
        batches, reason = _read(step, arguments)
        state.save_random_state()  # which reading a generator has changed
        if batches is None or reason:
            verdict = Verdict("inconclusive", reasons=[reason])
        else:
            getattr(step.model, BUILD)(data_batch=batches.specs())
            state.save()
            # In another thread, outside the scope of this one.
            with ThreadPoolExecutor(1) as outside:
                verdict = outside.submit(_Runs(step, batches, state).verdict).result()
            if step.exchange is not None:  # by the worst one all workers continue or stop
                facts = {"call": "the end of the proof", "verdict": asdict(verdict)}
                gathered = step.exchange.gather(facts).values()
                verdicts = [Verdict(**fact["verdict"]) for fact in gathered]
                verdict = max(verdicts, key=lambda worker: _KINDS.index(worker.kind))
    verdict.replicas, verdict.seconds = replicas_of(step.strategy), time.perf_counter() - begin
    return verdict


def _read(step: Step, arguments: dict[str, Any]) -> tuple[ProofBatches | None, str]:
    """Return the batches to verify on, the same on all workers; or None, and the reason."""
    counts = [o.gradient_accumulation_steps or 1 for o in optimizers_of(step.model).values()]
    steps = min(max([2, *counts]), _MOST_STEPS)
    batches: Any = None
    reason = ""
    try:
        batches = read_batches(arguments, steps, replicas_of(step.strategy), step.model)
    except UnreadableData as error:
        reason = str(error)
    if step.exchange is not None:
        facts = step.exchange.gather({"call": "the proof before fit()", "reason": reason})
        reason = next((fact["reason"] for fact in facts.values() if fact["reason"]), "")
        if not reason:
            batches = broadcast_batches(batches, step.exchange, step.strategy)
    return batches, reason


class _Runs:
    """Runs of one model on the same batches, from the same saved state."""

    def __init__(self, step: Step, batches: ProofBatches, state: SavedState) -> None:
        self.step, self.model = step, step.model
        self.batches, self.state = batches, state
        dtypes = {layer.compute_dtype for layer in layers_of(self.model)}
        is_16_bit = dtypes & _CHANGE_OF_16_BITS.keys()
        self.tolerance = _TOLERANCE_OF_16_BITS if is_16_bit else _TOLERANCE
        self.change = max((_CHANGE_OF_16_BITS[dtype] for dtype in is_16_bit), default=_CHANGE)

    def verdict(self) -> Verdict:
        """Compare one device with the replicas, and return the verdict."""
        steps = len(self.batches.all)
        with (
            moving_statistics(self.model) as reasons,
            without_tensor_float_32(),
            retrace_functions(),
            equal_rows_drawn() as drawn,
        ):
            differ, doubt = self._compare()
        if differ and not doubt:
            largest = "; ".join(text for _, text in differ[:3])
            causes = _causes({group for group, _ in differ})
            return Verdict("different", largest, causes, steps=steps)
        if drawn:
            reasons.append(_RANDOM)
        if doubt:
            reasons.append(doubt)
        if reasons:
            return Verdict("inconclusive", reasons=reasons, is_rest_equal=not doubt, steps=steps)
        return Verdict("equal", steps=steps)

    def _compare(self) -> tuple[list[tuple[str, str]], str]:
        """Return the differences, and why the runs prove nothing, if they do not."""
        try:
            one = self._on_one_device()
        except Exception as error:
            self._on_all_replicas()  # fails as well if the error is that of the step
            return [], f"one device fails ({type(error).__name__}: {first_line(error)})"
        replicas = self._on_all_replicas()
        noisy: Values = {}
        differ = differences(one, replicas, noisy, self.tolerance)
        if differ:  # by rounding, perhaps
            noisy = self._on_one_device(change=self.change)
            differ = differences(one, replicas, noisy, self.tolerance)
        if differ:
            again = self._on_one_device(is_seed_other=True)
            if differences(one, again, noisy, self.tolerance):
                return differ, "the results depend on the seed"
        return differ, ""

    def _on_one_device(self, **how: Any) -> Values:
        with metrics_of_one_device(self.model):
            return self._run(self.model.train_step, self.batches.dataset(), copies=1, **how)

    def _on_all_replicas(self) -> Values:
        data = self.step.strategy.experimental_distribute_dataset(self.batches.dataset())
        return self._run(functools.partial(self.step.run, "train_step"), data)

    def _run(
        self,
        step: Callable[[Any], Any],
        dataset: Any,
        copies: int | None = None,
        change: float = 0.0,
        is_seed_other: bool = False,
    ) -> Values:
        """Return the values after the steps, from the saved state or from changed weights.

        ``copies``: the copies of a variable that are compared; None: those of all replicas.
        """
        self.state.restore()
        if is_seed_other:
            self.state.change_seeds()
        begin = _changed_weights(self.model, change) if change else {}
        values: dict[str, Value] = {}
        self.model.reset_metrics()
        data = iter(dataset)

        def train(iterator: Any) -> Any:
            return step(self.batches.pack(iterator.get_next()))

        if not self.model.run_eagerly:
            train = tf.function(train, autograph=False).get_concrete_function(data)
        for number in range(1, len(self.batches.all) + 1):
            logs = self.step.limited(train)(data)
            if overrides(self.model, "train_step"):  # its logs may be of one replica
                logs = getattr(self.model, LOGS_OF_EPOCH)(logs)
            values |= _logs_of_step(logs, number)
        return values | self._variables(begin, copies)

    def _variables(self, begin: dict[int, Any], copies: int | None) -> dict[str, Value]:
        """Return the variables of the model and its optimizers, by their place."""
        trained = set(map(id, self.model.trainable_variables))
        grouped = [(v, "trained" if id(v) in trained else "weights") for v in self.model.weights]
        for where, optimizer in optimizers_of(self.model).items():
            # The slot: "momentum", "velocity" ...
            slots = [(v, str(v.path).rsplit("_", 1)[-1]) for v in optimizer_variables(optimizer)]
            grouped += [(v, f"{where} {slot}") for v, slot in slots]
        values = {}
        for place, (variable, group) in enumerate(grouped):
            before = begin.get(id(variable), self.state.before(variable))
            if before is not None and _is_float(before):
                arrays = list(map(as_array, values_of(stored(variable))))[:copies]
                update = np.subtract(arrays[0], as_array(before), dtype="float64")
                values[f"{place}"] = Value(variable.path, arrays, update, group)
        return values


def _logs_of_step(logs: Any, number: int) -> dict[str, Value]:
    values = {}
    for key, value in (logs if isinstance(logs, dict) else {"result": logs}).items():
        name = f"log {key!r} of step {number}"
        for place, leaf in enumerate(tf.nest.flatten(value)):
            array = as_array(leaf)
            values[f"{name} {place}"] = Value(name, [array], array, name)
    return values


def _causes(groups: set[str]) -> str:
    """Return the usual causes of differences of values of these groups."""
    groups = {group for group in groups if not group.startswith("log ")}
    if not groups:
        return _CAUSES_OF_LOGS
    return _CAUSES_OF_WEIGHTS if groups == {"weights"} else _CAUSES_OF_GRADIENTS


def _changed_weights(model: Any, share: float) -> dict[int, Any]:
    """Change each weight by a share of it, up or down; return the new values by id."""
    draw = np.random.default_rng(0)
    begin = {}
    for variable in model.trainable_variables:
        value = stored(variable)
        now = values_of(value)[0]
        moved = (now * (1 + share * draw.choice([-1.0, 1.0], now.shape))).astype(now.dtype)
        restore_values(value, [moved])
        begin[id(variable)] = moved
    return begin


def _is_float(value: Any) -> bool:
    return bool(np.issubdtype(value.dtype, np.floating)) or value.dtype.name == "bfloat16"
