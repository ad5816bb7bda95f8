"""Accumulate: a batch trained in micro-batches, with the weights that the whole batch trains.

Guarantees: gradients are those of the whole batch but for rounding, whatever the loss leaves out or
weighs: micro-batches may be uneven, masked or weighted. Layers that look at a batch as a whole
(BatchNormalization) look at a micro-batch, and Dropout draws for each anew. Files of the model have
no trace of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

from tfopt.compress.hooks import Hooks
from tfopt.distribute.mends import loss_calls, moving_statistics
from tfopt.distribute.mends.loss_calls import refuse_what_is_not_followed
from tfopt.distribute.mends.loss_shares import as_a_value, averaged_over
from tfopt.distribute.mends.loss_terms import terms_of
from tfopt.distribute.mends.under_strategies import set_aside
from tfopt.errors import UserError, keep_plain, require_count
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Effect, Facts
from tfopt.job.rebuild import require_built_keras3, require_keras3
from tfopt.train.call_state import State

if TYPE_CHECKING:
    import keras

# What a micro-batch's mean loss counts in that of its batch.
#
# Guarantees: the losses of all micro-batches, on all replicas, add up to the loss of the batch: a
# mean counts by how many values, or how much weight, it is a mean of. What ``add_loss`` adds
# counts by examples, which is exact for regularizers and for means over examples, and whole where
# its graph says that it is a sum over them; a loss that is one number is taken for such a mean.
# Only losses that are computed inside ``weighing`` or ``counting``, on the thread that entered,
# are changed.

_of_this_thread = threading.local()
_put_on: list[bool] = []
_lock = threading.Lock()


@dataclass
class Counting:
    """What each mean loss of one micro-batch, in the order of computation, is a mean of.

    None: of its examples, each alike.
    """

    counts: list[Any] = field(default_factory=list)


@dataclass
class Weighing:
    """The share of the examples, and where masks or weights decide, of each loss by its count."""

    examples: Any
    totals: list[Any]
    seen: int = 0

    def share(self, count: Any) -> Any:
        """What the next mean loss counts."""
        import tensorflow as tf

        total = self.totals[self.seen] if self.seen < len(self.totals) else None
        self.seen += 1
        if count is None or total is None:
            return self.examples
        return tf.math.divide_no_nan(count, total)


@contextmanager
def inside(what: Counting | Weighing) -> Iterator[None]:
    """Inside, Keras's losses on this thread are counted, or weighed."""
    _install()
    before = getattr(_of_this_thread, "what", None)
    _of_this_thread.what = what
    try:
        yield
    finally:
        _of_this_thread.what = before


def added_loss(aggregate: Callable[[Any], Any], loss: Any) -> Any:
    """What ``add_loss`` has added: by examples, but for a sum over them; outside of ``Weighing`` as
    Keras's ``aggregate`` gives it."""
    from keras.src.trainers.trainer import Trainer

    what = getattr(_of_this_thread, "what", None)
    if not isinstance(what, Weighing):
        return aggregate(loss)
    if hasattr(loss, "graph"):
        terms = terms_of(loss, None, 1)
        if terms.adding_up and not terms.means and not terms.unknown:
            return Trainer._aggregate_additional_loss(None, loss)
    scaled = aggregate(loss)
    return scaled * _factor(what.examples, scaled)


