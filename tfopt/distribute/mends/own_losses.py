"""Under several replicas a loss that a model's own code means over the batch counts N times.

What is wrong: Keras 3.15 on TensorFlow divides by the number of replicas what its own losses mean,
and nothing else: not what ``train_step`` or ``compute_loss`` of a model's own mean (the VAE of
Keras's guides). The gradients of N replicas add up to N times that of one device, silently.

The mend: in ``fit`` and ``evaluate``, a mean over a replica's examples counts by their share in the
batch, and so does what is the same on each, such as a regularizer; what adds up (Keras's own
losses, sums, tf.nn.compute_average_loss) is left as it is, also where one loss holds both. It is
said once for each class. Guarantees: what the loss is made of is read off its graph; where that is
not sure (a ratio of two sums, a mean divided by just the number of replicas in code that asks for
it, a loss that a function inside the step computes, a step that is run eagerly), training is
refused by name; a factor that may be meant so is told. A loss function
that gives one number counts by its examples (``loss_shares``), and what is no mean over them, such
as Dice, is warned of. In a training loop of your own TensorFlow leaves the division to you: nothing
is changed, and a mean that nobody divided is warned of.
"""

from __future__ import annotations

import warnings
from functools import wraps
from typing import Any

from tfopt.distribute.mends.loss_terms import Terms, is_over_all, terms_of
from tfopt.distribute.mends.noted_values import note_counted, note_what_is_exchanged
from tfopt.distribute.mends.replica_parts import (
    Step,
    asks_for_replicas,
    counted_targets,
    inside,
    part_of,
    step_here,
    terms_in,
)
from tfopt.distribute.mends.taken_gradients import follow_gradients
from tfopt.distribute.mends.under_strategies import UnderStrategies, current_graph, has_own
from tfopt.errors import UserError

_mended = UnderStrategies()
_said: set[str] = set()
_COMPARED = (
    "compares the examples of a batch with each other, or weighs them by what all of them give "
    "together (a mean, a spread, their order): each replica does so with its own ones only, and "
    "the weights are not those of one device. Let each replica have all that it is to compare, by "
    "larger batches or tf.distribute.get_replica_context().all_gather, or all_reduce for sums."
)


def probe(strategy: Any) -> bool:
    """Whether what a ``compute_loss`` of a model's own means counts once for each replica."""
    import keras
    import tensorflow as tf

    class Own(keras.Model):  # type: ignore[misc]
        def compute_loss(self, x: Any = None, y: Any = None, *_: Any, **__: Any) -> Any:
            return tf.reduce_mean(y)

    model = Own(name="probe")

    def on_each() -> Any:
        return model._compute_loss(x=tf.ones([2, 1]), y=tf.ones([2, 1]))

    shares = tf.function(lambda: strategy.run(on_each), autograph=False)()
    return bool(float(strategy.reduce(tf.distribute.ReduceOp.SUM, shares, axis=None)) > 1.5)


def mend(strategy: Any) -> None:
    """Counts what is meant by a model's own code, in what is trained under this strategy."""
    if _mended.add(strategy):
        note_what_is_exchanged()
        _put_on_steps()
        _put_on_losses()


def _put_on_steps() -> None:
    """What knows the step, and what a gradient is taken of in it."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    made = TensorFlowTrainer._make_function

    @wraps(made)
    def _make_function(self: Any, step_function: Any) -> Any:
        if self.distribute_strategy not in _mended:
            return made(self, step_function)

        @wraps(step_function)
        def step(data: Any) -> Any:
            here = Step(self, data)
            here.begin()
            with inside(here):
                return step_function(data)

        return made(self, step)

    TensorFlowTrainer._make_function = _make_function
    follow_gradients(_parts, _mended.on_a_replica, _say_once)


def _put_on_losses() -> None:
    """What computes losses, each of which adds up from here on."""
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.losses import loss as home
    from keras.src.trainers.trainer import Trainer

    reduce, compute = home.reduce_weighted_values, Trainer._compute_loss
    aggregate = TensorFlowTrainer._aggregate_additional_loss
    scaled = tf.nn.scale_regularization_loss

    @wraps(reduce)
    def reduce_weighted_values(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        loss = reduce(values, sample_weight, mask, reduction, dtype)
        if not _mended.on_a_replica() or reduction in (None, "none"):
            return loss
        _note(loss)  # first: what Keras divides by the number of values is the whole's
        if reduction != "sum" or values.shape.rank:
            _tell_what_differs(values)
        return loss

    @wraps(aggregate)
    def _aggregate_additional_loss(self: Any, loss: Any) -> Any:
        step = step_here()
        in_step = step is not None and current_graph() is step.graph and hasattr(loss, "graph")
        if step is not None and in_step and _mended.on_a_replica():
            whole = Trainer._aggregate_additional_loss(self, loss)
            # Keras divides it by the replicas itself: a factor is what it looks like.
            terms = terms_in(whole, step, 1)
            # What is the same on each replica, such as a regularizer, Keras shares out right.
            if not terms.unknown and (terms.adding_up or terms.of_data):
                return _noted(part_of(whole, terms, step))
        return _noted(aggregate(self, loss))

    @wraps(compute)
    def _compute_loss(self: Any, *arguments: Any, **named: Any) -> Any:
        loss = compute(self, *arguments, **named)
        if not has_own(self, "compute_loss") or not _mended.on_a_replica():
            return loss
        return _noted(_aspart_of(loss, f"{type(self).__name__}.compute_loss"))

    @wraps(scaled)
    def scale_regularization_loss(loss: Any) -> Any:
        return _noted(scaled(loss))

    home.reduce_weighted_values = reduce_weighted_values
    Trainer._compute_loss = _compute_loss
    TensorFlowTrainer._aggregate_additional_loss = _aggregate_additional_loss
    tf.nn.scale_regularization_loss = scale_regularization_loss


def _noted(loss: Any) -> Any:
    if _mended.on_a_replica():
        _note(loss)
    return loss


def _note(loss: Any) -> None:
    step = step_here()
    if hasattr(loss, "graph"):
        note_counted(loss)
    elif step is not None:
        step.counted_eagerly = True


def _aspart_of(loss: Any, who: str) -> Any:
    """A number that each replica has of its own, as its part of the whole batch's."""
    import tensorflow as tf

    step = step_here()
    if step is None:  # a loop of the user's own, or a probe: equal parts, as Keras's own losses
        return loss / tf.distribute.get_strategy().num_replicas_in_sync
    return part_of(loss, _sure(loss, who, step), step)


