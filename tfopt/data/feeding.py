"""What ``fit`` and ``evaluate`` are given, so that every variant of a job sees the same.

Guarantees: a training input lasts for every step of every epoch that the job names; the test
input gives the numbers of ``model.evaluate`` on the test part in batches of the same size, and
no iterator over it waits for tf.data's autotuner.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from tfopt.data.flow import DEFAULT_BATCH, build
from tfopt.data.plan import Plan
from tfopt.data.sources import INFINITE, Batches, kind_of, read_source

_log = logging.getLogger("tfopt")


def steps_in(part: Any, batch: int | None) -> int | None:
    """Batches in one pass where that can be known without reading the data through."""
    kind = kind_of(part)
    if kind == "arrays":
        import keras

        rows = int(keras.tree.flatten(part)[0].shape[0])
        return math.ceil(rows / (batch or DEFAULT_BATCH))
    if kind == "generator":
        return None
    count = part.num_batches if kind == "pydataset" else int(part.cardinality())
    return count if count is not None and count > 0 else None


def named(arrays: Any) -> dict[str, Any]:
    """Arrays by the names that ``fit`` gives them: of a tuple x, y and sample_weight."""
    parts = arrays if isinstance(arrays, tuple) else (arrays,)
    return dict(zip(("x", "y", "sample_weight"), parts, strict=False))


def lasting(part: Any, *, steps: int, epochs: int, batch: int | None, seed: int) -> Any:
    """The training part itself where it lasts for all epochs; over and over again otherwise.

    With ``steps_per_epoch``, Keras 3.15 goes on where the last epoch stopped. Where the data ends
    within an epoch it cuts that epoch short with a warning: 4 batches give epochs of 3, 1 and 3
    steps when 3 are asked for, and of 4 when 6 are.
    """
    length = steps_in(part, batch)
    if length is not None and (length == steps or length >= steps * epochs):
        return part
    kind = kind_of(part)
    if kind == "arrays":
        return _batches_of_keras(part, batch).repeat()
    source = read_source(part, shuffle_batches=True, seed=seed)
    assert isinstance(source, Batches)
    for note in source.notes:
        _log.info("steps_per_epoch beyond the data: %s", note)
    if source.count == INFINITE:
        return part if kind == "pydataset" else source.dataset
    return source.dataset.repeat()


def readable(part: Any) -> Any:
    """A generator function as a dataset, which starts anew for every epoch; the rest as it is."""
    return counted(part) if part is not None and kind_of(part) == "generator" else part


def fit_input(part: Any, batch: int | None) -> dict[str, Any]:
    """Arrays go in with a batch size; everything else yields batches already."""
    if kind_of(part) != "arrays":
        return {"x": part}
    return {**named(part), "batch_size": batch}


def counted(function: Any) -> Any:
    """A generator function as a dataset of known length, for which it is read through once.

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
    """The test part as a dataset to evaluate on again and again; arrays in batches of ``batch``.

    In TensorFlow 2.21 an iterator under the autotuner may wait at its end for as long as it has
    lived (``benchmarks/autotune_wait.py``), and Keras makes such a one out of arrays.
    """
    import tensorflow as tf

    kind = kind_of(part)
    if kind == "arrays":
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


def _batches_of_keras(part: Any, batch: int | None) -> Any:
    """The dataset that ``fit`` itself makes of arrays: repeating it must not change its speed."""
    from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

    return ArrayDataAdapter(**named(part), batch_size=batch, shuffle=True).get_tf_dataset()
