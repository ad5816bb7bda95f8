"""Read the first batches of the data of ``fit``, for the steps of a proof.

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

from tfopt.data.stages import dataset_graph, upstream_datasets
from tfopt.keras_internals import layers_of


class UnreadableData(Exception):
    """Data that cannot be read twice, or cannot be cut into batches."""


@dataclass(frozen=True)
class ProofBatches:
    """Batches as NumPy arrays, the first one uneven if shapes allow it."""

    all: list[Any]
    is_fixed: bool
    """Whether the batch size is static."""

    def specs(self) -> Any:
        """Return the specs of a batch."""
        return tree.map_structure(self._spec, *self.all)

    def _spec(self, *values: Any) -> Any:
        """Return the spec of one leaf in all batches, with open sizes where they differ."""
        sizes = [set(size) for size in zip(*(value.shape for value in values), strict=True)]
        shape = [next(iter(size)) if len(size) == 1 else None for size in sizes]
        first = shape[0] if self.is_fixed else None
        return tf.TensorSpec((first, *shape[1:]), tf.as_dtype(values[0].dtype))

    def dataset(self) -> Any:
        """Return a dataset of the leaves of all batches."""
        return tf.data.Dataset.from_generator(
            # Copies, since TensorFlow may write into the arrays.
            lambda: (tuple(map(np.array, tree.flatten(batch))) for batch in self.all),
            output_signature=tuple(tree.flatten(self.specs())),
        )

    def pack(self, leaves: Any) -> Any:
        """Return leaves in the structure of a batch."""
        return tree.pack_sequence_as(self.all[0], list(leaves))


def broadcast_batches(batches: ProofBatches, exchange: Any, strategy: Any) -> ProofBatches:
    """Return the chief's batches, on each of the workers."""
    data = pickle.dumps(batches)
    numbers = np.frombuffer(data + bytes(-len(data) % 8), "int64")
    facts = exchange.gather({"call": "the proof before fit()", "numbers": len(numbers)})
    if not exchange.place.is_chief:
        numbers = np.zeros(next(iter(facts.values()))["numbers"], "int64")
    with strategy.scope():  # where variables get the chief's initial value
        variable = tf.Variable(numbers, trainable=False)
    of_chief: ProofBatches = pickle.loads(variable.numpy().tobytes())
    return of_chief


