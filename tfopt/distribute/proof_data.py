"""Read the few batches that a proof takes its steps on, without taking them from ``fit``.

Importing this module imports TensorFlow and Keras.
"""

from __future__ import annotations

import itertools
import pickle
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree
from tensorflow.core.framework import graph_pb2

from tfopt.distribute.shards import all_of


class CannotRead(Exception):
    """Data that cannot be read twice, or not be cut into whole batches."""


@dataclass(frozen=True)
class Batches:
    """Whole batches as NumPy arrays, the first one uneven where that can be."""

    all: list[Any]
    is_fixed: bool
    """Whether the number of examples is part of their shape."""

    def specs(self) -> Any:
        """Return the specs of a batch."""
        return tree.map_structure(self._spec, *self.all)

    def _spec(self, *values: Any) -> Any:
        """Return the spec of one leaf in all batches, whose texts may differ in length."""
        sizes = [set(each) for each in zip(*(value.shape for value in values), strict=True)]
        shape = [next(iter(each)) if len(each) == 1 else None for each in sizes]
        first = shape[0] if self.is_fixed else None
        return tf.TensorSpec((first, *shape[1:]), tf.as_dtype(values[0].dtype))

    def dataset(self) -> Any:
        """Return a dataset of the leaves of all batches."""
        return tf.data.Dataset.from_generator(
            # Copies, since TensorFlow writes into what it is given.
            lambda: (tuple(map(np.array, tree.flatten(each))) for each in self.all),
            output_signature=tuple(tree.flatten(self.specs())),
        )

    def pack(self, leaves: Any) -> Any:
        """Return leaves in the structure of a batch."""
        return tree.pack_sequence_as(self.all[0], list(leaves))


def of_the_chief(found: Batches, exchange: Any, strategy: Any) -> Batches:
    """Return the chief's batches on each of the workers, which may have data of their own."""
    data = pickle.dumps(found)
    numbers = np.frombuffer(data + bytes(-len(data) % 8), "int64")
    told = exchange.gather({"call": "the proof before fit()", "numbers": len(numbers)})
    if not exchange.place.is_chief:
        numbers = np.zeros(next(iter(told.values()))["numbers"], "int64")
    with strategy.scope():  # in which all workers' variables begin with the chief's value
        held = tf.Variable(numbers, trainable=False)
    chiefs: Batches = pickle.loads(held.numpy().tobytes())
    return chiefs


