"""Train a small Transformer that classifies texts.

Run it with ``python -m tfopt.recipes.text_transformer``.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfopt import Job, LearningRate, Pipeline, Quantize, chain
from tfopt.data.texts import TEXT_SOURCES, load_texts
from tfopt.job.parts import Data
from tfopt.recipes.plain_job import class_count, fixed_sample, plain_job, require_counts, run_recipe

if TYPE_CHECKING:
    import keras

CHAIN = chain(
    LearningRate(peak=0.003, warmup=0.1, decay="cosine"),
    # 80 divides the 4,000 texts: a smaller last batch would be compiled a second time.
    Pipeline(batch_size=80),
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
    require_counts(
        examples=examples,
        vocabulary=vocabulary,
        length=length,
        width=width,
        heads=heads,
        blocks=blocks,
    )
    classes = class_count(data, TEXT_SOURCES, 2)
    build = functools.partial(transformer, vocabulary, length, width, heads, blocks, classes)
    load = functools.partial(load_tokens, data, vocabulary, length, examples)
    return plain_job("text_transformer", build, load, batch_size, epochs, steps, seed)


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

    data = fixed_sample(load_texts(source), examples, f"{length} words of each")
    vectorize = keras.layers.TextVectorization(vocabulary, output_sequence_length=length)
    vectorize.adapt(data.train[0], batch_size=256)

    def numbered(part: tuple[Any, Any]) -> tuple[Any, Any]:
        return np.asarray(vectorize(part[0])).astype(np.int32), part[1]

    return replace(data, train=numbered(data.train), test=numbered(data.test))


if __name__ == "__main__":
    run_recipe("text_transformer", CHAIN, data="a folder or table of texts")
