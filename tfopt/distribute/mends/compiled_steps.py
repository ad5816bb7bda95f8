"""Under several replicas Keras hands the whole step to XLA, which cannot exchange gradients.

What is wrong: with ``jit_compile=True`` Keras 3.15 compiles one program for all replicas. XLA knows
one device a program, and ``fit`` ends with "Trying to access resource ... located in device".

The mend: XLA is asked for the operations of the step instead of for the whole of it, so that it
compiles what lies between the exchanges, on each device. Guarantees: only ``fit`` and ``evaluate``
of models under a strategy that this was asked for; operations that XLA lacks run uncompiled, where
Keras on one device would refuse the model.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from tfopt.distribute.mends.under_strategies import UnderStrategies

_mended = UnderStrategies()


def probe(strategy: Any) -> bool:
    """Whether a compiled step under this strategy fails on its variables.

    Over several processes it is taken to be so: XLA on CPUs has none of the exchanges of workers
    with one replica each, and a step that fails there ends all later ones.
    """
    if strategy.extended._in_multi_worker_mode():
        return True
    import keras
    import tensorflow as tf

    with strategy.scope():
        weight = keras.Variable(0.0, name="probe")

    def on_all() -> Any:
        return strategy.run(lambda: weight.value.read_value())

    try:
        tf.function(on_all, autograph=False, jit_compile=True)()
    except tf.errors.InvalidArgumentError:
        return True
    return False


def mend(strategy: Any) -> None:
    """Lets models that ask for XLA train under this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    made = TensorFlowTrainer._make_function

    @wraps(made)
    def _make_function(self: Any, step_function: Any) -> Any:
        if self.run_eagerly or not self.jit_compile or self.distribute_strategy not in _mended:
            return made(self, step_function)
        asked, self._jit_compile = self._jit_compile, False
        try:
            return made(self, _by_operation(step_function))
        finally:
            self._jit_compile = asked

    TensorFlowTrainer._make_function = _make_function


def _by_operation(step_function: Any) -> Any:
    @wraps(step_function)
    def step(data: Any) -> Any:
        import tensorflow as tf

        scope = tf.xla.experimental.jit_scope(_is_for_xla)
        scope.__enter__()
        # Never left, since replicas take turns in building one graph, of this step alone; it lives
        # as long as that graph.
        tf.compat.v1.get_default_graph().add_to_collection("tfopt_xla_scopes", scope)
        return step_function(data)

    return step


def _is_for_xla(node: Any) -> bool:
    return not node.op.startswith(("Collective", "Nccl"))
