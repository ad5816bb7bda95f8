"""One replica's part of a loss: what it adds to the whole batch's.

Guarantees: parts are only told of a loss whose terms are known (``loss_terms``): a mean over a
replica's examples counts by their share in the batch, and so does what is the same on each, such as
a regularizer; what adds up counts whole. A replica without examples, whose means are no numbers,
adds nothing by them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any

from tfopt.distribute.mends.example_axes import is_drawn, is_of_data
from tfopt.distribute.mends.loss_terms import Terms, Weighed, is_of_a_replica, terms_of
from tfopt.distribute.mends.noted_values import (
    behind,
    is_counted,
    is_of_this_replica,
    note_of_parts,
    summed_in,
    whole_in,
)
from tfopt.distribute.mends.under_strategies import current_graph, has_own

# Whether a model's own code asks how many replicas there are, as what divides by them does.
#
# Guarantees: the code is only read: the methods of the model's own classes, and the functions
# that they name or close over. What another library does, or a number that a script has kept, is
# not seen.

_ASKS = "num_replicas_in_sync"
_NOT_OWN = ("keras", "tensorflow", "tfopt", "builtins", "abc")


def asks_for_replicas(model: Any) -> bool:
    """Whether it does in any of its methods, also those that were set on the model itself."""
    kinds = type(model).__mro__
    own = [each for each in kinds if each.__module__.partition(".")[0] not in _NOT_OWN]
    left = [_function(value) for each in (*own, model) for value in vars(each).values()]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        names = _names_in(each.__code__)
        if _ASKS in names:
            return True
        if each.__module__ is None or each.__module__.partition(".")[0] in _NOT_OWN:
            continue
        left += [_function(each.__globals__.get(name)) for name in names]
        left += [_function(_held(cell)) for cell in each.__closure__ or ()]
    return False


def _function(value: Any) -> FunctionType | None:
    if isinstance(value, property):
        value = value.fget
    value = getattr(value, "__func__", value)  # a static or class method
    value = getattr(value, "__wrapped__", value)  # as behind a decorator
    return value if isinstance(value, FunctionType) else None


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _names_in(code: CodeType) -> set[str]:
    inside = [each for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*map(_names_in, inside))


_of_this_thread = threading.local()


class Step:
    """One replica's part of one step of Keras's."""

    def __init__(self, model: Any, data: Any) -> None:
        self.model, self._data, self.graph = model, data, current_graph()
        self._share: Any = None
        self._shares: dict[str, Any] = {}
        self.counted_eagerly = False
        self.wholes: dict[str, Any] = {}
        """The whole batch's, of losses and counts of this replica by their names, or None."""
        self.taken_inside = False
        """Whether a gradient was taken where replicas cannot exchange: it is a replica's part."""
        self.taken_forward = False
        """The same, under an accumulator of derivatives, which does not follow an exchange."""

    @property
    def is_own(self) -> bool:
        """Whether it is a train_step of the user's own."""
        return has_own(self.model, "train_step")

    @cached_property
    def own_parts(self) -> list[Any]:
        """Of the model and its layers, those of classes of the user's own."""
        parts = self.model._flatten_layers()
        return [each for each in parts if not type(each).__module__.startswith("keras.")]

    @property
    def shows_gradients(self) -> bool:
        """Whether code of the user's own has the gradients before Keras's ``apply`` sums them."""
        kind = type(getattr(self.model, "optimizer", None))
        homes = (
            next((base for base in kind.__mro__ if name in vars(base)), object)
            for name in ("apply", "apply_gradients")
        )
        # A class without such a method is no optimizer of Keras's.
        own = (home is not object and not home.__module__.startswith("keras.") for home in homes)
        return self.is_own or any(own)

    @property
    def examples(self) -> Any:
        """What tells how many there are."""
        import keras

        return next(leaf for leaf in keras.tree.flatten(self._data) if leaf is not None)

    def begin(self) -> None:
        """Lets what is inside of this step, where replicas cannot exchange, know the share."""
        import keras
        import tensorflow as tf

        if not self.is_own or self.graph == "eager":
            return
        for each in keras.tree.flatten(self._data):
            if isinstance(each, tf.RaggedTensor):
                note_of_parts(each.flat_values)
        known = [leaf for leaf in keras.tree.flatten(self._data) if leaf is not None][:1]
        if any(isinstance(each, tf.Tensor) and each.shape.rank for each in known):
            self.share()

    def share(self) -> Any:
        """Of the batch's examples, this replica's."""
        import tensorflow as tf

        if self._share is None:
            self._share = _share_in_all(tf.shape(self.examples)[0])
        return self._share

    def share_of(self, mean: Weighed) -> Any:
        """Of all that replicas take this mean over, this replica's."""
        if mean.term.name not in self._shares:
            self._shares[mean.term.name] = _share_in_all(mean.measure())
        return self._shares[mean.term.name]


