"""Under several replicas Keras gives each replica the same share of the loss, whatever it holds.

What is wrong: each replica averages over its own values, and all averages count the same. Where a
last batch does not divide evenly, or a mask leaves one replica more than another, the gradient is
not that of the batch, and the loss that is shown is not its loss: other weights than on one device,
silently.

What is also wrong: a loss function that returns one number is not shared out at all, so that the
gradient is as many times too large as there are replicas.

The mend: each replica's mean counts by the share that it is a mean of, summed over the replicas.
One number is taken for the mean over the replica's examples, whatever is masked; a loss that such a
function asks for itself is its replica's own, and goes into that number.
Guarantees: only under a strategy that this was asked for; losses that are summed, or not reduced,
are Keras's own; what ``add_loss`` adds stays one equal share a replica, which is exact for
regularizers. In a function or condition inside a step, where replicas cannot exchange, a loss
counts by the examples of the step where ``compute_loss`` has been given them; otherwise its share
stays Keras's equal one, and a warning says so.
"""

from __future__ import annotations

import threading
import warnings
from functools import wraps
from typing import Any

from tfopt.distribute.mends import loss_calls
from tfopt.distribute.mends.under_strategies import UnderStrategies, current_graph

_mended = UnderStrategies()
_of_this_thread = threading.local()
_MEANS = ("mean", "sum_over_batch_size", "mean_with_sample_weight")


def probe(strategy: Any) -> bool:
    """Whether a replica with two examples counts no more than one with a single example."""
    import keras
    import tensorflow as tf

    def on_each() -> Any:
        first = tf.equal(tf.distribute.get_replica_context().replica_id_in_sync_group, 0)
        guesses = tf.fill([tf.where(first, 2, 1), 1], tf.where(first, 1.0, 4.0))
        return keras.losses.MeanSquaredError()(tf.zeros_like(guesses), guesses)

    shares = tf.function(lambda: strategy.run(on_each), autograph=False)()
    others = strategy.num_replicas_in_sync - 1
    of_the_batch = (1.0 + 1.0 + 16.0 * others) / (2 + others)
    found = strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)
    return bool(abs(float(found) - of_the_batch) > 1e-3)


def mend(strategy: Any) -> None:
    """Weighs the losses that are computed under this strategy by what they are means of."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    import tensorflow as tf
    from keras.src.losses import loss as home
    from keras.src.trainers.trainer import Trainer

    loss_calls.follow()
    plain, unscaled = home.reduce_weighted_values, home.unscale_loss_for_distribution
    compute, compute_any = Trainer.compute_loss, Trainer._compute_loss

    @wraps(plain)
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        kind = home.standardize_reduction(reduction)
        if kind not in _MEANS or not _mended.on_a_replica():
            return plain(values, sample_weight, mask, reduction, dtype)
        own = averaged_over(values, sample_weight, mask, kind)
        if loss_calls.is_one_number(values):
            own = loss_calls.examples()
            # A mean over no examples is no number.
            values = as_a_value(tf.where(own > 0, values, tf.zeros_like(values)))
        # Eagerly, Keras leaves the values of an empty batch as they are: none.
        loss = tf.reduce_sum(plain(values, sample_weight, mask, reduction, dtype))
        if loss_calls.is_part_of_another():
            return unscaled(loss)
        factor = _times_too_small(own, loss) if _can_meet() else _times_noted(loss)
        return loss * factor

    @wraps(unscaled)
    def unscale_loss_for_distribution(value: Any) -> Any:
        share = _share_of_batch() if _mended.on_a_replica() else None
        if share is None:
            return unscaled(value)
        if _can_meet():
            # Also the regularizers' shares of replicas without an example, which weigh nothing.
            replica, own = tf.distribute.get_replica_context(), tf.stop_gradient(value)
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, own)
        return value * _cast(share, value)

    def noting_the_batch(method: Any) -> Any:
        @wraps(method)
        def compute_loss(self: Any, x: Any = None, *arguments: Any, **named: Any) -> Any:
            if _mended.on_a_replica() and _can_meet():
                _note_batch(x)
            loss = method(self, x, *arguments, **named)
            if _mended.on_a_replica():
                loss_calls.refuse_what_is_not_followed(self)
            return loss

        return compute_loss

    home.reduce_weighted_values = reduce_weighted_values
    home.unscale_loss_for_distribution = unscale_loss_for_distribution
    Trainer.compute_loss = noting_the_batch(compute)
    Trainer._compute_loss = noting_the_batch(compute_any)


def as_a_value(number: Any) -> Any:
    """A number as one value to be averaged, which Keras shares out; a number it would not."""
    import keras

    return keras.ops.reshape(keras.ops.mean(number), (1,))


def averaged_over(values: Any, sample_weight: Any, mask: Any, reduction: str) -> Any:
    """What the mean of these values was divided by: how many they are, or how much they weigh."""
    import tensorflow as tf
    from keras.src.losses.loss import squeeze_or_expand_to_same_rank

    if reduction != "mean_with_sample_weight" or (sample_weight is None and mask is None):
        return tf.size(values) if mask is None else tf.reduce_sum(_cast(mask, 0.0))
    weights = _cast(1.0 if sample_weight is None else sample_weight, 0.0)
    if mask is not None:
        kept, weights = squeeze_or_expand_to_same_rank(_cast(mask, 0.0), weights)
        weights = weights * kept
    return tf.reduce_sum(weights)


def _times_too_small(own: Any, loss: Any) -> Any:
    """What turns an equal share of the loss into that of a replica's own part."""
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    own = tf.stop_gradient(_cast(own, 0.0))
    whole = replica.all_reduce(tf.distribute.ReduceOp.SUM, own)
    share = tf.math.divide_no_nan(own, whole)
    return _cast(share * replica.num_replicas_in_sync, loss)


def _can_meet() -> bool:
    """Whether replicas can exchange here: not in a function or condition inside their step."""
    import tensorflow as tf

    begun = getattr(threading.current_thread(), "graph", None)
    return begun is None or begun is tf.compat.v1.get_default_graph()


def _times_noted(loss: Any) -> Any:
    """As the whole step's examples go, where those are known; else Keras's equal share, told."""
    import tensorflow as tf

    share = _share_of_batch()
    if share is None:
        warnings.warn(
            "A loss inside a tf.function, condition or loop of a training step counts the same on "
            "each replica: a batch that does not divide among them, or a mask, trains other "
            "weights than on one device. Compute the loss in train_step itself.",
            RuntimeWarning,
            stacklevel=2,
        )
        return 1.0
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return _cast(tf.math.divide_no_nan(float(replicas), share), loss)


def _note_batch(x: Any) -> None:
    """Keeps how often this replica's examples go into those of all replicas."""
    import tensorflow as tf

    there = [each for each in tf.nest.flatten(x) if each is not None]
    if not there:
        return
    own = tf.cast(tf.shape(there[0])[0], tf.float32)
    replica = tf.distribute.get_replica_context()
    whole = replica.all_reduce(tf.distribute.ReduceOp.SUM, own)
    _of_this_thread.batch = (current_graph(), tf.math.divide_no_nan(whole, own))


def _share_of_batch() -> Any:
    """What was noted in this trace, or eager step; nothing of another one."""
    graph, share = getattr(_of_this_thread, "batch", (None, None))
    here = current_graph()
    # A function inside a trace may use what was noted outside it.
    while here is not graph and hasattr(here, "outer_graph"):
        here = here.outer_graph
    return share if graph is here else None


def _cast(value: Any, like: Any) -> Any:
    import tensorflow as tf

    return tf.cast(value, tf.convert_to_tensor(like).dtype)
