"""Under several replicas Keras cannot run several steps in one call of TensorFlow.

What is wrong: in Keras 3.15 on TensorFlow ``steps_per_execution`` above 1 puts a step that is a
function of its own into a branch inside a loop. Where the optimizer of that step works for several
replicas, the branch is left with a placeholder that nobody feeds, and ``fit`` fails at once.

The mend: the step is written into the loop itself. Guarantees: the same steps in the same order as
one device takes; the last execution of an epoch may be shorter; the logs are those of the last
step. What is compiled by XLA or run eagerly, and what is trained under another strategy or none,
goes to Keras unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfopt.distribute.mends.under_strategies import UnderStrategies, throwaway_model

_mended = UnderStrategies()


def probe(strategy: Any) -> bool:
    """Whether two steps in one execution fail under this strategy.

    Over several processes it is taken to be so: a step that fails there ends all later ones.
    """
    if strategy.extended._in_multi_worker_mode():
        return True
    import numpy as np
    import tensorflow as tf

    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        model = throwaway_model()
        model.compile("sgd", "mse", steps_per_execution=2, jit_compile=False)
        model.optimizer.build(model.trainable_variables)
    ones = np.ones((2 * replicas, 1), "float32")
    batches = tf.data.Dataset.from_tensor_slices((ones, ones)).batch(replicas)
    model.make_train_function()
    try:
        model.train_function(iter(strategy.experimental_distribute_dataset(batches)))
    except tf.errors.InvalidArgumentError:
        return True
    return False


def mend(strategy: Any) -> None:
    """Writes the step into the loop, for models of this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    plain = TensorFlowTrainer._make_function

    def _make_function(self: Any, step_function: Callable[[Any], Any]) -> Any:
        several = self.steps_per_execution > 1 and not self.run_eagerly and not self.jit_compile
        if several and self.distribute_strategy in _mended:
            return _several(self, step_function)
        return plain(self, step_function)

    TensorFlowTrainer._make_function = _make_function


def _several(model: Any, step_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    import tensorflow as tf
    from keras.src.backend.tensorflow import trainer

    strategy, steps = model.distribute_strategy, model.steps_per_execution
    unrolled = min(model.unrolled_steps_per_execution, steps)

    def on_data(data: Any) -> Any:
        outputs = strategy.run(step_function, args=(data,))
        return trainer.reduce_per_replica(outputs, strategy, reduction="auto")

    one = model._autoconvert_optionals(on_data)

    kinds: dict[str, Any] = {}

    def kept(outputs: Any) -> Any:
        """What a step tells, as one value that the loop can hold before there is any."""
        flat = [tf.convert_to_tensor(each) for each in tf.nest.flatten(outputs)]
        kinds["outputs"] = tf.nest.map_structure(lambda _: None, outputs)
        kinds["types"] = [each.dtype for each in flat]
        kinds["shapes"] = [each.shape for each in flat]
        return tf.raw_ops.OptionalFromValue(components=flat)

    def on_iterator(iterator: Any) -> Any:
        def goes_on(step: Any, more: Any, _told: Any) -> Any:
            return tf.logical_and(step < steps, more)

        def next_step(step: Any, _more: Any, told: Any) -> Any:
            there = iterator.get_next_as_optional()
            more = there.has_value()
            told = tf.cond(more, lambda: kept(one(there.get_value())), lambda: told)
            return step + 1, more, told

        def body(*state: Any) -> Any:
            state = next_step(*state)
            for _ in range(1, unrolled):
                before = state
                state = tf.cond(
                    goes_on(*before),
                    lambda before=before: next_step(*before),
                    lambda before=before: before,
                )
            return state

        none = tf.raw_ops.OptionalNone()
        return tf.while_loop(goes_on, body, (tf.constant(0), tf.constant(True), none))[2]

    no_autograph = tf.autograph.experimental.do_not_convert
    over_iterator = tf.function(no_autograph(on_iterator), reduce_retracing=True)
    over_data = tf.function(no_autograph(one), reduce_retracing=True)

    def function(iterator: Any) -> Any:
        if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
            told = over_iterator(iterator)
            if not tf.raw_ops.OptionalHasValue(optional=told):
                raise StopIteration
            values = tf.raw_ops.OptionalGetValue(
                optional=told, output_types=kinds["types"], output_shapes=kinds["shapes"]
            )
            return tf.nest.pack_sequence_as(kinds["outputs"], values)
        # What train_on_batch gives: batches of Python, one by one.
        for _, data in zip(range(steps), iterator, strict=False):
            outputs = over_data(data)
        return outputs

    return function