def _share_in_all(number: Any) -> Any:
    import tensorflow as tf

    own = tf.cast(tf.stop_gradient(number), tf.float32)
    replica = tf.distribute.get_replica_context()
    whole = replica.all_reduce(tf.distribute.ReduceOp.SUM, own)
    return tf.math.divide_no_nan(own, whole)


@contextmanager
def inside(step: Step) -> Iterator[None]:
    """For a time this thread computes, or traces, this step."""
    before = getattr(_of_this_thread, "step", None)
    _of_this_thread.step = step
    try:
        yield
    finally:
        _of_this_thread.step = before


def step_here() -> Step | None:
    """The step of Keras's that this thread computes, or traces, a replica's part of."""
    return getattr(_of_this_thread, "step", None)


def own_step_here() -> Step | None:
    """The same, where the user's own code has its gradients, and its replicas can exchange."""
    step = step_here()
    if step is None or not step.shows_gradients or step.graph == "eager":
        return None
    return step if current_graph() is step.graph else None


def terms_in(
    loss: Any, step: Step, replicas: int | None = None, *, only_trained: bool = True
) -> Terms:
    """What a loss of this step is made of."""
    import tensorflow as tf

    if replicas is None:
        replicas = tf.distribute.get_strategy().num_replicas_in_sync
    values = [weight.value for weight in step.model.trainable_variables]
    here = [value._get() if hasattr(value, "_get") else value for value in values]
    # A function inside the step has other names for them.
    handles = {id(each.handle) for each in here} if loss.graph is step.graph else None
    examples = step.examples.shape[0]
    return terms_of(loss, examples, replicas, handles, only_trained=only_trained)


def part_of(loss: Any, terms: Terms, step: Step) -> Any:
    """This replica's part of the whole batch's loss."""
    import tensorflow as tf

    if not (terms.means or terms.alike):
        return loss
    part = tf.zeros_like(loss)
    for term, slope, there in _counted(loss, terms, step):
        part += tf.reduce_sum(tf.stop_gradient(slope) * _or_nothing(term, there))
    return part


def counted_targets(loss: Any, terms: Terms, step: Step) -> tuple[list[Any], list[Any]]:
    """What to take the gradient of, and how each part counts."""
    import tensorflow as tf

    if not terms.means:
        return [loss], [tf.ones_like(loss)]
    found = [
        each
        for term, slope, there in _counted(loss, terms, step)
        for each in _by_factors(term, slope, there)
    ]
    return [target for target, _ in found], [count for _, count in found]


def _counted(loss: Any, terms: Terms, step: Step) -> list[tuple[Any, Any, Any]]:
    """Its terms, how the whole goes with each, and whether there is anything that it is of."""
    import tensorflow as tf

    share = step.share()
    counts = {term.name: None for term in terms.adding_up}
    counts |= {term.name: share for term in terms.alike}
    counts |= {each.term.name: step.share_of(each) for each in terms.weighed}
    found = []
    all_terms = [*terms.adding_up, *terms.alike, *(each.term for each in terms.weighed)]
    for term, slope in slopes(loss, all_terms):
        count = counts[term.name]
        weight = slope if count is None else slope * tf.cast(count, slope.dtype)
        found.append((term, weight, None if count is None else count > 0))
    return found