def read_batches(arguments: dict[str, Any], steps: int, replicas: int, model: Any) -> Batches:
    """Return batches of what ``fit`` is given, as large as one replica's and the first uneven.

    So one device needs no more memory for a whole one than for its part of a step of ``fit``.
    """
    found = [_arrays(batch) for batch in _first(arguments, steps)]
    if not found or not len(tree.flatten(found[0])[0]):
        raise CannotRead("there is no data")
    is_fixed = _is_fixed(arguments.get("x"), model)
    size = min(len(tree.flatten(batch)[0]) for batch in found)
    if not is_fixed:
        even = max(size // replicas, min(size, 2 * replicas + 2))
        uneven = min(size, max(even - 3, replicas + 1))
        uneven -= uneven > replicas + 1 and uneven % replicas == 0
        sizes = [uneven] + [even] * (steps - 1)
    else:
        sizes = [size] * steps
    cut = [
        tree.map_structure(lambda v, n=n: v[:n], found[k % len(found)]) for k, n in enumerate(sizes)
    ]
    return Batches(cut, is_fixed)


def _first(arguments: dict[str, Any], steps: int) -> list[Any]:
    """Return the first batches; put a generator that begins with them in place of one."""
    x, weights = arguments.get("x"), arguments.get("class_weight")
    if x is None:
        raise CannotRead("there is no data")
    if isinstance(x, types.GeneratorType):
        read = list(itertools.islice(x, steps))
        arguments["x"] = (batch for batch in itertools.chain(read, x))
        return list(map(_as_keras_gives_it, read))
    if isinstance(x, tf.data.Dataset):
        batches = iter(_begun_anew(x).take(steps))
    elif isinstance(x, keras.utils.PyDataset):
        batches = map(_as_keras_gives_it, _items(x, steps))
    elif not all(hasattr(leaf, "shape") for leaf in tree.flatten(x)):
        raise CannotRead(f"a {type(x).__name__} is not read twice")
    else:
        batches = _of_arrays(arguments, steps)
    return [_weighed(batch, weights) for batch in batches]


def _of_arrays(arguments: dict[str, Any], steps: int) -> Iterator[Any]:
    """Yield the first batches that Keras would make of arrays, unshuffled."""
    x, y, weights = (arguments.get(name) for name in ("x", "y", "sample_weight"))
    if tree.is_nested(y) and weights is not None and not tree.is_nested(weights):
        weights = tree.map_structure(lambda _: weights, y)
    data = keras.utils.pack_x_y_sample_weight(x, y, weights)
    leaves = tree.flatten(data)
    for leaf in leaves:
        _require_dense(leaf)
    number = len(leaves[0])
    size, in_steps = arguments.get("batch_size"), arguments.get("steps_per_epoch")
    size = size or (-(-number // in_steps) if in_steps else 32)
    for begin in range(0, min(number, steps * size), size):

        def rows(value: Any, first: int = begin) -> Any:
            return _as_floatx(np.asarray(value[first : first + size]))

        yield tree.map_structure(rows, data)


def _as_floatx(values: Any) -> Any:
    return values.astype(keras.backend.floatx()) if values.dtype.kind == "f" else values


def _items(data: Any, steps: int) -> Iterator[Any]:
    number = data.num_batches
    return (data[n] for n in range(steps if number is None else min(steps, number)))


def _begun_anew(dataset: Any) -> Any:
    """Return the same dataset with orders of its own, which begin with that of the first epoch.

    To read a dataset draws the order of an epoch from what all its iterators share.
    """
    if not any(type(each).__name__ == "_ShuffleDataset" for each in all_of(dataset)):
        return dataset
    try:
        graph = graph_pb2.GraphDef.FromString(dataset._as_serialized_graph().numpy())
    except Exception as error:  # more than 2 GiB, or what cannot be written down
        raise CannotRead("a shuffled dataset too large to copy") from error
    nodes = {node.name: node for node in graph.node}
    for shuffle in graph.node:
        if shuffle.op == "ShuffleDatasetV3":
            orders = nodes[shuffle.input[-1].split(":")[0]]
            orders.op = "DummySeedGenerator"
            orders.ClearField("attr")
    made = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(made, dataset.element_spec)


def _as_keras_gives_it(batch: Any) -> Any:
    """Return what a step gets of a batch that Python code has made."""
    return keras.utils.pack_x_y_sample_weight(*keras.utils.unpack_x_y_sample_weight(batch))


def _weighed(batch: Any, class_weight: Any) -> Any:
    if class_weight is None:
        return batch
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if weights is not None:
        raise CannotRead("sample weights and class weights together")  # which fit refuses
    labels = np.asarray(y)
    if labels.ndim > 1:
        labels = labels[..., 0] if labels.shape[-1] == 1 else labels.argmax(axis=-1)
    weights = np.array([class_weight.get(round(float(label)), 1.0) for label in labels], "float32")
    return keras.utils.pack_x_y_sample_weight(x, y, weights)


def _arrays(batch: Any) -> Any:
    arrays = tree.map_structure(_array, batch)
    if any(leaf.ndim == 0 for leaf in tree.flatten(arrays)):
        raise CannotRead("a part of each batch is a single number")
    if len({len(leaf) for leaf in tree.flatten(arrays)}) != 1:
        raise CannotRead("the parts of a batch are not of one length")
    return arrays


def _array(value: Any) -> Any:
    _require_dense(value)
    return np.asarray(value)


def _require_dense(value: Any) -> None:
    is_sparse = isinstance(value, tf.RaggedTensor | tf.SparseTensor) or hasattr(value, "tocsr")
    if value is None or is_sparse:
        raise CannotRead(f"a {type(value).__name__} is not cut into examples")


def _is_fixed(x: Any, model: Any) -> bool:
    """Return whether the data or the model know the size of a batch beforehand."""
    shapes = [each.shape for each in getattr(model, "inputs", None) or []]
    if isinstance(x, tf.data.Dataset):
        shapes += [each.shape for each in tf.nest.flatten(x.element_spec) if hasattr(each, "shape")]
    return any(shape is not None and len(shape) > 0 and shape[0] is not None for shape in shapes)
