"""Make what ``fit`` and ``evaluate`` are given, so that every variant of a job sees the same.

Each function takes ``Examples``, or what they are made of.
"""

from __future__ import annotations

from typing import Any

from tfopt.data.fit_data import (
    INFINITE,
    ArrayExamples,
    Arrays,
    Batches,
    GeneratorExamples,
    PyDatasetExamples,
    SourceExamples,
    examples_of,
)
from tfopt.data.flow import build
from tfopt.data.plan import Plan


def training_input(
    part: Any, steps: int | None, *, epochs: int, batch: int | None, seed: int
) -> tuple[Any, int | None]:
    """Return what ``fit`` trains on, and the steps of an epoch: those asked for, or all."""
    examples = examples_of(part)
    if isinstance(examples, SourceExamples):
        plan, endless = Plan(batch_size=batch), steps is not None
        examples = examples_of(build(plan, examples, seed=seed, endless=endless)[0])
    if steps is not None:
        return lasting(examples, steps=steps, epochs=epochs, batch=batch, seed=seed), steps
    if isinstance(examples, GeneratorExamples):
        examples = examples_of(counted(examples))
    return examples.given, examples.steps(batch)


def lasting(part: Any, *, steps: int, epochs: int, batch: int | None, seed: int) -> Any:
    """Return the training part where it lasts for all epochs; else one that begins again.

    With ``steps_per_epoch``, Keras 3.15 goes on where the last epoch stopped. Where the data ends
    within an epoch it cuts that epoch short with a warning: 4 batches give epochs of 3, 1 and 3
    steps when 3 are asked for, and of 4 when 6 are.
    """
    examples = examples_of(part)
    length = examples.steps(batch)
    if length is not None and (length == steps or length >= steps * epochs):
        return examples.given
    if examples.count == INFINITE:
        return examples.given
    if isinstance(examples, ArrayExamples):
        return build(Plan(batch_size=batch), examples, seed=seed, endless=True)[0]
    # As it is: prefetching, for instance, would change its speed.
    source = examples.read(shuffle_batches=True, seed=seed)
    assert isinstance(source, Batches)
    return source.dataset.repeat()


def readable(part: Any, batch: int | None = None) -> Any:
    """Return a generator function or a source as a dataset that starts anew for every epoch.

    Anything else is returned as it is.
    """
    if part is None:
        return None
    examples = examples_of(part)
    if isinstance(examples, GeneratorExamples):
        return counted(examples)
    if isinstance(examples, SourceExamples):
        return build(Plan(batch_size=batch, shuffle=False), examples, seed=0)[0]
    return examples.given


def fit_input(part: Any, batch: int | None) -> dict[str, Any]:
    """Return the arguments of ``fit``; only arrays take a batch size."""
    examples = examples_of(part)
    if isinstance(examples, ArrayExamples):
        return {**examples.named(), "batch_size": batch}
    return {"x": examples.given}


def counted(examples: GeneratorExamples) -> Any:
    """Return a generator function as a dataset of known length; it is read through once.

    Where Keras 3.15 does not know the length, it asks for one batch more than there is, and the
    compiled step counts that one too: ``iterations``, and with it every learning-rate schedule,
    runs ahead by one an epoch.
    """
    import tensorflow as tf

    dataset = examples.read().dataset
    count = sum(1 for _ in dataset)
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def evaluation_input(part: Any, batch: int) -> Any:
    """Return the test part as a dataset to evaluate on again and again.

    In TensorFlow 2.21 an iterator under the autotuner may wait at its end for as long as it has
    lived, and Keras makes such a one out of arrays.
    """
    import tensorflow as tf

    examples = examples_of(part)
    if isinstance(examples, ArrayExamples | SourceExamples):
        return build(Plan(batch_size=batch, shuffle=False), examples, seed=0)[0]
    dataset = readable(examples)
    if isinstance(examples, PyDatasetExamples):
        dataset = examples.read().dataset
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
    source = examples_of(part).read()
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