def _install() -> None:
    with _lock:
        if _put_on:
            return
        _put_on.append(True)
        from keras.src.losses import loss as home

        loss_calls.follow()
        plain = home.reduce_weighted_values

        @wraps(plain)
        def reduce_weighted_values(
            values: Any,
            sample_weight: Any = None,
            mask: Any = None,
            reduction: str = "sum_over_batch_size",
            dtype: Any = None,
        ) -> Any:
            what = getattr(_of_this_thread, "what", None)
            kind = home.standardize_reduction(reduction)
            if what is not None and kind in ("none", None):
                raise UserError(
                    "A loss that is not reduced cannot be added up over micro-batches.",
                    expected="a loss that is one number: its mean, or its sum",
                    received=f"reduction={reduction!r}",
                    fix="leave the reduction out",
                )
            if what is None or kind == "sum":
                return plain(values, sample_weight, mask, reduction, dtype)
            count = None
            if loss_calls.is_one_number(values):
                values = as_a_value(values)
            else:
                count = _count(values, sample_weight, mask, kind)
            loss = plain(values, sample_weight, mask, reduction, dtype)
            if loss_calls.is_part_of_another():
                return home.unscale_loss_for_distribution(loss)
            if isinstance(what, Counting):
                what.counts.append(count)
                return loss
            return loss * _factor(what.share(count), loss)

        home.reduce_weighted_values = reduce_weighted_values


def _count(values: Any, sample_weight: Any, mask: Any, reduction: str) -> Any:
    """What a mean was divided by; None where that is its examples, each alike."""
    weighs = reduction == "mean_with_sample_weight" and sample_weight is not None
    if mask is None and not weighs:
        return None
    return averaged_over(values, sample_weight, mask, reduction)


def _factor(share: Any, loss: Any) -> Any:
    """Keras gives each replica an equal share first."""
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return tf.cast(tf.stop_gradient(share) * float(replicas), loss.dtype)


# The training step of a model whose batches are trained in micro-batches, one after another.
#
# Guarantees: the optimizer is asked once a batch, with the gradient of the whole batch, so that
# clipping, loss scaling, weight decay, averages, schedules, constraints and ``iterations`` are
# those of the plain step; metrics see every example once. At any time the activations of one
# micro-batch are there, and two gradients.

_NAME = "_accumulated"
"""Among the model's attributes, behind Keras's back: it goes when the model goes."""


