"""Prepare the input of ``fit`` and ``evaluate``, the same for every variant of a job."""

from __future__ import annotations

from typing import Any

from tfopt.data.fit_data import (
    INFINITE,
    ArrayExamples,
    Arrays,
    Batches,
    DatasetExamples,
    Examples,
    GeneratorExamples,
    PyDatasetExamples,
    SourceExamples,
    examples_of,
)
from tfopt.data.flow import build, untuned
from tfopt.data.plan import Plan


def training_input(
    data: Any, steps: int | None, *, epochs: int, batch: int | None, seed: int
) -> tuple[Any, int | None]:
    """Return the data for ``fit``, and the steps of an epoch: ``steps``, or those of all of it."""
    examples = examples_of(data)
    if isinstance(examples, SourceExamples):
        plan, endless = Plan(batch_size=batch), steps is not None
        examples = DatasetExamples(build(plan, examples, seed=seed, endless=endless)[0])
    if steps is not None:
        return lasting(examples, steps=steps, epochs=epochs, batch=batch, seed=seed), steps
    if isinstance(examples, GeneratorExamples):
        examples = DatasetExamples(_of_known_length(examples))
    return examples.given, examples.steps(batch)


def lasting(examples: Examples, *, steps: int, epochs: int, batch: int | None, seed: int) -> Any:
    """Return the training data, repeated if it does not last for all epochs.

    With ``steps_per_epoch``, Keras 3.15 continues where the last epoch stopped. Where the data ends
    within an epoch it cuts that epoch short with a warning: 4 batches give epochs of 3, 1 and 3
    steps when 3 are asked for, and of 4 when 6 are.
    """
    length = examples.steps(batch)
    if length is not None and (length == steps or length >= steps * epochs):
        return examples.given
    if examples.count == INFINITE:
        return examples.given
    if isinstance(examples, ArrayExamples):
        return build(Plan(batch_size=batch), examples, seed=seed, endless=True)[0]
    # Without ``build``, whose prefetching would change its speed.
    source = examples.read(seed)
    assert isinstance(source, Batches)
    return source.dataset.repeat()


def readable(examples: Examples | None, batch: int | None = None) -> Any:
    """Return a generator function or a source as a dataset, and anything else as it is."""
    if isinstance(examples, GeneratorExamples):
        return _of_known_length(examples)
    if isinstance(examples, SourceExamples):
        return build(Plan(batch_size=batch, shuffle=False), examples, seed=0)[0]
    return None if examples is None else examples.given


def _of_known_length(examples: GeneratorExamples) -> Any:
    """Return a generator function as a dataset of known length, for which it is read once.

    Where Keras 3.15 does not know the length, it asks for one batch more than there is, and the
    compiled step counts that one too: ``iterations``, and with it every learning-rate schedule,
    runs ahead by one an epoch.
    """
    import tensorflow as tf

    dataset = examples.read().dataset
    count = sum(1 for _ in dataset)
    return dataset.apply(tf.data.experimental.assert_cardinality(count))


def evaluation_input(examples: Examples, batch: int) -> Any:
    """Return the test data, arrays too, as a dataset that can be evaluated on repeatedly."""
    if isinstance(examples, ArrayExamples | SourceExamples):
        return build(Plan(batch_size=batch, shuffle=False), examples, seed=0)[0]
    dataset = readable(examples)
    if isinstance(examples, PyDatasetExamples):
        dataset = examples.read().dataset
    return untuned(dataset)


def build_by(model: Any, examples: Examples) -> None:
    """Build a Keras model of unknown input shape by the shapes and types of its data."""
    import keras
    import tensorflow as tf

    if not isinstance(model, keras.Model) or model.built:
        return
    if type(model).call is keras.Model.call:
        return  # a model without call() builds its layers itself
    source = examples.read()
    data = source.structure if isinstance(source, Arrays) else source.dataset.element_spec
    x = data[0] if isinstance(data, tuple) else data
    inputs = tf.nest.map_structure(_symbol, x)
    if all(isinstance(leaf, keras.KerasTensor) for leaf in tf.nest.flatten(inputs)):
        model(inputs, training=False)


def _symbol(leaf: Any) -> Any:
    """Return a symbolic tensor for any number of examples; None if Keras has none for it."""
    import keras
    import tensorflow as tf

    if isinstance(leaf, tf.RaggedTensorSpec | tf.SparseTensorSpec):
        return None
    shape = tf.TensorShape(leaf.shape)
    if shape.rank is None or shape.rank == 0:
        return None
    return keras.KerasTensor((None, *shape[1:]), keras.backend.standardize_dtype(leaf.dtype))
