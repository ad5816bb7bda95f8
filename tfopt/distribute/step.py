"""Train and evaluate on several replicas with the numbers of one device.

A replica runs the model's ``train_step`` on its examples. Its loss, metrics and gradients are those
of the whole batch: Keras's losses are summed over the replicas, other losses are computed from the
rows of all replicas, metrics count on each replica or from these rows, and gradients are summed
before clipping, finite checks, accumulation and the update. Losses of a custom step are declared to
be a mean or a sum over examples. The model's objects are patched only while a step is traced.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf
from keras import ops, tree

from tfopt import keras_internals as internals
from tfopt.distribute.losses import LossesOfReplica, WholeLoss, undeclared
from tfopt.distribute.metrics import count_whole_batch
from tfopt.distribute.model_parts import (
    metrics_of,
    optimizer_variables,
    optimizers_of,
    overrides,
    unsynchronized,
)
from tfopt.distribute.whole_batch import (
    Shard,
    all_reduce_sum,
    current_shard,
    divide_gradient,
    drop_padding,
    exchange_counts,
    gather_rows,
    padded,
    replica_step,
    replicas_of,
)
from tfopt.errors import UserError
from tfopt.hooks import putting

_NONE = tf.VariableAggregation.NONE


class Step:
    """The training and test step of one model under its strategy."""

    def __init__(self, model: Any, own_losses: str | None = None, exchange: Any = None) -> None:
        self.model = model
        self.own_losses = own_losses
        self.exchange = exchange
        """The messages among workers; None if one process trains."""
        self._kind_of_activity = "mean" if internals.activity_losses_are_means() else "sum"

    @property
    def strategy(self) -> Any:
        """Return the strategy under which the model was created."""
        return self.model.distribute_strategy

    def function(self, name: str) -> Callable[[Any], Any]:
        """Return the function for ``fit`` or ``evaluate``: ``steps_per_execution`` steps.

        That of Keras reduces the logs of workers wrongly, compiles collectives by XLA, and fails
        for several steps per execution (keras#19246). Here these are several calls, of which only
        the last one's logs are read.
        """
        model = self.model

        def on_batch(data: Any, is_even: bool = True) -> Any:
            data = tree.map_structure(
                lambda v: None if isinstance(v, tf.experimental.Optional) else v, data
            )
            return self.run(name, data, is_even)

        def on_iterator(iterator: Any) -> Any:
            return on_batch(iterator.get_next())

        compiled = functools.partial(tf.function, reduce_retracing=True, autograph=False)
        of_batch, of_iterator = on_batch, on_iterator
        if not model.run_eagerly:
            of_batch, of_iterator = compiled(on_batch), compiled(on_iterator)

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
        """Return ``steps`` with the time limit of steps, which applies among workers."""
        model, exchange = self.model, self.exchange
        if exchange is None:
            return steps

        def timed(*args: Any) -> Any:
            with exchange.limit.step(model.steps_per_execution if model.compiled else 1):
                return steps(*args)

        return functools.wraps(steps)(timed)

    def run(self, name: str, data: Any, is_even: bool = True) -> Any:
        """Run ``train_step`` or ``test_step`` on all replicas; return the whole batch's logs.

        ``is_even``: known sizes are the same on every replica.
        """
        strategy = self.strategy
        metric_names: set[str] = set()

        def on_replica(data: Any) -> Any:
            if self.model.jit_compile and not tf.executing_eagerly():
                _compile_between_exchanges()
            # A step at the end of the data must not count, also not in the optimizer's iterations.
            tensors = [v for v in tf.nest.flatten(data, True) if isinstance(v, tf.Tensor)]
            with tf.control_dependencies(tensors):
                shard, data = self._shard(data, is_even)
                return self._on_replica(name, shard, data, metric_names)

        with self._patched():
            logs = strategy.run(on_replica, (data,))
        logs = tree.map_structure(lambda v: strategy.experimental_local_results(v)[0], logs)
        return self._with_results(logs, metric_names)

    def _with_results(self, logs: Any, metric_names: set[str]) -> Any:
        """Return logs with the metrics' results over all replicas."""
        if not metric_names:
            return logs
        results = self.model.get_metrics_result()

        def with_result(name: str, value: Any) -> Any:
            if isinstance(value, dict):
                return {inner: with_result(inner, nested) for inner, nested in value.items()}
            return results[name] if name in metric_names else value

        return {name: with_result(name, value) for name, value in logs.items()}

    def _on_replica(self, name: str, shard: Shard, data: Any, metric_names: set[str]) -> Any:
        with replica_step(shard):
            logs = getattr(self.model, name)(data)
            if name == "train_step" and self.model.trainable_weights and not shard.is_applied:
                raise UserError(
                    f"The train_step of {type(self.model).__name__} applies no optimizer of the "
                    "model, so the replicas cannot sum its gradients.",
                    expected="self.optimizer.apply(...), or an optimizer that is an attribute of "
                    "the model or of a layer",
                    received="another optimizer, or assigned weights",
                    fix="make the optimizer an attribute of the model: self.other = optimizer",
                )
            if isinstance(logs, dict):
                logs = self._reduce_logs(logs, shard, name, metric_names)
            if name == "train_step":
                self._average_statistics(shard)
        return logs

    def _shard(self, data: Any, is_even: bool) -> tuple[Shard, Any]:
        """Return this replica's shard of the batch, and its data, padded if it is empty."""
        context = tf.distribute.get_replica_context()
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        leaf = next(leaf for leaf in tree.flatten(x) if leaf is not None)
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

    def _reduce_logs(self, logs: Any, shard: Shard, name: str, metric_names: set[str]) -> Any:
        """Return logs with numbers other than metrics summed over the replicas.

        ``metric_names`` collects the names of metrics among them.
        """
        shown = {id(value) for result in shard.results for value in tree.flatten(result)}
        results = self.model.get_metrics_result()

        def reduced(key: str, value: Any) -> Any:
            if isinstance(value, dict):
                return {inner: reduced(inner, nested) for inner, nested in value.items()}
            if id(value) in shown:
                metric_names.update({key} & results.keys())
                return value
            kind = self._declared(f"The {name} of {type(self.model).__name__} returns {key!r}")
            return all_reduce_sum(shard.weigh(value, kind))

        return {key: reduced(key, value) for key, value in logs.items()}

    def _declared(self, who: str) -> str:
        if self.own_losses is None:
            raise undeclared(who)
        return self.own_losses

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Replace the model's losses, metrics and optimizers while a step is traced."""
        model = self.model
        with putting() as put, ExitStack() as undo:
            put(model, internals.COMPUTE_LOSS, self._compute_loss)
            put(model, internals.LOSSES_OVERRIDE, LossesOfReplica())
            internals.replace_losses(put, model, WholeLoss)
            for layer in internals.layers_of(model):
                self._patch_layer(put, layer)
            for metric in metrics_of(model):
                count_whole_batch(put, metric, self.own_losses or "mean")
            for optimizer in optimizers_of(model).values():
                self._patch_optimizer(put, undo, optimizer)
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
        """Return the whole batch's loss, with an N-th of its gradient on each of N replicas."""
        model, shard = self.model, current_shard()
        assert shard is not None
        # Before the collectives, in which the next replica's call clears them.
        added = self._added_losses(shard)
        own = overrides(model, "compute_loss")
        if own:
            x, y, y_pred, sample_weight = gather_rows(drop_padding((x, y, y_pred, sample_weight)))
        shard.loss = "rows" if own else "sum"
        override = getattr(model, internals.LOSSES_OVERRIDE)
        override.extend(added)
        try:
            plain = getattr(type(model), internals.COMPUTE_LOSS)
            loss = plain(model, x, y, y_pred, sample_weight, training)
        finally:
            override.clear()
            shard.loss = "sum"
        return divide_gradient(loss)

    def _added_losses(self, shard: Shard) -> list[Any]:
        """Return the whole batch's losses of regularizers and ``add_loss``."""
        parts = []
        for layer in internals.layers_of(self.model):
            for loss in getattr(layer, internals.LOSSES):
                if _adds_only_activity_loss(layer):
                    kind = self._kind_of_activity
                else:
                    kind = self._declared(f"{layer.name!r} adds a loss")
                total = ops.sum(ops.cast(loss, keras.config.floatx()))
                parts.append(shard.weigh(total, kind))
        whole = tf.unstack(all_reduce_sum(tf.stack(parts))) if parts else []
        trained = self.model.trainable_weights
        return whole + [v.regularizer(v) for v in trained if v.regularizer is not None]

    # Patches of layers and optimizers

    def _patch_layer(self, put: internals.Put, layer: Any) -> None:
        put(layer, internals.LOSSES, LossesOfReplica())
        if getattr(layer, "synchronized", False) and hasattr(layer, internals.MOMENTS):
            plain = getattr(layer, internals.MOMENTS)

            def moments(inputs: Any, mask: Any) -> Any:
                return plain(*drop_padding((inputs, mask)))

            put(layer, internals.MOMENTS, moments)

    def _patch_optimizer(self, put: internals.Put, undo: ExitStack, optimizer: Any) -> None:
        """Sum the gradients before ``apply``, in which each replica updates its own copies."""
        internals.update_each_copy(put, undo, optimizer)
        apply = optimizer.apply

        def apply_to_whole(grads: Any, trainable_variables: Any = None) -> Any:
            shard = current_shard()
            if shard is not None:
                shard.is_applied = True
            if not optimizer.built:
                _build_in_merge_call(optimizer, trainable_variables)
            for variable in optimizer_variables(optimizer):
                value = getattr(variable, "value", variable)
                if getattr(value, "_aggregation", _NONE) != _NONE:
                    put(value, "_aggregation", _NONE)
            return apply(self._sum_of(list(grads)), trainable_variables)

        put(optimizer, "apply", apply_to_whole)

    def _sum_of(self, grads: list[Any]) -> list[Any]:
        """Return the gradients of the whole batch's loss."""
        shard = current_shard()
        if shard is None:  # a custom loop, traced in a step
            return grads
        if shard.loss == "own":
            kind = self._declared(f"The train_step of {type(self.model).__name__} is custom")
            grads = [None if grad is None else shard.weigh(grad, kind) for grad in grads]
        shard.loss = "own"
        # Equal rows on every replica are summed as a dense gradient.
        grads = [tf.convert_to_tensor(grad) if _has_fixed_rows(grad) else grad for grad in grads]
        places = [place for place, grad in enumerate(grads) if grad is not None]
        context = tf.distribute.get_replica_context()
        sums = context.all_reduce("sum", [grads[place] for place in places]) if places else []
        for place, total in zip(places, sums, strict=True):
            grads[place] = total
        return grads

    def _average_statistics(self, shard: Shard) -> None:
        """Assign the mean of all replicas' moving statistics, weighted by their examples."""
        layers = unsynchronized(self.model)
        statistics = [variable for layer in layers for variable in layer.non_trainable_variables]
        variables = [v for v in statistics if keras.backend.is_float_dtype(v.dtype)]
        if not variables:
            return
        flat = [
            shard.weigh(tf.cast(tf.reshape(v.value, [-1]), tf.float32), "mean") for v in variables
        ]
        means = tf.split(all_reduce_sum(tf.concat(flat, axis=0)), [f.shape[0] for f in flat])
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(tf.cast(tf.reshape(mean, variable.shape), variable.dtype))


def split(strategy: Any, batch: Any) -> tuple[Any, bool]:
    """Return a batch divided over the replicas, and whether all parts have one size."""
    replicas, local = replicas_of(strategy), len(strategy.extended.worker_devices)
    batch = tree.map_structure(lambda v: None if v is None else tf.convert_to_tensor(v), batch)
    sizes = {v.shape[0] for v in tree.flatten(batch) if v is not None}

    def part(context: Any) -> Any:
        # Parts alternate between the workers, as those of a dataset do.
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


def _adds_only_activity_loss(layer: Any) -> bool:
    is_of_keras = type(layer).call.__module__.startswith("keras.src.")
    return is_of_keras and layer.activity_regularizer is not None


def _has_fixed_rows(grad: Any) -> bool:
    """Return whether an embedding's gradient has constant rows, such as those of positions.

    They are the same on every replica, and summed; rows of tokens are concatenated.
    """
    if not isinstance(grad, tf.IndexedSlices) or not hasattr(grad.indices, "op"):
        return False
    seen: set[str] = set()
    pending = [grad.indices]
    while pending:
        tensor = pending.pop()
        if tensor.name in seen or tf.get_static_value(tensor) is not None:
            continue
        if not tensor.op.inputs:
            return False
        seen.add(tensor.name)
        pending += tensor.op.inputs
    return True


def _build_in_merge_call(optimizer: Any, variables: Any) -> None:
    def build(strategy: Any) -> None:
        with tf.init_scope(), strategy.scope():
            optimizer.build(list(variables))

    tf.distribute.get_replica_context().merge_call(build)


def _compile_between_exchanges() -> None:
    """Let XLA compile the operations between collectives, which it cannot compile itself."""
    scope = tf.xla.experimental.jit_scope(
        lambda node: not node.op.startswith(("Collective", "Nccl"))
    )
    scope.__enter__()
    # Never exited, since replicas build this graph in turn; it lives as long as the graph.
    tf.compat.v1.get_default_graph().add_to_collection("tfopt_xla_scopes", scope)