class Accumulated:
    """A model's training step, in so many micro-batches."""

    def __init__(self, model: Any, steps: int) -> None:
        self.steps = steps
        self._model = model
        self._hooks = Hooks()
        self._of_this_thread = threading.local()

    def put_on(self) -> None:
        """In front of the model's own step."""
        self._own_step = self._model.train_step
        aggregate = self._model._aggregate_additional_loss
        self._hooks.replace(self._model, "train_step", lambda data: self._step(data))
        self._hooks.replace(
            self._model, "_aggregate_additional_loss", lambda loss: added_loss(aggregate, loss)
        )
        vars(self._model)[_NAME] = self
        self._model.train_function = None

    def take_off(self) -> None:
        """Leaves the model as it was."""
        self._hooks.take_off()
        vars(self._model).pop(_NAME, None)
        self._model.train_function = None

    def _step(self, data: Any) -> Any:
        """What Keras calls with a batch, or with a replica's part of one."""
        import keras
        import tensorflow as tf

        model = self._model
        if not model.trainable_weights:
            return self._own_step(data)
        refuse_optimizer(model.optimizer)
        self._refuse(data)
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        examples = next(leaf for leaf in keras.tree.flatten(x) if leaf is not None)
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
        """The sums of the losses that Keras shows, and of the gradients."""
        import tensorflow as tf

        weights = self._model.trainable_weights
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
            [tf.zeros(weight.shape, weight.dtype) for weight in weights],
        )
        losses, grads = self._loop(data, add, zeros)
        return losses, [grad if place in there else None for place, grad in enumerate(grads)]

    def _micro(self, data: Any, whole: Any, totals: list[Any]) -> tuple[list[Any], list[Any]]:
        """One micro-batch through the model's own step, which neither updates nor shows."""
        import keras
        import tensorflow as tf

        own = tf.cast(tf.shape(next(filter(_there, keras.tree.flatten(data))))[0], tf.float32)
        weighing = Weighing(tf.math.divide_no_nan(own, whole), totals)
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
        with set_aside(), inside(weighing), self._caught() as caught:
            self._own_step(data)
        shown = [tf.cast(loss, tf.float32) / float(replicas) for loss in caught.losses]
        return shown, [
            None if grad is None else tf.convert_to_tensor(grad) for grad in caught.grads
        ]

    def _counts(self, data: Any) -> dict[int, Any]:
        """Where masks or weights decide what a loss is a mean of: how much, in the batch.

        It is known from a forward pass alone, of which TensorFlow runs only what masks come from.
        """
        import tensorflow as tf

        def count(micro: Any) -> list[Any]:
            counting = Counting()
            # What is assigned here is forgotten.
            with State(f"The model {self._model.name!r}"), inside(counting):
                self._loss(micro)
            places.update(p for p, each in enumerate(counting.counts) if each is not None)
            return [tf.zeros(()) if each is None else each for each in counting.counts]

        places: set[int] = set()
        micro = self._first(data)
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
        told = {"training": True} if self._model._call_has_training_arg else {}
        hooks = Hooks()
        # Keras asks the scope for the weights, and these losses are no means.
        hooks.replace(self._model, "_get_regularization_losses", lambda: [])
        try:
            y_pred = self._model(x, **told)
            self._model._compute_loss(x, y, y_pred, sample_weight, training=True)
            refuse_what_is_not_followed(self._model)
        finally:
            hooks.take_off()

    def _first(self, data: Any) -> Any:
        import tensorflow as tf

        return _slice(data, tf.constant(0), self._size(data))

    def _size(self, data: Any) -> Any:
        """Examples of a micro-batch: a number where the batch's is known, else a tensor."""
        return -(-_length(data) // self.steps)

    def _loop(self, data: Any, add: Callable[[Any, Any], Any], sums: Any) -> Any:
        """Adds up over the micro-batches: whole ones, and then the one that is left."""
        import tensorflow as tf

        length, size = _length(data), self._size(data)
        full = length // size if isinstance(length, int) else length // tf.maximum(size, 1)

        def body(start: Any, sums: Any) -> Any:
            # Read inside, where XLA still knows them as numbers.
            return start + self._size(data), add(_slice(data, start, self._size(data)), sums)

        def rest(start: Any, sums: Any) -> Any:
            left = _length(data) % self._size(data)
            return start + left, add(_slice(data, start, left), sums)

        begun = (tf.constant(0), sums)
        start, sums = _while(lambda start, _: start < full * size, body, begun)
        if isinstance(length, int) and length % size == 0:
            return sums
        return _while(lambda start, _: start < length, rest, (start, sums))[1]

    def _trackers(self) -> list[Any]:
        """The metrics that Keras shows losses by."""
        compiled = self._model._compile_loss
        own = [] if compiled is None else [each for each in compiled.metrics if each]
        return [self._model._loss_tracker, *own]

    @contextmanager
    def _caught(self) -> Iterator[Any]:
        """Inside, this thread's step gives its gradients and losses to us."""
        before = getattr(self._of_this_thread, "caught", None)
        self._of_this_thread.caught = caught = _Caught(self._model, self._trackers())
        with ExitStack() as stack:
            stack.callback(setattr, self._of_this_thread, "caught", before)
            stack.enter_context(caught.catching())
            yield caught

    def _refuse(self, data: Any) -> None:
        import keras
        import tensorflow as tf

        for leaf in keras.tree.flatten(data):
            if isinstance(leaf, tf.SparseTensor):
                raise UserError(
                    "A batch of sparse tensors is not cut into micro-batches.",
                    expected="dense or ragged tensors",
                    received=type(leaf).__name__,
                    fix="train without tfopt.accumulate, or densify the input first",
                )
        if tf.distribute.get_strategy().num_replicas_in_sync > 1:
            for layer in self._model._flatten_layers():
                if getattr(layer, "synchronized", False):
                    raise UserError(
                        f"{layer.name!r} cannot be synchronized inside a micro-batch.",
                        expected="BatchNormalization(synchronized=False) with tfopt.accumulate "
                        "under several replicas",
                        received="synchronized=True",
                        fix="drop one of the two; the moving statistics are brought together "
                        "anyway",
                    )


class _Caught:
    """What a model's own step wanted to update."""

    def __init__(self, model: Any, trackers: list[Any]) -> None:
        self._model, self._trackers = model, trackers
        self.losses: list[Any] = [0.0 for _ in trackers]
        self.grads: list[Any] = [None for _ in model.trainable_weights]
        self._place = {id(w): place for place, w in enumerate(model.trainable_weights)}

    @contextmanager
    def catching(self) -> Iterator[None]:
        hooks = Hooks()
        try:
            hooks.replace(self._model.optimizer, "apply", self._taking())
            for place, tracker in enumerate(self._trackers):
                hooks.replace(tracker, "update_state", self._shown(place))
            yield
        finally:
            hooks.take_off()

    def _taking(self) -> Callable[..., None]:
        def apply(grads: Any, trainable_variables: Any = None) -> None:
            variables = trainable_variables or self._model.trainable_weights
            for grad, variable in zip(grads, variables, strict=True):
                self.grads[self._place[id(variable)]] = grad

        return apply

    def _shown(self, place: int) -> Callable[..., None]:
        def update_state(loss: Any, sample_weight: Any = None) -> None:
            self.losses[place] = loss

        return update_state


def accumulated(model: Any) -> Accumulated | None:
    """What is on a model."""
    found: Accumulated | None = vars(model).get(_NAME)
    return found


def refuse_optimizer(optimizer: Any) -> None:
    """Keras's own accumulation, which leaves its defects in, is not put on top of ours."""
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


def _there(leaf: Any) -> bool:
    return leaf is not None


def _length(data: Any) -> Any:
    """Examples in a batch: a number where it is known."""
    import keras
    import tensorflow as tf

    leaf = next(filter(_there, keras.tree.flatten(data)))
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
        rest = leaf.shape.rank - 1
        return tf.slice(leaf, [start, *[0] * rest], [size, *[-1] * rest])

    return keras.tree.map_structure(cut, data)


def _while(condition: Any, body: Any, begun: Any) -> Any:
    import tensorflow as tf

    return tf.while_loop(condition, body, begun, parallel_iterations=1)


def accumulate(model: keras.Model, steps: int) -> keras.Model:
    """Lets a model train its batches in ``steps`` micro-batches, in place, and returns that model.

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
    """Trains each batch in so many micro-batches, which need less memory."""

    steps: int

    changes: ClassVar[frozenset[str]] = frozenset({"attachments"})
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("Accumulate.steps", self.steps)

    def edit(self, job: Job) -> Job:
        return replace(job, attachments=(*job.attachments, self.attach))

    def attach(self, model: Any, facts: Facts) -> Effect:
        """Puts it on the final model."""
        if self.steps == 1:
            return Effect(False, "one micro-batch a batch: the plain step")
        if facts.batch_size is not None:
            _require_enough(self.steps, facts.batch_size // facts.replicas)
        accumulate(model, self.steps)
        if facts.batch_size is None:
            return Effect(True, f"{self.steps} micro-batches of each batch")
        each = facts.batch_size // facts.replicas
        micro = -(-each // self.steps)
        where = f" on each of {facts.replicas} replicas" if facts.replicas > 1 else ""
        return Effect(
            True,
            f"batches of {facts.batch_size} in {-(-each // micro)} micro-batches of {micro}"
            f"{' at most' if each % micro else ''}{where}",
        )


def _require_enough(steps: int, examples: int) -> None:
    """Refuse more micro-batches than a device has examples in a batch."""
    if steps > examples:
        raise UserError(
            f"A batch cannot be trained in {steps} micro-batches.",
            expected=f"at most {examples}: the examples that a device gets of each batch",
            received=f"steps={steps}",
            fix="accumulate in fewer steps, or train with larger batches",
        )


def _require_model(model: Any) -> None:
    import keras

    if isinstance(model, keras.optimizers.Optimizer):
        raise UserError(
            "accumulate() needs the model.",
            expected="a keras.Model, whose losses tell what each is a mean of",
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
