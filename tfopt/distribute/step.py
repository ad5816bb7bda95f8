"""Train and evaluate on several replicas with the numbers of one device.

A replica runs the model's own ``train_step`` on its examples. What Keras computes of them inside
is the whole batch's: the loss by sums over the replicas where it is one of Keras's, by the rows of
all where it is not; metrics by what each replica counts, or by those rows; gradients by their sum,
which comes before clipping, finite checks, accumulation and the update. What the user's own code
computes is declared a mean or a sum over examples. All this hangs on the model's own objects while
a step is traced, and nowhere afterwards.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import keras
import tensorflow as tf
from keras import ops, tree

from tfopt import keras_internals as internals
from tfopt.distribute.losses import LossesOfReplica, WholeLoss, undeclared
from tfopt.distribute.whole_batch import (
    Shard,
    all_reduce_sum,
    divide_gradient,
    drop_padding,
    exchange_counts,
    gather_rows,
    padded,
    replica_step,
    replicas_of,
    shard_here,
)
from tfopt.errors import UserError
from tfopt.hooks import putting
from tfopt.resume.untracked import kept_by

_NONE, _FIRST = tf.VariableAggregation.NONE, tf.VariableAggregation.ONLY_FIRST_REPLICA


class Step:
    """The training and test step of one model under its strategy."""

    def __init__(self, model: Any, own_losses: str | None = None, exchange: Any = None) -> None:
        self.model = model
        self.own_losses = own_losses
        self.exchange = exchange
        """What the workers of a cluster tell each other; None where one process trains."""
        self._kind_of_activity = "mean" if internals.activity_losses_are_means() else "sum"

    @property
    def strategy(self) -> Any:
        """Return the strategy under which the model was made."""
        return self.model.distribute_strategy

    def function(self, name: str) -> Callable[[Any], Any]:
        """Return what ``fit`` or ``evaluate`` calls: ``steps_per_execution`` steps of an iterator.

        Keras on TensorFlow has one that exchanges the logs of workers wrongly, hands XLA the
        exchanges between devices, and fails for several steps a call (keras#19246). Here several
        steps are several calls, and nobody waits for the numbers of those before the last.
        """
        model = self.model

        def on_batch(data: Any, is_even: bool = True) -> Any:
            data = tree.map_structure(
                lambda v: None if isinstance(v, tf.experimental.Optional) else v, data
            )
            return self.run(name, data, is_even)

        def on_iterator(iterator: Any) -> Any:
            return on_batch(iterator.get_next())

        of_batch, of_iterator = on_batch, on_iterator
        if not model.run_eagerly:
            of_batch, of_iterator = (
                tf.function(each, reduce_retracing=True, autograph=False)
                for each in (on_batch, on_iterator)
            )

        def function(iterator: Any) -> Any:
            if isinstance(iterator, tf.data.Iterator | tf.distribute.DistributedIterator):
                logs = of_iterator(iterator)
                for _ in range(model.steps_per_execution - 1):
                    try:
                        logs = of_iterator(iterator)
                    except tf.errors.OutOfRangeError:
                        break
                return logs
            logs = None
            for _, batch in zip(range(model.steps_per_execution), iterator, strict=False):
                logs = of_batch(*split(self.strategy, batch))
            return logs

        return self.limited(function)

    def limited(self, steps: Callable[..., Any]) -> Callable[..., Any]:
        """Return what takes steps; among workers each lasts no longer than a step may."""
        model, exchange = self.model, self.exchange
        if exchange is None:
            return steps

        def take(*given: Any) -> Any:
            with exchange.limit.step(model.steps_per_execution if model.compiled else 1):
                return steps(*given)

        return functools.wraps(steps)(take)

    def run(self, name: str, data: Any, is_even: bool = True) -> Any:
        """Run ``train_step`` or ``test_step`` on all replicas; return the whole batch's logs.

        ``is_even``: where sizes are known, they are the same on every replica.
        """
        strategy = self.strategy
        of_metrics: set[str] = set()

        def on_each(data: Any) -> Any:
            if self.model.jit_compile and not tf.executing_eagerly():
                _compile_between_exchanges()
            # A step that finds no more data counts nowhere, in the optimizer's iterations neither.
            tensors = [v for v in tf.nest.flatten(data, True) if isinstance(v, tf.Tensor)]
            with tf.control_dependencies(tensors):
                shard, data = self._shard(data, is_even)
                return self._on_replica(name, shard, data, of_metrics)

        with self._in_force():
            logs = strategy.run(on_each, (data,))
        logs = tree.map_structure(lambda v: strategy.experimental_local_results(v)[0], logs)
        return self._with_results(logs, of_metrics)

    def _with_results(self, logs: Any, of_metrics: set[str]) -> Any:
        """Return logs in which metrics show what all replicas have counted."""
        if not of_metrics:
            return logs
        results = self.model.get_metrics_result()

        def with_result(name: str, value: Any) -> Any:
            if isinstance(value, dict):
                return {inner: with_result(inner, each) for inner, each in value.items()}
            return results[name] if name in of_metrics else value

        return {name: with_result(name, value) for name, value in logs.items()}

    def _on_replica(self, name: str, shard: Shard, data: Any, of_metrics: set[str]) -> Any:
        with replica_step(shard):
            logs = getattr(self.model, name)(data)
            if name == "train_step" and self.model.trainable_weights and not shard.is_applied:
                raise _applied_elsewhere(self.model)
            if isinstance(logs, dict):
                logs = self._reduce_logs(logs, shard, name, of_metrics)
            if name == "train_step":
                self._average_statistics(shard)
        return logs

    def _shard(self, data: Any, is_even: bool) -> tuple[Shard, Any]:
        """Return this replica's part of the batch, and the data to run on."""
        context = tf.distribute.get_replica_context()
        leaf = _first_leaf(data)
        known, replicas = leaf.shape[0], replicas_of(context.strategy)
        if known and is_even and not tf.executing_eagerly():
            share = tf.constant(1 / replicas)
            return Shard(tf.constant(known), share, self.own_losses), data
        examples = leaf.nrows(tf.int32) if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf)[0]
        examples = tf.cast(examples, tf.int32)
        total, row = exchange_counts(examples, data)
        share = tf.math.divide_no_nan(tf.cast(examples, tf.float64), total)
        shard = Shard(examples, tf.cast(share, tf.float32), self.own_losses)
        return shard, padded(data, 1 - tf.cast(shard.has_examples, tf.int32), row)

    def _reduce_logs(self, logs: Any, shard: Shard, name: str, of_metrics: set[str]) -> Any:
        """Return logs with the user's own numbers added up over the replicas.

        Those that are results of metrics, under their own names, are noted.
        """
        shown = {id(value) for each in shard.results for value in tree.flatten(each)}
        results = self.model.get_metrics_result()

        def reduced(key: str, value: Any) -> Any:
            if isinstance(value, dict):
                return {inner: reduced(inner, each) for inner, each in value.items()}
            if id(value) in shown:
                of_metrics.update({key} & results.keys())
                return value
            kind = self._declared(f"The {name} of {type(self.model).__name__} returns {key!r}")
            return all_reduce_sum(shard.weigh(value, kind))

        return {key: reduced(key, value) for key, value in logs.items()}

    def _declared(self, who: str) -> str:
        if self.own_losses is None:
            raise undeclared(who)
        return self.own_losses

    @contextmanager
    def _in_force(self) -> Iterator[None]:
        """Replace the model's losses, metrics and optimizers while a step is traced."""
        model = self.model
        with putting() as put, ExitStack() as undo:
            put(model, internals.COMPUTE_LOSS, self._compute_loss)
            put(model, internals.LOSSES_OVERRIDE, LossesOfReplica())
            internals.replace_losses(put, model, WholeLoss)
            for layer in internals.layers_of(model):
                self._put_on_layer(put, layer)
            for metric in metrics_of(model):
                self._put_on_metric(put, metric)
            for optimizer in optimizers_of(model).values():
                self._put_on_optimizer(put, undo, optimizer)
            yield

    # Losses

    def _compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Return the whole batch's loss, with an N-th of its gradient; Keras's own step asks."""
        model, shard = self.model, shard_here()
        assert shard is not None
        # In front of the exchanges, in which the next replica's call clears them.
        added = self._added(shard)
        own = has_own(model, "compute_loss")
        if own:
            x, y, y_pred, sample_weight = gather_rows(drop_padding((x, y, y_pred, sample_weight)))
        shard.is_global_loss, shard.rows_are_whole = True, own
        override = getattr(model, internals.LOSSES_OVERRIDE)
        override.extend(added)
        try:
            plain = getattr(type(model), internals.COMPUTE_LOSS)
            loss = plain(model, x, y, y_pred, sample_weight, training)
        finally:
            override.clear()
            shard.rows_are_whole = False
        return divide_gradient(loss)

    def _added(self, shard: Shard) -> list[Any]:
        """Return what regularizers and ``add_loss`` have added, of the whole batch."""
        parts = []
        for layer in internals.layers_of(self.model):
            for loss in getattr(layer, internals.LOSSES):
                if _adds_activity_alone(layer):
                    kind = self._kind_of_activity
                else:
                    kind = self._declared(f"{layer.name!r} adds a loss")
                total = ops.sum(ops.cast(loss, keras.config.floatx()))
                parts.append(shard.weigh(total, kind))
        whole = tf.unstack(all_reduce_sum(tf.stack(parts))) if parts else []
        trained = self.model.trainable_weights
        return whole + [v.regularizer(v) for v in trained if v.regularizer is not None]

    # What hangs on layers, metrics and optimizers

    def _put_on_layer(self, put: internals.Put, layer: Any) -> None:
        put(layer, internals.LOSSES, LossesOfReplica())
        if getattr(layer, "synchronized", False) and hasattr(layer, internals.MOMENTS):
            plain = getattr(layer, internals.MOMENTS)

            def moments(inputs: Any, mask: Any) -> Any:
                return plain(*drop_padding((inputs, mask)))

            put(layer, internals.MOMENTS, moments)

    def _put_on_metric(self, put: internals.Put, metric: Any) -> None:
        plain, result = metric.update_state, metric.result

        def of_rows(*args: Any, **kwargs: Any) -> Any:
            return plain(*drop_padding(args), **drop_padding(kwargs))

        def of_all_rows(*args: Any, **kwargs: Any) -> Any:
            return plain(*gather_rows(drop_padding(args)), **gather_rows(drop_padding(kwargs)))

        def of_mean(values: Any, sample_weight: Any = None) -> Any:
            return plain(*self._values_of_mean(tf.convert_to_tensor(values), sample_weight))

        def of_sum(values: Any, sample_weight: Any = None) -> Any:
            return plain(self._values_of_sum(tf.convert_to_tensor(values)), sample_weight)

        def noted_result() -> Any:
            found, shard = result(), shard_here()
            if shard is not None:
                shard.results.append(found)
            return found

        put(metric, "result", noted_result)
        takes = type(metric).update_state
        if takes is keras.metrics.Mean.update_state:
            put(metric, "update_state", of_mean)
        elif takes is keras.metrics.Sum.update_state:
            put(metric, "update_state", of_sum)
        elif counts_by_example(metric):
            put(metric, "update_state", of_rows)
        else:
            put(metric, "update_state", of_all_rows)
            for variable in metric.variables:  # for good: it is read between steps, too
                variable.value._aggregation = _FIRST

    def _values_of_mean(self, values: Any, sample_weight: Any) -> tuple[Any, Any]:
        """Return values and weights with which the mean over all replicas is the whole batch's."""
        shard = shard_here()
        if shard is None:
            return values, sample_weight
        if values.shape.rank != 0:
            # A replica without examples has a row that stands for none.
            there = tf.cast(shard.has_examples, values.dtype)
            rows = tf.ones(tf.shape(values)[:1], values.dtype)
            return values, there * tf.cast(
                rows if sample_weight is None else sample_weight, there.dtype
            )
        if shard.is_global_loss:  # each replica counts its own examples, or all of them one batch
            return values, None if sample_weight is None else shard.examples
        if sample_weight is not None:
            return shard.weigh(values, "sum"), shard.weigh(sample_weight, "sum")
        return all_reduce_sum(shard.weigh(values, self.own_losses or "mean")), None

    def _values_of_sum(self, values: Any) -> Any:
        """Return values whose sum over all replicas is the whole batch's."""
        shard = shard_here()
        if shard is None:
            return values
        if values.shape.rank != 0:
            return drop_padding(values)
        if shard.is_global_loss:  # all replicas have the same
            return values / replicas_of(self.model.distribute_strategy)
        return shard.weigh(values, self.own_losses or "mean")

    def _put_on_optimizer(self, put: internals.Put, undo: ExitStack, optimizer: Any) -> None:
        """Sum the gradients first; each replica then updates its own copies as one device would."""
        internals.update_each_copy(put, undo, optimizer)
        apply = optimizer.apply

        def apply_to_whole(grads: Any, trainable_variables: Any = None) -> Any:
            shard = shard_here()
            if shard is not None:
                shard.is_applied = True
            if not optimizer.built:
                _build_where_replicas_meet(optimizer, trainable_variables)
            for variable in variables_of(optimizer):
                self._update_on_each(put, variable)
            return apply(self._sum_of(list(grads)), trainable_variables)

        put(optimizer, "apply", apply_to_whole)

    def _update_on_each(self, put: internals.Put, variable: Any) -> None:
        value = getattr(variable, "value", variable)
        if getattr(value, "_aggregation", _NONE) != _NONE:
            put(value, "_aggregation", _NONE)

    def _sum_of(self, grads: list[Any]) -> list[Any]:
        """Return the gradients of the whole batch's loss."""
        shard = shard_here()
        if shard is None:  # a loop of the user's own, traced in a step
            return grads
        if not shard.is_global_loss:
            kind = self._declared(f"The train_step of {type(self.model).__name__} is its own")
            grads = [None if grad is None else shard.weigh(grad, kind) for grad in grads]
        shard.is_global_loss = False
        # Of rows that are the same on every replica, the sum is one device's.
        grads = [tf.convert_to_tensor(grad) if _has_fixed_rows(grad) else grad for grad in grads]
        places = [place for place, grad in enumerate(grads) if grad is not None]
        context = tf.distribute.get_replica_context()
        sums = context.all_reduce("sum", [grads[place] for place in places]) if places else []
        for place, total in zip(places, sums, strict=True):
            grads[place] = total
        return grads

    def _average_statistics(self, shard: Shard) -> None:
        """Let every replica have the mean of all replicas' moving statistics, by their examples."""
        found = [v for layer in unsynchronized(self.model) for v in layer.non_trainable_variables]
        variables = [each for each in found if keras.backend.is_float_dtype(each.dtype)]
        if not variables:
            return
        flat = [
            shard.weigh(tf.cast(tf.reshape(v.value, [-1]), tf.float32), "mean") for v in variables
        ]
        means = tf.split(all_reduce_sum(tf.concat(flat, axis=0)), [f.shape[0] for f in flat])
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(tf.cast(tf.reshape(mean, variable.shape), variable.dtype))


