"""Under several replicas an optimizer cannot make its variables in the first step.

What is wrong: Keras 3.15 makes momenta and the like when an optimizer first applies gradients. In a
loop of your own, or for an optimizer that ``compile`` does not know (the two of a GAN), that is
inside a step of each replica, where TensorFlow makes variables under a condition whose branch is
left with a placeholder that nobody feeds: the tutorial's loop fails with any optimizer but plain
SGD.

The mend: the replicas meet, and the variables are made before the step that uses them. Guarantees:
once, with the names and values that ``optimizer.build(variables)`` in the scope gives; what is
trained under another strategy, or none, is not touched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tfopt.distribute.mends.under_strategies import UnderStrategies

_mended = UnderStrategies()


def probe(strategy: Any) -> bool:
    """Whether an optimizer that makes variables in a step fails under this strategy.

    Over several processes it is taken to be so: a step that fails there ends all later ones.
    """
    if strategy.extended._in_multi_worker_mode():
        return True
    import keras
    import tensorflow as tf

    with strategy.scope():
        weight = keras.Variable(0.0, name="probe")
        optimizer = keras.optimizers.SGD(1.0, momentum=0.5)

    def on_each() -> None:
        optimizer.apply([tf.constant(1.0)], [weight])

    try:
        tf.function(lambda: strategy.run(on_each), autograph=False)()
    except tf.errors.InvalidArgumentError:
        return True
    return False


def mend(strategy: Any) -> None:
    """Makes the variables first, in what is trained under this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    import keras

    for kind in (keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer):
        setattr(kind, "apply", _building(kind.apply))  # noqa: B010 (a class of Keras's)


def _building(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
            if not self.built and _mended.on_a_replica():
                _build(self, trainable_variables)
        return plain(self, grads, trainable_variables)

    return apply


def _build(optimizer: Any, variables: list[Any]) -> None:
    import tensorflow as tf
    from keras.src import backend

    def together(_strategy: Any) -> None:
        with tf.init_scope(), backend.name_scope(optimizer.name, caller=optimizer):
            optimizer.build(variables)

    tf.distribute.get_replica_context().merge_call(together)