def _or_nothing(term: Any, there: Any) -> Any:
    """The term; where it is of nothing it is no number, and neither are its factors' gradients."""
    import tensorflow as tf

    if there is None:
        return term
    pair = _factors(term)
    if pair is None:
        return tf.where(there, term, tf.zeros_like(term))
    first, second = pair
    given = tf.where(there, first, tf.zeros_like(first))
    if term.op.type == "Mul":
        return given * tf.where(there, second, tf.zeros_like(second))
    return given / tf.where(there, second, tf.ones_like(second))


def _by_factors(term: Any, count: Any, there: Any) -> list[tuple[Any, Any]]:
    """The same for what a tape has seen already: the gradients of a product, written out."""
    import tensorflow as tf

    pair = None if there is None else _factors(term)
    if pair is None:
        return [(term, count)]
    first, second = pair
    value = tf.where(there, first, tf.zeros_like(first))
    if term.op.type == "Mul":
        other = tf.where(there, second, tf.zeros_like(second))
        return [(first, count * other), (second, count * value)]
    other = tf.where(there, second, tf.ones_like(second))
    return [(first, count / other), (second, -count * value / other**2)]


def _factors(term: Any) -> tuple[Any, Any] | None:
    if term.op.type not in ("Mul", "RealDiv") or any(each.shape.rank for each in term.op.inputs):
        return None
    first, second = term.op.inputs
    return first, second


def slopes(loss: Any, terms: list[Any]) -> list[tuple[Any, Any]]:
    """How the loss goes with each of its terms, each of them once."""
    import tensorflow as tf

    # Not tf.gradients, which is of the whole batch here.
    from tensorflow.python.ops.gradients_impl import gradients_v2

    there = list({term.name: term for term in terms}.values())
    if not there:
        return []
    found = gradients_v2(
        loss,
        there,
        stop_gradients=there,
        unconnected_gradients=tf.UnconnectedGradients.ZERO,
    )
    return list(zip(there, found, strict=True))


def whole_of(loss: Any) -> Any:
    """The whole batch's, of a number of which this replica has its part; None if it is not that."""
    import tensorflow as tf

    step = step_here()
    if step is None or loss.graph is not step.graph:
        return None
    while loss.op.type in ("StopGradient", "Identity"):
        loss = loss.op.inputs[0]
    terms = terms_in(loss, step)
    if not (terms.unknown or terms.adding_up or terms.of_data):
        # Of the data alone, such as a share of the labels: no loss, but shown as one.
        terms = terms_in(loss, step, only_trained=False)
        if terms.compared or (terms.means and terms.adding_up):
            return None
    if any(each.op.type == "StopGradient" and is_own_part(each) for each in terms.alike):
        return None
    # What replicas have exchanged is the whole's already, and has the parts of all of them in it.
    own = all(is_of_this_replica(term) for term in terms.adding_up if is_counted(term))
    if terms.unknown or not own or not (terms.adding_up or terms.of_data):
        return None
    part = tf.stop_gradient(part_of(loss, terms, step))
    return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, part)


def is_own_part(value: Any) -> bool:
    """Whether a number of this step is another one on each replica."""
    step = step_here()
    if step is None or value.graph is not step.graph:
        return False
    return is_of_a_replica(value, step.examples.shape[0])


# What is made of a replica's losses and counts, computed once more from the whole batch's.
#
# Guarantees: the whole batch's stands in for losses and numbers of examples alone, and only where
# ``replica_parts`` knows it; what has a state of its own, such as chance or an assignment, is
# never computed twice. All replicas exchange the same things, in the same order.

_CALLS = {
    *("PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase"),
    *("While", "StatelessWhile"),
}


def values_of(grad: Any) -> Any:
    """The numbers of a gradient, whichever rows they are of."""
    return grad.values if hasattr(grad, "indices") else grad


