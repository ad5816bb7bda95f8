"""A model that knows its shapes only from its data, built by them as ``fit`` would build it.

Guarantees: only shapes and types are used, for which a generator's or PyDataset's first batches are
read and nothing else is; nothing is computed; a model that has its weights is left alone.
"""

from __future__ import annotations

from typing import Any

from tfopt.data.sources import Arrays, read_source


def build_by(model: Any, part: Any) -> None:
    """Makes the weights of a subclassed or Sequential Keras model whose input shape nobody gave."""
    import keras
    import tensorflow as tf

    if not isinstance(model, keras.Model) or model.built:
        return
    if type(model).call is keras.Model.call:
        return  # without call(), its parts are built by whoever calls them
    inputs = tf.nest.map_structure(_symbol, _inputs(part))
    if all(isinstance(leaf, keras.KerasTensor) for leaf in tf.nest.flatten(inputs)):
        model(inputs, training=False)


def _inputs(part: Any) -> Any:
    """What ``call`` is given, as arrays or specs: of (x, y, weights) the x."""
    source = read_source(part)
    given = source.structure if isinstance(source, Arrays) else source.dataset.element_spec
    return given[0] if isinstance(given, tuple) else given


def _symbol(leaf: Any) -> Any:
    """A tensor without content, of any number of examples; None for what Keras has no such of."""
    import keras
    import tensorflow as tf

    if isinstance(leaf, tf.RaggedTensorSpec | tf.SparseTensorSpec):
        return None
    shape = tf.TensorShape(leaf.shape)
    if shape.rank is None or shape.rank == 0:
        return None
    return keras.KerasTensor((None, *shape[1:]), keras.backend.standardize_dtype(leaf.dtype))
