"""Train a batch in micro-batches, with the weights that the whole batch trains.

The optimizer is asked once a batch, with the gradient of the whole batch but for rounding, also
where micro-batches are uneven, masked or weighted; metrics see every example once. At any time the
activations of one micro-batch are there, and two gradients.

Each of Keras's losses is a sum over the examples, divided by numbers of the whole batch, which are
counted first. So the losses of all micro-batches, on all replicas, add up to that of the batch.
Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

import keras
import tensorflow as tf

from tfopt.compress.hooks import Hooks, putting
from tfopt.distribute.partial_losses import adds_up, loss_of, not_reduced, terms
from tfopt.distribute.step import WholeLoss, counts_by_example, has_own, metrics_of
from tfopt.distribute.whole_batch import all_reduce_sum, note_losses, shard_here
from tfopt.errors import UserError, keep_plain, require_count
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Effect, Facts
from tfopt.job.rebuild import require_built_keras3, require_keras3
from tfopt.train.call_state import State

_NAME = "_accumulated"  # among the model's attributes, unseen by Keras: it goes with the model


@dataclass
class _Pass:
    """A pass over one micro-batch: to count what its losses are divided by, or to train on it."""

    share: Any = None
    """Its examples divided by the whole batch's; None: to count."""
    wholes: list[list[Any]] = field(default_factory=list)
    """What each loss of the whole batch is divided by; nothing where that goes by the examples."""
    counted: list[list[Any]] = field(default_factory=list)
    """The same of this micro-batch, in the order in which its losses are computed."""


