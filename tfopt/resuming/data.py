"""What a training reads: whether it can be read again in the same order, and what tells it apart.

Guarantees: nothing is read from the data but some rows of arrays, and no iterator is made. Data
whose order cannot come back is refused with the fix; what may come back otherwise is told.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import numpy as np

from tfopt.errors import UserError
from tfopt.resuming.datasets import pipeline_of

# What has to happen again for the epochs before the one that a training goes on in: nothing, an
# iterator made, a PyDataset's own methods called, or all of it read.
Again = Literal["nothing", "iterators", "methods", "reading"]


@dataclass(frozen=True)
class Source:
    """The training data of one ``fit``."""

    facts: dict[str, Any]
    again: Again
    doubts: tuple[str, ...]


_ROWS_LOOKED_AT = 256


def source_of(epoch_iterator: Any) -> Source:
    """Looks at the data of a ``fit`` that is about to begin."""
    adapter = epoch_iterator.data_adapter
    facts = {
        "kind": type(adapter).__name__.removesuffix("Adapter"),
        "batches": adapter.num_batches,
        "steps_per_epoch": epoch_iterator.steps_per_epoch,
        "steps_per_execution": epoch_iterator.steps_per_execution,
    }
    more, again, doubts = _LOOKS.get(type(adapter).__name__, _unknown)(adapter)
    # Then one iterator lasts for all epochs: where it is depends on each of them.
    if epoch_iterator.steps_per_epoch is not None:
        again = "reading"
    return Source({**facts, **more}, again, doubts)


def again_in(epoch_iterator: Any) -> Again:
    """The same for the validation, whose order changes no weights: what cannot be is left out."""
    try:
        return source_of(epoch_iterator).again
    except UserError:
        return "nothing"


_Look = tuple[dict[str, Any], Again, tuple[str, ...]]


def _arrays(adapter: Any) -> _Look:
    from keras import tree
    from tensorflow.python.eager import context

    seed = context.global_seed()
    if adapter._shuffle and seed is None:
        raise UserError(
            "fit() shuffles these arrays by TensorFlow's seed, and none is set: the order could "
            "not come back.",
            expected="an order that is the same when the script is run again",
            received="shuffle=True without a seed",
            fix="tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=1).batch(32); or "
            "keras.utils.set_random_seed(1) first, with which Keras 3.15 takes the same order in "
            "every epoch",
        )
    flat = [each for each in tree.flatten(adapter._inputs) if each is not None]
    facts = {
        "batch_size": adapter.batch_size,
        "shuffle": bool(adapter._shuffle),
        "seed": seed if adapter._shuffle else None,
        "shapes": [[list(each.shape), str(each.dtype)] for each in flat],
        "rows": sha256(b"".join(_some_rows(each) for each in flat)).hexdigest()[:16],
    }
    # With a seed each epoch's iterator draws the same order: see the fix above.
    return facts, "nothing", ()


def _some_rows(array: Any) -> bytes:
    """The bytes of rows from everywhere in an array; nothing of what is not one."""
    if not isinstance(array, np.ndarray) and not hasattr(array, "numpy"):
        return b""  # sparse ones, and data frames
    count = int(array.shape[0])
    rows = array[:: max(count // _ROWS_LOOKED_AT, 1)]
    return bytes(np.ascontiguousarray(rows if isinstance(rows, np.ndarray) else rows.numpy()))


def _dataset(adapter: Any) -> _Look:
    import tensorflow as tf

    dataset = adapter.get_tf_dataset()
    if not isinstance(dataset, tf.data.Dataset):
        return {}, "reading", ("a dataset that was distributed before fit()",)
    made = pipeline_of(dataset)
    if made.another_order:
        raise UserError(
            "This dataset comes in another order each time: a training could not go on where it "
            "was.",
            expected="an order that is the same when the script is run again",
            received="; ".join(dict.fromkeys(made.another_order)),
            fix="shuffle(..., seed=1), or tf.random.set_seed(1) before it; and leave deterministic "
            "as it is",
        )
    spec = [str(each) for each in tf.nest.flatten(dataset.element_spec)]
    facts = {"spec": spec, "made by": list(made.steps)}
    again: Again = "nothing"
    if made.changes:
        again = "iterators" if made.drawn_early else "reading"
    return facts, again, made.doubts


def _pydataset(adapter: Any) -> _Look:
    facts = {"class": type(adapter.py_dataset).__name__, "shuffle": bool(adapter.shuffle)}
    return facts, "methods" if adapter.num_batches is not None else "reading", ()


def _generator(adapter: Any) -> _Look:
    return {}, "reading", ("a Python generator, whose own state cannot be saved",)


def _unknown(adapter: Any) -> _Look:
    return {}, "reading", (f"{type(adapter).__name__}, whose order nobody can look into",)


_LOOKS = {
    "ArrayDataAdapter": _arrays,
    "TFDatasetAdapter": _dataset,
    "PyDatasetAdapter": _pydataset,
    "GeneratorDataAdapter": _generator,
}
