"""Train a batch in micro-batches, with the weights that the whole batch trains.

The optimizer is asked once a batch, with the gradient of the whole batch but for rounding, also
where micro-batches are uneven, masked or weighted; metrics see every example once. At any time the
activations of one micro-batch are there, and two gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from tfopt.compress.hooks import Hooks
from tfopt.distribute.mends import moving_statistics
from tfopt.distribute.mends.loss_calls import refuse_what_is_not_followed
from tfopt.distribute.mends.under_strategies import set_aside
from tfopt.errors import UserError, keep_plain, require_count
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Effect, Facts
from tfopt.job.rebuild import require_built_keras3, require_keras3
from tfopt.train.call_state import State
from tfopt.train.micro_batch_losses import Counting, Weighing, added_loss, weighing

if TYPE_CHECKING:
    import keras

_NAME = "_accumulated"  # among the model's attributes, unseen by Keras: it goes with the model


class Accumulated:
    """A model's training step in micro-batches."""

    def __init__(self, model: Any, steps: int) -> None:
        self.steps = steps
        self._model = model
        self._hooks = Hooks()

    def put_on(self) -> None:
        """Put this step in front of the model's own."""
        self._own_step = self._model.train_step
        aggregate = self._model._aggregate_additional_loss
        self._hooks.replace(self._model, "train_step", lambda data: self._step(data))
        self._hooks.replace(
            self._model, "_aggregate_additional_loss", lambda loss: added_loss(aggregate, loss)
        )
        vars(self._model)[_NAME] = self
        self._model.train_function = None

    def take_off(self) -> None:
        """Leave the model as it was."""
        self._hooks.take_off()
        vars(self._model).pop(_NAME, None)
        self._model.train_function = None

    def _step(self, data: Any) -> Any:
        import keras
        import tensorflow as tf

        model = self._model
        if not model.trainable_weights:
            return self._own_step(data)
        refuse_optimizer(model.optimizer)
        self._refuse_synchronized()
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        examples = _first_leaf(x)
        own = tf.cast(tf.shape(examples)[0], tf.float32)
        with set_aside():
            counts = self._counts(data)
        whole, *totals = _over_replicas([own, *counts.values()])
        found = dict(zip(counts, totals, strict=True))
        totals = [found.get(place) for place in range(max(counts, default=-1) + 1)]
        losses, grads = self._in_turns(data, whole, totals)
        for tracker, loss in zip(self._trackers(), losses, strict=True):
            # Keras means these over the examples, and over the replicas by theirs.
            tracker.update_state(tf.math.divide_no_nan(loss * whole, own), sample_weight=own)
        moving_statistics.note_all(model, examples)
        model.optimizer.apply(grads, model.trainable_weights)
        return model.get_metrics_result()

    def _in_turns(self, data: Any, whole: Any, totals: list[Any]) -> tuple[list[Any], list[Any]]:
        """Return the sums of the losses that Keras shows, and of the gradients."""
        import tensorflow as tf

        there: set[int] = set()

        def add(micro: Any, sums: Any) -> Any:
            shown, grads = self._micro(micro, whole, totals)
            there.update(place for place, grad in enumerate(grads) if grad is not None)
            return (
                [total + loss for total, loss in zip(sums[0], shown, strict=True)],
                [
                    total if grad is None else total + tf.cast(grad, total.dtype)
                    for total, grad in zip(sums[1], grads, strict=True)
                ],
            )

        zeros = (
            [tf.zeros(()) for _ in self._trackers()],
            [tf.zeros(w.shape, w.dtype) for w in self._model.trainable_weights],
        )
        losses, grads = self._loop(data, add, zeros)
        return losses, [grad if place in there else None for place, grad in enumerate(grads)]

    def _micro(self, data: Any, whole: Any, totals: list[Any]) -> tuple[list[Any], list[Any]]:
        """Run one micro-batch through the model's own step, which neither updates nor shows."""
        import tensorflow as tf

        own = tf.cast(tf.shape(_first_leaf(data))[0], tf.float32)
        mode = Weighing(tf.math.divide_no_nan(own, whole), totals)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        with set_aside(), weighing(mode), _caught(self._model, self._trackers()) as caught:
            self._own_step(data)
        shown = [tf.cast(loss, tf.float32) / float(replicas) for loss in caught.losses]
        return shown, [
            None if grad is None else tf.convert_to_tensor(grad) for grad in caught.grads
        ]

    def _counts(self, data: Any) -> dict[int, Any]:
        """Return how much each loss is a mean of, where masks or weights decide that.

        A forward pass alone gives it, of which TensorFlow runs only what masks come from.
        """
        import tensorflow as tf

        def count(micro: Any) -> list[Any]:
            counting = Counting()
            # What is assigned here is forgotten.
            with State(f"The model {self._model.name!r}"), weighing(counting):
                self._loss(micro)
            places.update(p for p, each in enumerate(counting.counts) if each is not None)
            return [tf.zeros(()) if each is None else each for each in counting.counts]

        places: set[int] = set()
        micro = _slice(data, tf.constant(0), self._size(data))
        if tf.executing_eagerly():
            number = len(count(micro))
        else:
            # Only traced, to see whether any is needed.
            traced = tf.function(lambda: count(micro), autograph=False).get_concrete_function()
            number = len(traced.outputs)
        if not places:
            return {}

        def add(micro: Any, sums: Any) -> Any:
            return [total + each for total, each in zip(sums, count(micro), strict=True)]

        totals = self._loop(data, add, [tf.zeros(()) for _ in range(number)])
        return {place: totals[place] for place in sorted(places)}

    def _loss(self, data: Any) -> None:
        import keras

        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        arguments = {"training": True} if self._model._call_has_training_arg else {}
        hooks = Hooks()
        # Keras asks the scope for the weights, and these losses are no means.
        hooks.replace(self._model, "_get_regularization_losses", lambda: [])
        try:
            y_pred = self._model(x, **arguments)
            self._model._compute_loss(x, y, y_pred, sample_weight, training=True)
            refuse_what_is_not_followed(self._model)
        finally:
            hooks.take_off()

    def _size(self, data: Any) -> Any:
        """Return the examples of a micro-batch: a number where the batch's is known."""
        return -(-_length(data) // self.steps)

    def _loop(self, data: Any, add: Callable[[Any, Any], Any], sums: Any) -> Any:
        """Add up over the micro-batches: whole ones, and then the one that is left."""
        import tensorflow as tf

        length, size = _length(data), self._size(data)
        full = length // size if isinstance(length, int) else length // tf.maximum(size, 1)

        def body(start: Any, sums: Any) -> Any:
            # Read inside, where XLA still knows them as numbers.
            return start + self._size(data), add(_slice(data, start, self._size(data)), sums)

        def rest(start: Any, sums: Any) -> Any:
            left = _length(data) % self._size(data)
            return start + left, add(_slice(data, start, left), sums)

        start, sums = tf.while_loop(
            lambda start, _: start < full * size,
            body,
            (tf.constant(0), sums),
            parallel_iterations=1,
        )
        if isinstance(length, int) and length % size == 0:
            return sums
        return tf.while_loop(
            lambda start, _: start < length, rest, (start, sums), parallel_iterations=1
        )[1]

    def _trackers(self) -> list[Any]:
        compiled = self._model._compile_loss
        own = [] if compiled is None else [each for each in compiled.metrics if each]
        return [self._model._loss_tracker, *own]

    def _refuse_synchronized(self) -> None:
        import tensorflow as tf

        if tf.distribute.get_strategy().num_replicas_in_sync == 1:
            return
        for layer in self._model._flatten_layers():
            if getattr(layer, "synchronized", False):
                raise UserError(
                    f"{layer.name!r} cannot be synchronized inside a micro-batch.",
                    expected="BatchNormalization(synchronized=False) with tfopt.accumulate under "
                    "several replicas",
                    received="synchronized=True",
                    fix="drop one of the two; the moving statistics are brought together anyway",
                )


@dataclass
class _Caught:
    """The losses and gradients that a model's own step wanted to update."""

    losses: list[Any]
    grads: list[Any]


@contextmanager
def _caught(model: Any, trackers: list[Any]) -> Iterator[_Caught]:
    """Catch the gradients and losses of the model's step instead of applying them."""
    caught = _Caught([0.0] * len(trackers), [None] * len(model.trainable_weights))
    place = {id(weight): place for place, weight in enumerate(model.trainable_weights)}

    def apply(grads: Any, trainable_variables: Any = None) -> None:
        variables = trainable_variables or model.trainable_weights
        for grad, variable in zip(grads, variables, strict=True):
            caught.grads[place[id(variable)]] = grad

    def update_of(number: int) -> Callable[..., None]:
        def update_state(loss: Any, sample_weight: Any = None) -> None:
            caught.losses[number] = loss

        return update_state

    hooks = Hooks()
    try:
        hooks.replace(model.optimizer, "apply", apply)
        for number, tracker in enumerate(trackers):
            hooks.replace(tracker, "update_state", update_of(number))
        yield caught
    finally:
        hooks.take_off()


def accumulated(model: Any) -> Accumulated | None:
    """Return what ``accumulate`` has put on a model, if anything."""
    found: Accumulated | None = vars(model).get(_NAME)
    return found


def refuse_optimizer(optimizer: Any) -> None:
    """Refuse Keras's own accumulation, whose defects would remain, on top of ours."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    if getattr(inner, "gradient_accumulation_steps", None):
        raise UserError(
            "The optimizer accumulates gradients itself.",
            expected="an optimizer without gradient_accumulation_steps",
            received=f"gradient_accumulation_steps={inner.gradient_accumulation_steps}",
            fix="leave it out, and give fit() batches that many times as large",
        )


def _over_replicas(values: list[Any]) -> list[Any]:
    import tensorflow as tf

    replica = tf.distribute.get_replica_context()
    if replica is None or replica.num_replicas_in_sync == 1:
        return values
    return list(replica.all_reduce(tf.distribute.ReduceOp.SUM, values))


def _first_leaf(data: Any) -> Any:
    import keras

    return next(leaf for leaf in keras.tree.flatten(data) if leaf is not None)


def _length(data: Any) -> Any:
    """Return the examples in a batch: a number where it is known."""
    import tensorflow as tf

    leaf = _first_leaf(data)
    known = leaf.shape[0]
    if known is not None:
        return int(known)
    return leaf.nrows(tf.int32) if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf)[0]


def _slice(data: Any, start: Any, size: Any) -> Any:
    import keras
    import tensorflow as tf

    def cut(leaf: Any) -> Any:
        if leaf is None or not leaf.shape.rank:
            return leaf
        if isinstance(leaf, tf.RaggedTensor):
            return leaf[start : start + size]
        if isinstance(leaf, tf.SparseTensor):
            raise UserError(
                "A batch of sparse tensors is not cut into micro-batches.",
                expected="dense or ragged tensors",
                received=type(leaf).__name__,
                fix="train without tfopt.accumulate, or densify the input first",
            )
        rest = leaf.shape.rank - 1
        return tf.slice(leaf, [start, *[0] * rest], [size, *[-1] * rest])

    return keras.tree.map_structure(cut, data)


def accumulate(model: keras.Model, steps: int) -> keras.Model:
    """Let a model train its batches in ``steps`` micro-batches, in place, and return that model.

    ``fit`` is given the whole batch, and all that counts steps (schedules, averages,
    ``iterations``, masks of ``prune``, callbacks) counts batches; only the memory for activations
    is that of a micro-batch. Where batches of 8 fit into memory, ``accumulate(model, 4)`` and
    ``fit(..., batch_size=32)`` train what a batch of 32 would. A last batch that is smaller is cut
    into smaller micro-batches: no gradient is left over.

    What differs from the whole batch: BatchNormalization normalizes each micro-batch by itself and
    moves its statistics that often; Dropout draws for each micro-batch; what ``add_loss`` adds is
    taken as a mean over examples, or of none.

    Args:
        model: A built Keras 3 model with Keras's own ``train_step`` and ``compute_loss``, compiled
            or not. Not an optimizer: it does not see what a loss is a mean of.
        steps: Micro-batches a batch; 1 takes it off. A model that is loaded or cloned is a plain
            one.

    Example:
        tfopt.accumulate(model, 4)
        model.fit(x, y, batch_size=32)
    """
    require_count("accumulate(steps)", steps)
    _require_model(model)
    before = accumulated(model)
    if before is not None:
        before.take_off()
    if steps > 1:
        Accumulated(model, steps).put_on()
    return model


@dataclass(frozen=True, repr=False)
class Accumulate(Transform):
    """Train each batch in ``steps`` micro-batches, which need less memory."""

    steps: int

    changes: ClassVar[frozenset[str]] = frozenset({"attachments"})
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("Accumulate.steps", self.steps)

    def edit(self, job: Job) -> Job:
        return replace(job, attachments=(*job.attachments, self.attach))

    def attach(self, model: Any, facts: Facts) -> Effect:
        """Put it on the final model."""
        if self.steps == 1:
            return Effect(False, "one micro-batch a batch: the plain step")
        if facts.batch_size is None:
            accumulate(model, self.steps)
            return Effect(True, f"{self.steps} micro-batches of each batch")
        examples = facts.batch_size // facts.replicas
        if self.steps > examples:
            raise UserError(
                f"A batch cannot be trained in {self.steps} micro-batches.",
                expected=f"at most {examples}: the examples that a device gets of each batch",
                received=f"steps={self.steps}",
                fix="accumulate in fewer steps, or train with larger batches",
            )
        accumulate(model, self.steps)
        micro = -(-examples // self.steps)
        where = f" on each of {facts.replicas} replicas" if facts.replicas > 1 else ""
        return Effect(
            True,
            f"batches of {facts.batch_size} in {-(-examples // micro)} micro-batches of {micro}"
            f"{' at most' if examples % micro else ''}{where}",
        )


def _require_model(model: Any) -> None:
    import keras

    if isinstance(model, keras.optimizers.Optimizer):
        raise UserError(
            "accumulate() needs the model.",
            expected="a keras.Model, whose losses say what each is a mean of",
            received=type(model).__name__,
            fix="tfopt.accumulate(model, steps)",
        )
    require_keras3(model)
    for name in ("train_step", "compute_loss"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            raise UserError(
                f"The {name} of {type(model).__name__} cannot be cut into micro-batches.",
                expected=f"Keras's own {name}, whose losses can be weighed",
                received=f"{type(model).__name__}.{name}",
                fix="accumulate in your own step, or move what is special into a keras.losses.Loss",
            )
    require_built_keras3(model)
    for variable in model.trainable_variables:
        if variable.overwrite_with_gradient:
            raise UserError(
                f"{variable.path} is overwritten by its gradient, which cannot be summed.",
                expected="weights that are trained",
                received="a float8 model",
                fix="train float8 without accumulate()",
            )
    if getattr(model, "compiled", False):
        refuse_optimizer(model.optimizer)