def split(strategy: Any, batch: Any) -> tuple[Any, bool]:
    """Return a batch shared out over the replicas, and whether each has as many examples."""
    replicas, local = replicas_of(strategy), len(strategy.extended.worker_devices)
    batch = tree.map_structure(lambda v: None if v is None else tf.convert_to_tensor(v), batch)
    sizes = {v.shape[0] for v in tree.flatten(batch) if v is not None}

    def part(context: Any) -> Any:
        # The parts of a batch go round the workers, as those of a dataset do.
        worker, own = divmod(context.replica_id_in_sync_group, local)
        place = own * (replicas // local) + worker

        def rows(value: Any) -> Any:
            if value is None:
                return None
            size = -(-value.shape[0] // replicas)
            return value[place * size : (place + 1) * size]

        return tree.map_structure(rows, batch)

    values = strategy.experimental_distribute_values_from_function(part)
    return values, all(size % replicas == 0 for size in sizes)


def _applied_elsewhere(model: Any) -> UserError:
    return UserError(
        f"The train_step of {type(model).__name__} gives its gradients to no optimizer of the "
        "model's, so that the replicas cannot add them up.",
        expected="self.optimizer.apply(...), or one that the model or a part of it has as an "
        "attribute",
        received="an optimizer from elsewhere, or weights that are assigned",
        fix="keep the optimizer on the model: self.other = optimizer",
    )


def unsynchronized(model: Any) -> list[Any]:
    """Return the layers that normalize each replica's examples by themselves."""
    return [
        layer
        for layer in internals.layers_of(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and not layer.synchronized
    ]


def _adds_activity_alone(layer: Any) -> bool:
    """Return whether a layer adds no loss but that of its activity regularizer."""
    is_of_keras = type(layer).call.__module__.startswith("keras.src.")
    return is_of_keras and layer.activity_regularizer is not None


def require_built_parts(model: Any, where: str) -> None:
    """Refuse a model that makes weights in its first step; ``where`` its parts can be built."""
    unbuilt = unbuilt_parts(model)
    if unbuilt:
        raise UserError(
            f"{type(model).__name__} makes weights in its first step.",
            expected="parts that are built before",
            received=f"not built: {', '.join(unbuilt[:10])}",
            fix="begin these parts with keras.Input(shape), or call them once on a batch "
            f"{where}, or give the model a call()",
        )


def unbuilt_parts(model: Any) -> list[str]:
    """Return the parts that have yet to make their weights."""
    plain = (keras.layers.Layer.build, keras.Model.build, keras.Sequential.build)
    return [
        f"{layer.name} ({type(layer).__name__})"
        for layer in internals.layers_inside(model)
        if not layer.built and type(layer).build not in plain
    ]


def has_own(model: Any, method: str) -> bool:
    """Return whether a model, or its class, has another method than Keras's."""
    if method == "compute_loss" and method in vars(model):
        return True
    return getattr(type(model), method) is not getattr(keras.Model, method)


def optimizers_of(model: Any) -> dict[str, Any]:
    """Return the optimizers that a model and its parts hold, by their place: those of a GAN."""
    found: dict[str, Any] = {}
    for layer, where, thing in kept_by(model):
        if isinstance(thing, keras.optimizers.Optimizer):
            place = where if layer is model else f"{layer.name}/{where}"
            # Layers of two parts may have one name.
            found[f"{place} {len(found)}" if place in found else place] = thing
    inner = {id(getattr(each, "inner_optimizer", None)) for each in found.values()}
    return {where: each for where, each in found.items() if id(each) not in inner}


def metrics_of(model: Any) -> list[Any]:
    """Return all metrics of a model, those of its loss and of its layers too."""
    tracked = chain.from_iterable(map(internals.tracked_lists, internals.layers_of(model)))
    # Keras's own list too, where a class has another.
    parts = [*model.metrics, *keras.Model.metrics.fget(model), *chain.from_iterable(tracked)]
    found: dict[int, Any] = {}
    for part in parts:
        for metric in getattr(part, "metrics", None) or [part]:
            if isinstance(metric, keras.metrics.Metric):
                found[id(metric)] = metric
    return list(found.values())


def variables_of(optimizer: Any) -> list[Any]:
    """Return the variables of an optimizer and of the one inside a LossScaleOptimizer."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [*optimizer.variables, *(inner.variables if inner is not None else [])]


def counts_by_example(metric: Any) -> bool:
    """Return whether a metric is one of Keras's, whose state adds up over the examples."""
    own = internals.function_of(metric)
    parts = [type(metric), *([own] if own is not None else [])]
    return all(each.__module__.startswith("keras.src.") for each in parts)


def _first_leaf(data: Any) -> Any:
    x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
    return next(leaf for leaf in tree.flatten(x) if leaf is not None)


def _has_fixed_rows(grad: Any) -> bool:
    """Return whether a table's gradient is of the same rows on every replica: of positions.

    Added up, they are the rows of one device; of others, such as tokens, each occurrence is one.
    """
    if not isinstance(grad, tf.IndexedSlices) or not hasattr(grad.indices, "op"):
        return False
    seen: set[str] = set()
    left = [grad.indices]
    while left:
        tensor = left.pop()
        if tensor.name in seen or tf.get_static_value(tensor) is not None:
            continue
        if not tensor.op.inputs:
            return False
        seen.add(tensor.name)
        left += tensor.op.inputs
    return True


def _build_where_replicas_meet(optimizer: Any, variables: Any) -> None:
    def build(strategy: Any) -> None:
        with tf.init_scope(), strategy.scope():
            optimizer.build(list(variables))

    tf.distribute.get_replica_context().merge_call(build)


def _compile_between_exchanges() -> None:
    """Let XLA compile what lies between exchanges: one program cannot hold several devices."""
    scope = tf.xla.experimental.jit_scope(
        lambda node: not node.op.startswith(("Collective", "Nccl"))
    )
    scope.__enter__()
    # Never left, since replicas take turns in building this graph; it lives as long as the graph.
    tf.compat.v1.get_default_graph().add_to_collection("tfopt_xla_scopes", scope)