def read_batches(arguments: dict[str, Any], steps: int, replicas: int, model: Any) -> ProofBatches:
    """Return batches of the data of ``fit``, the first one uneven.

    They have the size of one replica's part, or a little more: one device then needs no more memory
    than in a step of ``fit``.
    """
    batches = [_arrays(batch) for batch in _first(arguments, steps)]
    if arguments.get("class_weight") is not None:
        batches = list(map(_with_weights, batches))
    rows = min((len(tree.flatten(batch)[0]) for batch in batches), default=0)
    if not rows:
        raise UnreadableData("there is no data")
    is_fixed = _is_fixed(arguments.get("x"), model)
    sizes = [rows] * steps
    if not is_fixed:
        rows = min(rows, max(rows // replicas, 4 * replicas))
        unit = next(unit for unit in (2 * replicas, replicas, 1) if unit <= rows)
        rows -= rows % unit
        first = rows if rows <= replicas or _crashes_on_odd_parts(model) else rows - 1
        sizes = [first] + [rows] * (steps - 1)
    repeated = zip(itertools.cycle(batches), sizes, strict=False)
    cut = [tree.map_structure(lambda v, n=n: v[:n], batch) for batch, n in repeated]
    return ProofBatches(cut, is_fixed)


def _crashes_on_odd_parts(model: Any) -> bool:
    """Return whether oneDNN may end the process in the gradient of a strided 1x1 convolution.

    TensorFlow 2.19 to 2.21 do so on a CPU for some widths, where a replica's part has an odd size.
    """
    return not tf.config.get_visible_devices("GPU") and any(
        isinstance(layer, keras.layers.Conv2D)
        and layer.kernel_size == (1, 1)
        and max(layer.strides) > 1
        for layer in layers_of(model)
    )


def _first(arguments: dict[str, Any], steps: int) -> list[Any]:
    """Return the first batches; a generator is replaced by one that begins with them."""
    x = arguments.get("x")
    if x is None:
        return []
    if isinstance(x, types.GeneratorType):
        read = list(itertools.islice(x, steps))
        arguments["x"] = (batch for batch in itertools.chain(read, x))
        return list(map(_packed, read))
    if isinstance(x, tf.data.Dataset):
        batches = iter(_independent_copy(x).take(steps))
    elif isinstance(x, keras.utils.PyDataset):
        number = steps if x.num_batches is None else min(steps, x.num_batches)
        batches = (_packed(x[place]) for place in range(number))
    elif not all(hasattr(leaf, "shape") for leaf in tree.flatten(x)):
        raise UnreadableData(f"a {type(x).__name__} cannot be read twice")
    else:
        batches = _array_batches(arguments, steps)
    return list(batches)


def _array_batches(arguments: dict[str, Any], steps: int) -> Iterator[Any]:
    """Yield the first batches of arrays, as Keras would without shuffling."""
    x, y, weights = (arguments.get(name) for name in ("x", "y", "sample_weight"))
    if tree.is_nested(y) and weights is not None and not tree.is_nested(weights):
        weights = tree.map_structure(lambda _: weights, y)
    data = keras.utils.pack_x_y_sample_weight(x, y, weights)
    number = tree.flatten(data)[0].shape[0]
    size, in_steps = arguments.get("batch_size"), arguments.get("steps_per_epoch")
    size = size or (-(-number // in_steps) if in_steps else 32)
    for begin in range(0, min(number, steps * size), size):

        def rows(value: Any, first: int = begin) -> Any:
            _require_dense(value)
            part = np.asarray(value[first : first + size])
            return part.astype(keras.backend.floatx()) if part.dtype.kind == "f" else part

        yield tree.map_structure(rows, data)


def _independent_copy(dataset: Any) -> Any:
    """Return the dataset with the same orders, which reading it does not advance.

    All iterators of a dataset draw their orders from one generator.
    """
    if not any(type(node).__name__ == "_ShuffleDataset" for node in upstream_datasets(dataset)):
        return dataset
    try:
        graph = dataset_graph(dataset)
    except Exception as error:  # more than 2 GiB, or not serializable
        raise UnreadableData("a shuffled dataset too large to copy") from error
    nodes = {node.name: node for node in graph.node}
    for shuffle in graph.node:
        if shuffle.op == "ShuffleDatasetV3":
            orders = nodes[shuffle.input[-1].split(":")[0]]
            orders.op = "DummySeedGenerator"
            orders.ClearField("attr")
    copy = tf.raw_ops.DatasetFromGraph(graph_def=graph.SerializeToString())
    return tf.data.experimental.from_variant(copy, dataset.element_spec)


def _packed(batch: Any) -> Any:
    """Return a batch of Python code in the form in which Keras gives it to a step."""
    return keras.utils.pack_x_y_sample_weight(*keras.utils.unpack_x_y_sample_weight(batch))


def _with_weights(batch: Any) -> Any:
    """Return a batch with weights in place of those of classes: any weights prove the same."""
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    if weights is None:
        weights = np.linspace(0.5, 1.5, len(tree.flatten(x)[0]), dtype="float32")
    return keras.utils.pack_x_y_sample_weight(x, y, weights)


def _arrays(batch: Any) -> Any:
    for leaf in tree.flatten(batch):
        _require_dense(leaf)
    arrays = tree.map_structure(np.asarray, batch)
    if any(leaf.ndim == 0 for leaf in tree.flatten(arrays)):
        raise UnreadableData("a part of each batch is a single number")
    if len({len(leaf) for leaf in tree.flatten(arrays)}) != 1:
        raise UnreadableData("the parts of a batch differ in length")
    return arrays


def _require_dense(value: Any) -> None:
    is_sparse = isinstance(value, tf.RaggedTensor | tf.SparseTensor) or hasattr(value, "tocsr")
    if value is None or is_sparse:
        raise UnreadableData(f"a {type(value).__name__} cannot be cut into examples")


def _is_fixed(x: Any, model: Any) -> bool:
    """Return whether the data or the model has a static batch size."""
    shapes = [tensor.shape for tensor in getattr(model, "inputs", None) or []]
    if isinstance(x, tf.data.Dataset):
        shapes += [spec.shape for spec in tf.nest.flatten(x.element_spec) if hasattr(spec, "shape")]
    return any(shape is not None and len(shape) > 0 and shape[0] is not None for shape in shapes)
