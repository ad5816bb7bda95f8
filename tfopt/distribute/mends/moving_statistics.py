"""Under several replicas each keeps its own moving statistics, and only the first one's are saved.

What is wrong: in Keras 3.15 BatchNormalization's moving mean and variance are updated on each
replica from its own examples and never brought together. What is saved, and predicted by, has seen
one replica's part of the data, and replicas evaluate by different statistics. A replica that got no
example of a short last batch has a mean of nothing: NaN, which goes into all weights.

The mend: before an optimizer applies gradients, the statistics of all replicas are averaged by the
examples behind them, in one exchange; no examples are normalized by the moving statistics.
Guarantees: only under a strategy that this was asked for; what normalizes a batch stays each
replica's own mean and variance (with ``synchronized=True`` all replicas').
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import Any

from tfopt.distribute.mends.under_strategies import UnderStrategies, current_graph

_mended = UnderStrategies()
_of_this_thread = threading.local()
_STATISTICS = (
    "moving_mean",
    "moving_variance",
    "moving_stddev",
    "renorm_mean",
    "renorm_stddev",
)


def probe(strategy: Any) -> bool:
    """Whether replicas that see different examples end with different moving means."""
    import keras
    import tensorflow as tf

    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.0)
        layer.build((None, 1))
        weight = keras.Variable(0.0, name="probe")
        optimizer = keras.optimizers.SGD(0.0)
        optimizer.build([weight])

    def on_each() -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        layer(tf.fill([2, 1], tf.cast(replica, tf.float32)), training=True)
        optimizer.apply([tf.constant(0.0)], [weight])

    tf.function(lambda: strategy.run(on_each), autograph=False)()
    whole = (strategy.num_replicas_in_sync - 1) / 2
    return any(
        abs(float(local[0]) - whole) > 1e-3
        for local in strategy.experimental_local_results(layer.moving_mean.value)
    )


def mend(strategy: Any) -> None:
    """Brings moving statistics together in what is trained under this strategy."""
    if _mended.add(strategy):
        _put_on()


def note_all(model: Any, inputs: Any) -> None:
    """Keeps that all statistics of a model moved by these inputs, where that was seen by nobody."""
    import keras

    if not _mended.on_a_replica():
        return
    for layer in model._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            _note(layer, inputs)


def _put_on() -> None:
    import keras

    normalize = keras.layers.BatchNormalization.call
    moments = keras.layers.BatchNormalization._moments

    @wraps(normalize)
    def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        outputs = normalize(self, inputs, training=training, mask=mask)
        if training and self.trainable and _mended.on_a_replica():
            _note(self, inputs)
        return outputs

    @wraps(moments)
    def _moments(self: Any, inputs: Any, mask: Any) -> Any:
        found = moments(self, inputs, mask)
        return _of_something(self, inputs, found) if _mended.on_a_replica() else found

    keras.layers.BatchNormalization.call = call
    keras.layers.BatchNormalization._moments = _moments
    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        setattr(kind, "apply", _after_settling(kind.apply))  # noqa: B010 (a class of Keras's)


def _after_settling(plain: Any) -> Any:
    @wraps(plain)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if _mended.on_a_replica():
            _bring_together()
        return plain(self, grads, trainable_variables)

    return apply


def _of_something(layer: Any, inputs: Any, found: tuple[Any, Any]) -> tuple[Any, Any]:
    """The mean and variance of a batch; the moving ones where it holds nothing."""
    import tensorflow as tf

    moving = (layer.moving_mean, layer.moving_variance)
    there = tf.shape(inputs)[0] > 0
    mean, variance = (
        tf.where(there, new, tf.cast(old.value, new.dtype))
        for new, old in zip(found, moving, strict=True)
    )
    return mean, variance


def _note(layer: Any, inputs: Any) -> None:
    """Keeps that this layer has new statistics, and of how many examples."""
    import tensorflow as tf

    if not hasattr(_of_this_thread, "updated"):
        _of_this_thread.updated = {}
    _of_this_thread.updated[id(layer)] = (layer, tf.shape(inputs)[0], current_graph())


def _bring_together() -> None:
    """Averages what was noted in this step, and forgets it."""
    import tensorflow as tf

    updated = getattr(_of_this_thread, "updated", {})
    # What an abandoned trace, or a function inside this one, has noted is not of this graph.
    here = [(layer, count) for layer, count, graph in updated.values() if graph is current_graph()]
    updated.clear()
    parts, owners = [], []
    for layer, count in here:
        for name in _STATISTICS:
            variable = getattr(layer, name, None)
            if variable is not None:
                parts.append(_weighed(variable.value, count))
                owners.append(variable)
        parts.append(tf.cast(count, tf.float32)[None])
        owners.append(None)
    if not parts:
        return
    replica = tf.distribute.get_replica_context()
    sums = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.concat(parts, axis=0))
    each = iter(tf.split(sums, [part.shape[0] for part in parts]))
    _assign([(owner, next(each)) for owner in owners])


def _weighed(value: Any, count: Any) -> Any:
    """A replica's statistics times its examples; nothing, not NaN, where it has none."""
    import tensorflow as tf

    flat = tf.cast(tf.reshape(value, [-1]), tf.float32)
    return tf.where(count > 0, flat * tf.cast(count, tf.float32), tf.zeros_like(flat))


def _assign(found: list[tuple[Any, Any]]) -> None:
    """Each layer's sums, divided by the examples that follow them."""
    import tensorflow as tf

    of_layer: list[tuple[Any, Any]] = []
    for variable, value in found:
        if variable is not None:
            of_layer.append((variable, value))
            continue
        for own, weighed in of_layer:
            mean = tf.math.divide_no_nan(weighed, value)
            own.assign(tf.cast(tf.reshape(mean, own.shape), own.dtype))
        of_layer = []