class Made:
    """What a value, or a gradient, was made of, behind what all replicas have of it."""

    def __init__(self, grad: Any) -> None:
        self.value = values_of(grad)
        whole = whole_in(self.value.graph)
        self.ops = list(behind([self.value], whole))
        names = {each.name for op in self.ops for each in op.inputs} | {self.value.name}
        self.of_sums = not names.isdisjoint(summed_in(self.value.graph))
        self.of_function = any(op.type in _CALLS for op in self.ops)
        self.chance = [op for op in self.ops if is_drawn(op)]
        self.data = [op for op in self.ops if is_of_data(op) and not is_drawn(op)]
        if self.of_sums:
            self.data += [op for op in self.ops if _counts_of(op, whole)]

    @property
    def differs(self) -> bool:
        """Whether it may be another one on each replica."""
        return bool(self.chance or self.data)


def _counts_of(op: Any, whole: set[str]) -> bool:
    """Whether it takes how many a replica's examples are, which only their shape knows."""
    return any(
        each.op.type == "Shape"
        and not each.op.inputs[0].shape.is_fully_defined()
        and any(is_of_data(before) for before in behind([each.op.inputs[0]], whole))
        for each in op.inputs
    )


def from_wholes(made: Made, step: Step) -> Any:
    """The same, computed from the whole batch's losses and counts; itself where that fails."""
    graph = made.value.graph
    whole, sums = whole_in(graph), summed_in(graph)
    instead: dict[str, Any] = {}
    # From the gradient on back: what is nearest to it is told first.
    left, seen = [made.value], set()
    while left:
        each = left.pop()
        if each.name in seen or each.name in whole or each.op.type == "Shape":
            continue
        seen.add(each.name)
        if each.name not in step.wholes:
            step.wholes[each.name] = _told(each, whole, sums)
        told = step.wholes[each.name]
        if told is None:
            left += each.op.inputs
        else:
            instead[each.name] = told
    return _again(made, instead) if instead else made.value


def _told(value: Any, whole: set[str], sums: set[str]) -> Any:
    """The whole batch's, of a loss or a count of examples; None of anything else."""
    import tensorflow as tf

    if value.shape.rank != 0:
        return None
    if value.op.type == "StridedSlice" and _counts_of(value.op, whole):
        begin = tf.get_static_value(value.op.inputs[1])
        if begin is None or begin.tolist() != [0]:
            return None
        replica = tf.distribute.get_replica_context()
        total = replica.all_reduce(tf.distribute.ReduceOp.SUM, tf.cast(value, tf.float32))
        return tf.cast(total, value.dtype)
    if not value.dtype.is_floating:
        return None
    names, of_data = {value.name}, False
    for op in behind([value], whole):
        names |= {each.name for each in op.inputs}
        of_data |= is_of_data(op)
    return whole_of(value) if of_data and names.isdisjoint(sums) else None


def _again(made: Made, instead: dict[str, Any]) -> Any:
    """What is computed from these values, computed once more from others in their place."""
    graph = made.value.graph
    if made.value.name in instead:
        return instead[made.value.name]
    order = {op.name: place for place, op in enumerate(graph.get_operations())}
    for op in sorted(made.ops, key=lambda each: order[each.name]):
        inputs = [instead.get(each.name, each) for each in op.inputs]
        if all(new is old for new, old in zip(inputs, op.inputs, strict=True)):
            continue
        if any(each.name in instead for each in op.outputs):
            continue
        # What has a state of its own, such as chance or an assignment, must not run twice.
        if op.op_def.is_stateful:
            return made.value
        again = graph.create_op(
            op.type,
            inputs,
            [each.dtype for each in op.outputs],
            attrs={name: value for name, value in op.node_def.attr.items() if name != "_class"},
            op_def=op.op_def,
            name=op.type,
        )
        for new, old in zip(again.outputs, op.outputs, strict=True):
            new.set_shape(old.shape)
            instead[old.name] = new
    return instead.get(made.value.name, made.value)
