"""Make what ``fit`` and ``evaluate`` are given, so that every variant of a job sees the same."""

from __future__ import annotations

import logging
import math
from typing import Any

from tfopt.data.fit_data import (
    DEFAULT_BATCH,
    INFINITE,
    Arrays,
    Batches,
    kind_of,
    read_source,
)
from tfopt.data.flow import build
from tfopt.data.plan import Plan

_log = logging.getLogger("tfopt")


def steps_in(part: Any, batch: int | None) -> int | None:
    """Return the batches in one pass; None where only reading it through would show them."""
    kind = kind_of(part)
    if kind == "arrays":
        import keras

        rows = int(keras.tree.flatten(part)[0].shape[0])
        return math.ceil(rows / (batch or DEFAULT_BATCH))
    if kind == "generator":
        return None
    if kind == "source":
        return math.ceil(int(part.count()) / (batch or DEFAULT_BATCH))
    count = part.num_batches if kind == "pydataset" else int(part.cardinality())
    return count if count is not None and count > 0 else None


def named(arrays: Any) -> dict[str, Any]:
    """Return arrays by the names that ``fit`` gives them: of a tuple x, y and sample_weight."""
    parts = arrays if isinstance(arrays, tuple) else (arrays,)
    return dict(zip(("x", "y", "sample_weight"), parts, strict=False))


def lasting(part: Any, *, steps: int, epochs: int, batch: int | None, seed: int) -> Any:
    """Return the training part where it lasts for all epochs; else one that begins again.

    With ``steps_per_epoch``, Keras 3.15 goes on where the last epoch stopped. Where the data ends
    within an epoch it cuts that epoch short with a warning: 4 batches give epochs of 3, 1 and 3
    steps when 3 are asked for, and of 4 when 6 are.
    """
    length = steps_in(part, batch)
    if length is not None and (length == steps or length >= steps * epochs):
        return part
    kind = kind_of(part)
    if kind == "arrays":
        from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

        # The dataset that ``fit`` itself makes: repeating it must not change its speed.
        adapter = ArrayDataAdapter(**named(part), batch_size=batch, shuffle=True)
        return adapter.get_tf_dataset().repeat()
    source = read_source(part, shuffle_batches=True, seed=seed)
    assert isinstance(source, Batches)
    for note in source.notes:
        _log.info("steps_per_epoch beyond the data: %s", note)
    if source.count == INFINITE:
        return part if kind == "pydataset" else source.dataset
    return source.dataset.repeat()


def readable(part: Any, batch: int | None = None) -> Any:
    """Return a generator function or a source as a dataset that starts anew for every epoch.

    Anything else is returned as it is.
    """
    if part is None or kind_of(part) not in ("generator", "source"):
        return part
    if kind_of(part) == "generator":
        return counted(part)
    return build(Plan(batch_size=batch, shuffle=False), part, seed=0)[0]


def fit_input(part: Any, batch: int | None) -> dict[str, Any]:
    """Return the arguments of ``fit``; only arrays take a batch size."""
    if kind_of(part) != "arrays":
        return {"x": part}
    return {**named(part), "batch_size": batch}


def counted(function: Any) -> Any:
    """Return a generator function as a dataset of known length; it is read through once.

    Where Keras 3.15 does not know the length, it asks for one batch more than there is, and the
    compiled step counts that one too: ``iterations``, and with it every learning-rate schedule,
    runs ahead by one an epoch.
    """
    import tensorflow as tf

    source = read_source(function)
    assert isinstance(source, Batches)
    count = sum(1 for _ in source.dataset)
    return source.dataset.apply(tf.data.experimental.assert_cardinality(count))


def evaluation_input(part: Any, batch: int) -> Any:
    """Return the test part as a dataset to evaluate on again and again.

    In TensorFlow 2.21 an iterator under the autotuner may wait at its end for as long as it has
    lived, and Keras makes such a one out of arrays.
    """
    import tensorflow as tf

    kind = kind_of(part)
    if kind in ("arrays", "source"):
        return build(Plan(batch_size=batch, shuffle=False), part, seed=0)[0]
    if kind == "generator":
        dataset = counted(part)
    else:
        source = read_source(part)
        assert isinstance(source, Batches)
        dataset = source.dataset
        if kind == "pydataset" and source.count > 0:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(source.count))
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def build_by(model: Any, part: Any) -> None:
    """Make the weights of a Keras model whose input shape nobody gave, as ``fit`` would.

    Only shapes and types are used, for which a generator's or PyDataset's first batches are read.
    """
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
    """Return what ``call`` is given, as arrays or specs: of (x, y, weights) the x."""
    source = read_source(part)
    given = source.structure if isinstance(source, Arrays) else source.dataset.element_spec
    return given[0] if isinstance(given, tuple) else given


def _symbol(leaf: Any) -> Any:
    """Return a symbolic tensor of any number of examples; None where Keras has none such."""
    import keras
    import tensorflow as tf

    if isinstance(leaf, tf.RaggedTensorSpec | tf.SparseTensorSpec):
        return None
    shape = tf.TensorShape(leaf.shape)
    if shape.rank is None or shape.rank == 0:
        return None
    return keras.KerasTensor((None, *shape[1:]), keras.backend.standardize_dtype(leaf.dtype))