def _parts(target: Any) -> tuple[Any, Any]:
    """What to take the gradient of, and how each part counts."""
    import keras

    step = step_here()
    given = keras.tree.flatten(target)
    if step is None:
        for loss in given:
            _warn_in_a_loop(loss)
        return target, None
    if not step.is_own:
        return target, None
    parts, counts = [], []
    for loss in given:
        terms = _sure(loss, f"{type(step.model).__name__}.train_step", step)
        targets, weights = counted_targets(loss, terms, step)
        parts += targets
        counts += weights
    return parts, counts


def _sure(loss: Any, who: str, step: Step) -> Terms:
    """What it is made of; what cannot be known is refused."""
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    if not hasattr(loss, "graph"):
        unknown = (
            [] if step.counted_eagerly else ["a step that is run eagerly has no graph to read"]
        )
        terms = Terms(unknown=unknown)
        if step.counted_eagerly:
            _say_once(
                f"{who} is run eagerly: that no part of its loss is a mean of its own, which "
                f"would count {replicas} times, cannot be seen."
            )
    else:
        terms = terms_in(loss, step)
        inside_of_it = step.graph != "eager" and loss.graph is not step.graph
        if inside_of_it and not (terms.adding_up or terms.of_data):
            # Data that a loop hands out one by one, or a loss from outside, is not seen as such.
            terms.unknown.append("a function or loop inside the step, in which no data is seen")
        if terms.doubtful and asks_for_replicas(step.model):
            terms.unknown += terms.doubtful
    if terms.unknown:
        raise UserError(
            f"{who} computes a loss of which tfopt cannot tell how it adds up over {replicas} "
            "replicas.",
            expected="means over examples (keras.ops.mean, as on one device), sums over them, "
            "keras.losses objects, tf.nn.compute_average_loss with global_batch_size=, and sums of "
            "these with factors",
            received="; ".join(dict.fromkeys(terms.unknown)),
            fix="take the mean last, over one value for each example (factors inside it, no "
            "division by the replicas, run_eagerly=False), or compute it in a keras.losses.Loss "
            "that returns one value for each example",
        )
    for each in dict.fromkeys(terms.doubtful):
        _say_once(
            f"The loss of {who} has {each}: that is taken for a factor of the loss, as one device "
            "takes it. The division by the replicas is made by tfopt: leave out your own."
        )
    if terms.compared:
        _say_once(f"The loss of {who} {_COMPARED}")
    elif terms.means:
        _say_once(
            f"{who} means over the examples itself: each replica's mean counts by its share of "
            "the batch, so that the weights are those of one device."
        )
    return terms


def _tell_what_differs(values: Any) -> None:
    """Of what is not a loss for each example by itself: the whole batch's is another one."""
    step = step_here()
    if step is None or not hasattr(values, "graph"):
        return
    terms = terms_in(values, step)
    if terms.compared:
        _say_once(f"A loss function {_COMPARED}")
    if values.shape.rank and not is_over_all(values, step.examples.shape[0]):
        return
    unknown = terms.unknown
    if unknown:
        why = "; ".join(sorted({each.partition(" (")[0] for each in unknown}))
        _say_once(
            f"A loss function gives numbers that are no mean over examples ({why}): it is "
            "computed from each replica's examples, and what these make together is not the number "
            "of the whole batch."
        )


def _warn_in_a_loop(loss: Any) -> None:
    import tensorflow as tf

    if not hasattr(loss, "graph"):
        return
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    # Any dimension may be the examples.
    if terms_of(loss, 1, replicas).means:
        _say_once(
            f"A training loop takes the gradient of a replica's own mean, and {replicas} of them "
            "add up: divide it by strategy.num_replicas_in_sync, or use "
            "tf.nn.compute_average_loss (tf.nn.scale_regularization_loss for regularizers)."
        )


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=5)
