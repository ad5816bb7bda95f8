"""Train a small Transformer that classifies texts.

Run it with ``python -m tfopt.recipes.text_transformer``: it searches for what trains the job
fastest on this machine, then measures that, and what makes the model small, beside the job as
it is.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfopt import (
    Distribute,
    Execution,
    Job,
    LearningRate,
    MixedPrecision,
    Pipeline,
    Place,
    Quantize,
    chain,
)
from tfopt.data.class_folders import class_folders
from tfopt.data.texts import TEXT_SOURCES, load_texts
from tfopt.errors import require_count
from tfopt.job.parts import Data
from tfopt.recipes.cnn_mnist import plain_compile

if TYPE_CHECKING:
    import keras

CHAIN = chain(
    Place(),
    MixedPrecision(),
    Distribute(),
    LearningRate(peak=0.002, warmup=0.1, decay="cosine"),
    # 50 divides the 4,000 texts: a smaller last batch would be compiled a second time.
    Pipeline(batch_size=50, cache="memory"),
    # Without XLA: on a CPU compiling the attention takes longer than this short training.
    Execution(jit_compile=False, steps_per_execution=20),
    Quantize(precision="int8"),
)


def job(
    *,
    data: str = "auto",
    vocabulary: int = 5_000,
    length: int = 64,
    width: int = 32,
    heads: int = 2,
    blocks: int = 1,
    examples: int | None = 4_000,
    batch_size: int = 32,
    epochs: int = 3,
    steps: int | None = None,
    seed: int = 0,
) -> Job:
    """Return the plain job: Adam at its default rate, batches of 32.

    Args:
        data: What ``tfopt.data.texts.load_texts`` takes: a folder of yours, or "auto",
            "tfds", "embedded", "synthetic".
        vocabulary: The most words that are told apart, the most frequent ones.
        length: Words of a text that are read; shorter ones are padded.
        width: Numbers for each word.
        heads: Attention heads; ``width`` is shared out among them.
        blocks: Transformer blocks.
        examples: The most texts that are taken for training, and for the test; None takes all.
    """
    counts = {"vocabulary": vocabulary, "length": length, "width": width, "heads": heads}
    for name, value in {**counts, "blocks": blocks}.items():
        require_count(name, value)
    if examples is not None:
        require_count("examples", examples)
    classes = 2 if data in TEXT_SOURCES else len(class_folders(data).classes)
    return Job(
        name="text_transformer",
        build=functools.partial(transformer, vocabulary, length, width, heads, blocks, classes),
        data=functools.partial(load_tokens, data, vocabulary, length, examples),
        compile=plain_compile,
        batch_size=batch_size,
        tuned_batch_size=32,
        epochs=epochs,
        steps_per_epoch=steps,
        seed=seed,
    )


def transformer(
    vocabulary: int, length: int, width: int, heads: int, blocks: int, classes: int
) -> keras.Model:
    """Return embeddings of words and places, blocks of attention, their mean, a softmax."""
    import keras
    from keras import layers

    tokens = keras.Input((length,), dtype="int32", name="tokens")
    places = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1
    x = layers.Add()(
        [layers.Embedding(vocabulary, width)(tokens), layers.Embedding(length, width)(places)]
    )
    for _ in range(blocks):
        attended = layers.MultiHeadAttention(heads, max(width // heads, 1), dropout=0.1)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, attended]))
        inner = layers.Dense(2 * width, activation="relu")(x)
        inner = layers.Dense(width)(inner)
        x = layers.LayerNormalization()(layers.Add()([x, inner]))
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dropout(0.2)(x)
    outputs = layers.Dense(classes, activation="softmax", name="head")(x)
    return keras.Model(tokens, outputs, name="text_transformer")


def load_tokens(source: str, vocabulary: int, length: int, examples: int | None) -> Data:
    """Return texts as the numbers of their words; the vocabulary is that of the training part."""
    import keras
    import numpy as np

    data = load_texts(source)
    train, test = (_drawn(part, examples) for part in (data.train, data.test))
    vectorize = keras.layers.TextVectorization(vocabulary, output_sequence_length=length)
    vectorize.adapt(train[0], batch_size=256)

    def numbered(part: tuple[Any, Any]) -> tuple[Any, Any]:
        return np.asarray(vectorize(part[0])).astype(np.int32), part[1]

    taken = f"{len(train[1]):,} and {len(test[1]):,} of them, {length} words of each"
    note = f"{data.note}; {taken}"
    return replace(data, train=numbered(train), test=numbered(test), note=note)


def _drawn(part: tuple[Any, Any], examples: int | None) -> tuple[Any, Any]:
    """Return so many examples, always the same, mixed: sources may be sorted by class."""
    import numpy as np

    order = np.random.default_rng(0).permutation(len(part[1]))[:examples]
    return part[0][order], part[1][order]


if __name__ == "__main__":
    from tfopt.recipes.recipe_main import recipe_main

    sys.exit(
        recipe_main(
            "tfopt.recipes.text_transformer:job",
            CHAIN,
            title="text_transformer",
            data="a folder or table of texts",
        )
    )
