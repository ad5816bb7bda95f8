"""What does not divide over the replicas is refused before anything is trained.

Guarantees: the same rules on one machine and on several workers. A global batch must divide: that
of ``batch_size``, and those that a dataset makes itself where tf.data shows them. A dataset must
have batches, and a layer must not keep a state for each example of a batch (``stateful=True``).
What Python code yields, the last batch of an epoch, and ``evaluate`` and ``predict`` are free:
uneven batches are right there, and only slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

from tfopt.errors import UserError

# What leaves the size of a dataset's elements as it is.
_AS_LARGE = frozenset(
    f"_{name}Dataset"
    for name in ("Map", "ParallelMap", "Prefetch", "Options", "Repeat", "Take", "Skip", "Shuffle")
) | {"_CacheDataset", "CacheDataset", "_ShardDataset", "_FilterDataset"}
_BATCHED = frozenset({"_BatchDataset", "_ParallelBatchDataset", "_PaddedBatchDataset"})
_strategies: list[Any] = []


def refuse_what_cannot_be_split(model: Any, arguments: Mapping[str, Any], replicas: int) -> None:
    """Looks at the model of a ``fit``, and at what it is given, by the names of its arguments."""
    _refuse_stateful(model)
    for name in ("x", "validation_data"):
        _refuse_unbatched(name, arguments.get(name))
    _refuse_uneven(arguments, replicas)


def _refuse_stateful(model: Any) -> None:
    import keras

    layers = [each for each in model._flatten_layers() if isinstance(each, keras.layers.RNN)]
    kept = [f"{each.name} ({type(each).__name__})" for each in layers if each.stateful]
    if kept:
        raise UserError(
            f"{model.name!r} keeps a state for each place of the global batch, which replicas "
            "take parts of.",
            expected="recurrent layers without stateful=True",
            received=", ".join(kept),
            fix="train with stateful=False, on longer sequences where the state mattered, and give "
            "the weights to a stateful model for inference; or train on one device",
        )


def _refuse_unbatched(name: str, data: Any) -> None:
    import tensorflow as tf

    if not isinstance(data, tf.data.Dataset):
        return
    specs = tf.nest.flatten(data.element_spec)
    if any(isinstance(each, tf.TensorSpec) and each.shape.rank == 0 for each in specs):
        raise UserError(
            f"{name} is a dataset of single examples, or has a part that is one number.",
            expected="batches, whose parts all begin with the axis of the examples",
            received=str(data.element_spec)[:300],
            fix="dataset.batch(global_batch)",
        )


def _refuse_uneven(arguments: Mapping[str, Any], replicas: int) -> None:
    batch = _batch(arguments)
    if batch is not None and batch % replicas:
        lower = batch - batch % replicas
        raise UserError(
            f"The global batch of {batch} does not divide over {replicas} replicas.",
            expected=f"a multiple of {replicas}",
            received=str(batch),
            fix=f"use {lower or replicas} or {lower + replicas}",
        )


def look_at_batches(strategy: Any) -> None:
    """Looks at each ``fit`` under this strategy of one process from now on."""
    first = not _strategies
    _strategies.append(strategy)
    if first:
        _put_on()


def _put_on() -> None:
    import inspect

    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    plain = TensorFlowTrainer.fit
    signature = inspect.signature(plain)

    @wraps(plain)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        strategy = self._distribute_strategy
        if any(strategy is each for each in _strategies):
            arguments = signature.bind(self, *args, **kwargs).arguments
            refuse_what_cannot_be_split(self, arguments, strategy.num_replicas_in_sync)
        return plain(self, *args, **kwargs)

    TensorFlowTrainer.fit = fit


def _batch(arguments: Mapping[str, Any]) -> int | None:
    """The global batch, where it is known by now; Keras makes batches of 32 of arrays."""
    import tensorflow as tf

    data = arguments.get("x")
    if isinstance(data, tf.data.Dataset):
        first = tf.nest.flatten(data.element_spec)[0]
        there = isinstance(first, tf.TensorSpec) and first.shape.rank
        return (first.shape[0] if there else None) or _of_dataset(data)
    if hasattr(data, "shape") and not arguments.get("steps_per_epoch"):
        return arguments.get("batch_size") or 32
    return arguments.get("batch_size")


def _of_dataset(dataset: Any) -> int | None:
    """The size of the batches that it makes; None where that cannot be seen."""
    while type(dataset).__name__ in _AS_LARGE:
        (dataset,) = dataset._inputs()
    if type(dataset).__name__ not in _BATCHED or not hasattr(dataset._batch_size, "numpy"):
        return None
    return int(dataset._batch_size.numpy())