class Accumulated:
    """A model's training step in micro-batches."""

    def __init__(
        self, model: Any, steps: int, own_losses: Literal["mean", "sum"] | None = None
    ) -> None:
        self.steps = steps
        self.own_losses = own_losses
        self._model = model
        self._hooks = Hooks()

    def put_on(self) -> None:
        """Put this step in front of the model's own."""
        self._own_step = self._model.train_step
        self._hooks.replace(self._model, "train_step", lambda data: self._step(data))
        vars(self._model)[_NAME] = self
        self._model.train_function = None

    def take_off(self) -> None:
        """Leave the model as it was."""
        self._hooks.take_off()
        vars(self._model).pop(_NAME, None)
        self._model.train_function = None

    def _step(self, data: Any) -> Any:
        model, shard = self._model, shard_here()
        if not model.trainable_weights:
            return self._own_step(data)
        refuse_optimizer(model.optimizer)
        _refuse_exchanges(model)
        self._require_losses(data)
        first = _first_leaf(data)
        examples = tf.shape(first)[0] if shard is None else shard.examples
        if shard is not None:
            shard.is_global_loss = True  # what metrics are shown, and the gradients
        whole, wholes = self._counted(data, tf.cast(examples, tf.float32))
        losses, grads = self._in_turns(data, whole, wholes)
        # As Keras does: by the examples, and by those of an output where they are known.
        weights = [examples] + [first.shape[0]] * (len(losses) - 1)
        losses = tf.unstack(_of_all(tf.stack(losses)))
        for tracker, loss, weight in zip(_trackers(model), losses, weights, strict=True):
            tracker.update_state(loss, sample_weight=weight)
        model.optimizer.apply(grads, model.trainable_weights)
        return model.get_metrics_result()

    def _counted(self, data: Any, examples: Any) -> tuple[Any, list[list[Any]]]:
        """Return how many examples the whole batch has, and what each of its losses is divided by.

        A forward pass alone gives it, of which TensorFlow runs only what masks come from.
        """
        one = _Pass()
        self._traced(data, lambda micro: self._count(micro, one))  # is there anything to count?
        lengths = [len(each) for each in one.counted]
        sums = [tf.zeros(()) for _ in range(sum(lengths))]
        if sums:
            sums = self._loop(data, lambda micro: self._count(micro, _Pass()), sums)
        whole, *numbers = tf.unstack(_of_all(tf.stack([examples, *sums])))
        found = iter(numbers)
        return whole, [[next(found) for _ in range(length)] for length in lengths]

    def _count(self, data: Any, one: _Pass) -> list[Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        training = {"training": True} if self._model._call_has_training_arg else {}
        # What is assigned here is forgotten.
        with State(f"The model {self._model.name!r}"), self._losses_by(one):
            y_pred = self._model(x, **training)
            self._model._compute_loss(x, y, y_pred, sample_weight, training=True)
        return [number for each in one.counted for number in each]

    def _traced(self, data: Any, work: Callable[[Any], Any]) -> None:
        """Trace what is done of a micro-batch, which only eager steps run."""
        micro = _slice(data, tf.constant(0), self._size(data))
        if tf.executing_eagerly():
            work(micro)
        else:
            tf.function(lambda: work(micro), autograph=False).get_concrete_function()

    def _in_turns(self, data: Any, whole: Any, wholes: Any) -> tuple[list[Any], list[Any]]:
        """Return the sums of the losses that Keras shows, and of the gradients."""
        model, trackers = self._model, _trackers(self._model)
        weights = model.trainable_weights
        there: set[int] = set()

        def train(micro: Any) -> list[Any]:
            examples = tf.cast(tf.shape(_first_leaf(micro))[0], tf.float32)
            one = _Pass(tf.math.divide_no_nan(examples, whole), wholes)
            with self._losses_by(one), _caught(model, trackers) as (shown, grads):
                self._own_step(micro)
            there.update(place for place, grad in enumerate(grads) if grad is not None)
            return [*shown, *grads]

        sums = [tf.zeros(()) for _ in trackers] + [tf.zeros(w.shape, w.dtype) for w in weights]
        sums = self._loop(data, train, sums)
        grads = sums[len(trackers) :]
        return sums[: len(trackers)], [g if p in there else None for p, g in enumerate(grads)]

    @contextmanager
    def _losses_by(self, one: _Pass) -> Iterator[None]:
        """Let the model compute its losses as this pass wants them."""
        model, compiled = self._model, self._model._compile_loss
        seen = iter(one.wholes)

        def part(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            if not adds_up(loss):
                return self._part(loss(y_true, y_pred, sample_weight), one, self._declared())
            numerator, divisors = terms(loss, y_true, y_pred, sample_weight)
            if one.share is None:
                one.counted.append(divisors if _is_counted(loss, divisors) else [])
                return loss_of(numerator, divisors)
            whole = [tf.cast(each, numerator.dtype) for each in next(seen)]
            if whole or divisors is None:
                return loss_of(numerator, whole or None)
            return self._part(loss_of(numerator, divisors), one, "mean")

        def compute_loss(*args: Any, **kwargs: Any) -> Any:
            added = [tf.zeros(())] if one.share is None else self._added(one)
            model._losses_override.extend(added)
            try:
                return type(model)._compute_loss(model, *args, **kwargs)
            finally:
                model._losses_override.clear()

        with putting() as put:
            put(model, "_compute_loss", compute_loss)
            if compiled is not None and compiled.built:
                losses = [e._replace(loss=partial(part, _plain(e))) for e in compiled._flat_losses]
                put(compiled, "_flat_losses", losses)
            if shard_here() is None:  # elsewhere the step on replicas has noted them
                for layer in model._flatten_layers():
                    note_losses(put, layer)
            yield

    def _part(self, loss: Any, one: _Pass, kind: str | None) -> Any:
        """Return a micro-batch's mean or sum as its part of the whole batch's."""
        return loss if kind == "sum" or one.share is None else loss * tf.cast(one.share, loss.dtype)

    def _added(self, one: _Pass) -> list[Any]:
        """Return what regularizers and ``add_loss`` have added, as parts of the whole batch's."""
        model, found = self._model, []
        for layer in model._flatten_layers():
            for loss in layer._losses:
                # An activity regularizer's is a mean over the examples.
                kind = "mean" if layer._losses.is_of_activity(loss) else self._declared()
                if kind is None:
                    raise _undeclared(f"add_loss() of {layer.name!r}")
                found.append(self._part(model._aggregate_additional_loss(loss), one, kind))
        of_weights = model._get_regularization_losses()
        return found + [self._part(loss, one, "mean") for loss in of_weights]

    def _declared(self) -> str | None:
        shard = shard_here()
        return self.own_losses or (None if shard is None else shard.own_losses)

    def _require_losses(self, data: Any) -> None:
        """Refuse losses that do not add up, and let Keras build them where it has not."""
        compiled = self._model._compile_loss
        if compiled is None:
            return
        for loss in keras.tree.flatten(compiled._user_loss):
            if getattr(loss, "reduction", "sum") in (None, "none"):
                raise not_reduced(loss)
        if not compiled.built:
            self._traced(data, lambda micro: self._count(micro, _Pass()))
        own = [_name(_plain(e)) for e in compiled._flat_losses if not adds_up(_plain(e))]
        if own and self._declared() is None:
            raise _undeclared(", ".join(own))

    def _size(self, data: Any) -> Any:
        """Return the examples of a micro-batch: a number where the batch's is known."""
        return -(-_length(data) // self.steps)

    def _loop(self, data: Any, work: Callable[[Any], list[Any]], sums: list[Any]) -> list[Any]:
        """Add up over the micro-batches: whole ones, and then the one that is left."""
        length, size = _length(data), self._size(data)
        full = length // size if isinstance(length, int) else length // tf.maximum(size, 1)

        def add(start: Any, size: Any, sums: list[Any]) -> tuple[Any, list[Any]]:
            parts = zip(sums, work(_slice(data, start, size)), strict=True)
            return start + size, [
                total if part is None else total + tf.cast(tf.convert_to_tensor(part), total.dtype)
                for total, part in parts
            ]

        # Sizes are read inside, where XLA still knows them as numbers.
        start, sums = tf.while_loop(
            lambda start, _: start < full * size,
            lambda start, sums: add(start, self._size(data), sums),
            (tf.constant(0), sums),
            parallel_iterations=1,
            maximum_iterations=full if isinstance(full, int) else None,
        )
        if not isinstance(length, int) or length % size:
            _, sums = tf.while_loop(
                lambda start, _: start < length,
                lambda start, sums: add(start, _length(data) % self._size(data), sums),
                (start, sums),
                parallel_iterations=1,
            )
        shard = shard_here()
        # A replica without examples was given one to run on.
        return sums if shard is None else [shard.weigh(total, "sum") for total in sums]


@contextmanager
def _caught(model: Any, trackers: list[Any]) -> Iterator[tuple[list[Any], list[Any]]]:
    """Catch the losses and gradients of the model's step instead of applying them."""
    place = {id(weight): place for place, weight in enumerate(model.trainable_weights)}
    shown: list[Any] = [None] * len(trackers)
    grads: list[Any] = [None] * len(place)

    def apply(found: Any, trainable_variables: Any = None) -> None:
        variables = trainable_variables or model.trainable_weights
        for grad, variable in zip(found, variables, strict=True):
            grads[place[id(variable)]] = grad

    def update_state(number: int, loss: Any, sample_weight: Any = None) -> None:
        shown[number] = loss

    with putting() as put:
        put(model.optimizer, "apply", apply)
        for number, tracker in enumerate(trackers):
            put(tracker, "update_state", partial(update_state, number))
        yield shown, grads


def _refuse_exchanges(model: Any) -> None:
    """Refuse what replicas would have to exchange inside a micro-batch."""
    if shard_here() is None:
        strategy = tf.distribute.get_strategy()
        if strategy.num_replicas_in_sync > 1:
            raise UserError(
                "Replicas of a plain strategy do not exchange what micro-batches need.",
                expected="tfopt.accumulate on one device, or under tfopt.distribute()",
                received=type(strategy).__name__,
                fix="build and compile the model inside with tfopt.distribute():",
            )
        return
    layers = [each for each in model._flatten_layers() if getattr(each, "synchronized", False)]
    for each in layers + [each for each in metrics_of(model) if not counts_by_example(each)]:
        raise UserError(
            f"{each.name!r} cannot be synchronized inside a micro-batch.",
            expected="BatchNormalization(synchronized=False), and metrics of keras.metrics, with "
            "tfopt.accumulate under several replicas",
            received=type(each).__name__ + ("(synchronized=True)" if each in layers else ""),
            fix="leave one of the two out; moving statistics are brought together anyway",
        )


def _trackers(model: Any) -> list[Any]:
    compiled = model._compile_loss
    return [model._loss_tracker, *(compiled.metrics if compiled is not None else [])]


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


def _undeclared(who: str) -> UserError:
    return UserError(
        f"tfopt is not told how the losses of micro-batches add up: {who}.",
        expected="losses of keras.losses that have a value for each example, or a mean over the "
        "examples, or a sum over them, declared",
        received="a loss or add_loss() of your own, or one that compares examples",
        fix='accumulate(model, steps, own_losses="mean") where a batch twice as large gives the '
        'same number (keras.ops.mean), or own_losses="sum" where it gives twice as much',
    )


def _plain(entry: Any) -> Any:
    """Return a loss of ``compile`` as it was given, also inside a step on replicas."""
    return entry.loss.loss if isinstance(entry.loss, WholeLoss) else entry.loss


def _name(loss: Any) -> str:
    own = getattr(loss, "fn", None) or type(loss)
    return getattr(own, "__name__", None) or repr(own)


def _is_counted(loss: Any, divisors: Any) -> bool:
    """Return whether masks or weights decide what a loss is divided by, not the examples alone."""
    return divisors is not None and (
        len(divisors) > 1 or loss.reduction == "mean_with_sample_weight"
    )


def _of_all(value: Any) -> Any:
    return value if shard_here() is None else all_reduce_sum(value)


def _first_leaf(data: Any) -> Any:
    return next(leaf for leaf in keras.tree.flatten(data) if leaf is not None)


def _length(data: Any) -> Any:
    """Return the examples in a batch: a number where it is known."""
    leaf = _first_leaf(data)
    known = leaf.shape[0]
    if known is not None:
        return int(known)
    return leaf.nrows(tf.int32) if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf)[0]


def _slice(data: Any, start: Any, size: Any) -> Any:
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


def accumulate(
    model: keras.Model, steps: int, *, own_losses: Literal["mean", "sum"] | None = None
) -> keras.Model:
    """Let a model train its batches in ``steps`` micro-batches, in place, and return that model.

    ``fit`` is given the whole batch, and all that counts steps (schedules, averages,
    ``iterations``, masks of ``prune``, callbacks) counts batches; only the memory for activations
    is that of a micro-batch. Where batches of 8 fit into memory, ``accumulate(model, 4)`` and
    ``fit(..., batch_size=32)`` train what a batch of 32 would. A last batch that is smaller is cut
    into smaller micro-batches: no gradient is left over.

    What differs from the whole batch: BatchNormalization normalizes each micro-batch by itself and
    moves its statistics that often; Dropout draws for each micro-batch.

    Args:
        model: A built Keras 3 model with Keras's own ``train_step`` and ``compute_loss``, compiled
            or not. Not an optimizer: it does not see what a loss is a mean of.
        steps: Micro-batches a batch; 1 takes it off. A model that is loaded or cloned is a plain
            one.
        own_losses: How losses of your own and what ``add_loss`` adds go together: "mean", each
            micro-batch's counts by its examples, or "sum". Not declared, they are refused by name;
            so are Dice, Tversky and Circle, which are neither. Keras's other losses and
            regularizers are known.

    Example:
        tfopt.accumulate(model, 4)
        model.fit(x, y, batch_size=32)
    """
    require_count("accumulate(steps)", steps)
    _require_kind("accumulate(own_losses)", own_losses)
    _require_model(model)
    before = accumulated(model)
    if before is not None:
        before.take_off()
    if steps > 1:
        Accumulated(model, steps, own_losses).put_on()
    return model


@dataclass(frozen=True, repr=False)
class Accumulate(Transform):
    """Train each batch in ``steps`` micro-batches, which need less memory."""

    steps: int
    own_losses: Literal["mean", "sum"] | None = None

    changes: ClassVar[frozenset[str]] = frozenset({"attachments"})
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        keep_plain(self)
        require_count("Accumulate.steps", self.steps)
        _require_kind("Accumulate.own_losses", self.own_losses)

    def edit(self, job: Job) -> Job:
        return replace(job, attachments=(*job.attachments, self.attach))

    def attach(self, model: Any, facts: Facts) -> Effect:
        """Put it on the final model."""
        if self.steps == 1:
            return Effect(False, "one micro-batch a batch: the plain step")
        if facts.batch_size is None:
            accumulate(model, self.steps, own_losses=self.own_losses)
            return Effect(True, f"{self.steps} micro-batches of each batch")
        examples = facts.batch_size // facts.replicas
        if self.steps > examples:
            raise UserError(
                f"A batch cannot be trained in {self.steps} micro-batches.",
                expected=f"at most {examples}: the examples that a device gets of each batch",
                received=f"steps={self.steps}",
                fix="accumulate in fewer steps, or train with larger batches",
            )
        accumulate(model, self.steps, own_losses=self.own_losses)
        micro = -(-examples // self.steps)
        where = f" on each of {facts.replicas} replicas" if facts.replicas > 1 else ""
        return Effect(
            True,
            f"batches of {facts.batch_size} in {-(-examples // micro)} micro-batches of {micro}"
            f"{' at most' if examples % micro else ''}{where}",
        )


def _require_kind(name: str, own_losses: object) -> None:
    if own_losses not in (None, "mean", "sum"):
        raise UserError(
            f"{name} is not known.",
            expected='"mean", "sum" or None',
            received=repr(own_losses),
        )


def _require_model(model: Any) -> None:
    if isinstance(model, keras.optimizers.Optimizer):
        raise UserError(
            "accumulate() needs the model.",
            expected="a keras.Model, whose losses say what each is a mean of",
            received=type(model).__name__,
            fix="tfopt.accumulate(model, steps)",
        )
    require_keras3(model)
    own = [name for name in ("train_step", "compute_loss") if has_own(model, name)]
    for name in own:
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
