"""Under several replicas what a train_step of a model's own shows is each replica's, or an N-th.

What is wrong: Keras 3.15 on TensorFlow divides its losses by the number of replicas, so that they
add up; a ``keras.metrics.Mean`` takes each replica's part for a value of the whole, as the trackers
of Keras's guides do, and so does what a step returns: an N-th is shown. What metrics give inside a
step is of one replica's examples: their mean is not the metric of all.

The mend: in ``train_step`` and ``test_step`` of a model's own a Mean or Sum that is given one
number, a replica's part of a loss, takes the whole batch's, and such a number that is returned is
the whole batch's; metrics give what all replicas have seen. Guarantees: only under a strategy that
this was asked for, and where ``own_losses`` knows what the number is made of, or Keras that a
metric's variables add up; any other number that is seen to be a replica's own is shown as it is,
and told once.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from functools import wraps
from typing import Any
from weakref import WeakSet

from tfopt.distribute.mends.replica_parts import Made, from_wholes, is_own_part, step_here, whole_of
from tfopt.distribute.mends.under_strategies import UnderStrategies, current_graph, has_own

_mended = UnderStrategies()
_giving: WeakSet[type] = WeakSet()
"""The metrics whose ``result`` is that of all replicas in a step of a model's own."""
_of_this_thread = threading.local()
_said: set[str] = set()


def probe(strategy: Any) -> bool:
    """Whether a Mean shows less than the loss that each of the replicas has computed."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        shown = keras.metrics.Mean(name="probe", dtype="float32")

    def on_each() -> None:
        shown.update_state(keras.losses.MeanSquaredError()(tf.zeros([2, 1]), tf.ones([2, 1])))

    tf.function(lambda: strategy.run(on_each), autograph=False)()
    return bool(float(shown.result()) < 0.75)


def mend(strategy: Any) -> None:
    """Shows the whole batch's in what is trained under this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    import keras
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    made, update = TensorFlowTrainer._make_function, keras.metrics.Mean.update_state
    add = keras.metrics.Sum.update_state

    @wraps(made)
    def _make_function(self: Any, step_function: Any) -> Any:
        if self.distribute_strategy not in _mended or not _has_own_step(self):
            return made(self, step_function)
        for metric in _metrics_of(self):
            _let_give_all(type(metric))

        @wraps(step_function)
        def step(data: Any) -> Any:
            logs = step_function(data)
            if not isinstance(logs, dict):
                return logs
            return {
                key: _shown(value, f"{key!r} of {type(self).__name__}")
                for key, value in logs.items()
            }

        return made(self, step)

    @wraps(update)
    def update_state(self: Any, values: Any, sample_weight: Any = None) -> None:
        update(self, _as_whole(values) if _mended.on_a_replica() else values, sample_weight)

    @wraps(add)
    def update_sum(self: Any, values: Any, sample_weight: Any = None) -> None:
        if _mended.on_a_replica():
            whole = _as_whole(values)
            if whole is not values:  # which each replica adds once more
                values = whole / tf.distribute.get_strategy().num_replicas_in_sync
        add(self, values, sample_weight)

    TensorFlowTrainer._make_function = _make_function
    keras.metrics.Sum.update_state = update_sum
    keras.metrics.Mean.update_state = update_state


def _has_own_step(model: Any) -> bool:
    return has_own(model, "train_step") or has_own(model, "test_step")


def _shown(value: Any, what: str) -> Any:
    """The whole batch's; what is a replica's own all the same is told."""
    import keras
    import tensorflow as tf

    def one(each: Any) -> Any:
        if getattr(each, "dtype", None) == tf.bool:
            each = tf.cast(each, tf.float32)  # of which Keras can take the replicas' mean
        whole = _as_whole(each)
        if whole is each and _is_number(each) and is_own_part(each) and what not in _said:
            _said.add(what)
            warnings.warn(
                f"What the step shows as {what} is the mean of what each replica has of its own "
                "examples, which is not that of the whole batch. Show means and sums over the "
                "examples, metrics, or what tf.distribute.get_replica_context().all_reduce gives.",
                RuntimeWarning,
                stacklevel=2,
            )
        return whole

    return keras.tree.map_structure(one, value)


def _is_number(value: Any) -> bool:
    return hasattr(value, "graph") and hasattr(value, "shape") and value.shape.rank == 0


def _as_whole(value: Any) -> Any:
    """The whole batch's, of a number that is a replica's part."""
    if not _is_number(value):
        return value
    whole = whole_of(value)
    if whole is not None:
        return whole
    step = step_here()
    if step is None or value.graph is not step.graph:
        return value
    # Something made of losses and counts, such as a perplexity.
    again = from_wholes(Made(value), step)
    return value if again is value or is_own_part(again) else again


def _metrics_of(model: Any) -> Iterator[Any]:
    """All metrics that may be asked in a step, those inside others as well."""
    from keras.metrics import Metric

    left = list(model.metrics)
    seen: set[int] = set()
    while left:
        metric = left.pop()
        if not isinstance(metric, Metric) or id(metric) in seen:
            continue
        seen.add(id(metric))
        left += [*(getattr(metric, "metrics", None) or ()), *metric._metrics]
        yield metric


def _let_give_all(kind: type) -> None:
    """Lets the class that computes a metric's result do so from what all replicas have counted."""
    home: Any = next(each for each in kind.__mro__ if "result" in vars(each))
    if home in _giving:
        return
    _giving.add(home)
    plain = home.result

    @wraps(plain)
    def result(self: Any) -> Any:
        step = step_here()
        inside = getattr(_of_this_thread, "giving", False)
        if step is None or inside or current_graph() is not step.graph:
            return plain(self)
        if not _has_own_step(step.model) or not _mended.on_a_replica():
            return plain(self)
        variables = self.variables
        if not variables or any(each.aggregation != "sum" for each in variables):
            return plain(self)
        return _of_all(plain, self, variables)

    home.result = result


def _of_all(plain: Any, metric: Any, variables: list[Any]) -> Any:
    import keras
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    # What a worker's only replica reads has no device by itself, and could not be exchanged.
    own = [tf.identity(each.value) for each in variables]
    totals = [replica.all_reduce(tf.distribute.ReduceOp.SUM, each) for each in own]
    _of_this_thread.giving = True
    try:
        with keras.StatelessScope(state_mapping=list(zip(variables, totals, strict=True))):
            return plain(metric)
    finally:
        _of_this_thread.giving = False
