"""Read tables as ``tf.data``: the base class of sources that yield Arrow record batches."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfopt.data.sources.images import Encoded, decode_image, require_image_shape
from tfopt.data.sources.source import ReadOrder, Source
from tfopt.data.sources.table_columns import Array, Layout, array_of, layout
from tfopt.errors import UserError, require_switch
from tfopt.job.cgroup import usable_cores

# Rows reach TensorFlow in blocks of about this size: large against the cost of a call into Python
# (0.1 ms), small against the host's memory.
BLOCK_BYTES = 8 * 1024**2
MOST_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True, repr=False)
class TableSource(Source):
    """Rows and columns of a file or an engine.

    Attributes:
        label: The column that becomes y; a tuple of columns becomes a dict. None: no y.
        features: The columns that become x: one name gives that array, several a dict by name.
            None takes all but label and weight.
        weight: The column that becomes sample_weight.
        stack: Concatenate numeric features to one matrix instead of a dict.
        fill: The value for nulls, by column. A null in any other column is an error.
        classes: The classes of a text label, in the order of their indices.
        shapes: The shape of an example, by column, for lists of open length:
            ``{"pixels": (28, 28, 1)}``.
        images: Columns of encoded images (JPEG, PNG, GIF, BMP) with the shape to decode and
            resize them to: ``{"photo": (224, 224, 3)}``, values from 0 to 255.
    """

    label: str | tuple[str, ...] | None = None
    features: str | tuple[str, ...] | None = None
    weight: str | None = None
    stack: bool = False
    fill: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    images: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_switch("stack", self.stack)
        for name, shape in self.images.items():
            require_image_shape(f"images of {name!r}", shape)

    @abstractmethod
    def schema(self) -> Any:
        """Return the Arrow schema of the rows."""

    @abstractmethod
    def splits(self) -> Sequence[Any]:
        """Return the parts that can be read in any order: row groups, partitions, ranges."""

    @abstractmethod
    def read(self, splits: Sequence[Any], columns: Sequence[str]) -> Iterable[tuple[str, Any]]:
        """Yield columns of these splits in order, as record batches, each with its place."""

    def layout(self) -> Layout:
        """Return how the columns become x, y and sample_weight."""
        return layout(self.schema(), self)

    def encoded_images(self) -> Iterator[Encoded]:
        rules = self.layout().images
        read: Counter[str] = Counter()
        for where, batch in self.read(self.splits(), tuple(rules)) if rules else ():
            for name, rule in rules.items():
                for row, image in enumerate(batch.column(name).to_pylist(), start=read[where]):
                    content = image["bytes"] if isinstance(image, dict) else image
                    if content is not None:
                        place = f"{where}: the image in row {row} of {name!r}"
                        yield Encoded(place, content, rule.shape[-1])
            read[where] += batch.num_rows

    def batches(self, batch_size: int, reading: ReadOrder) -> Any:
        import tensorflow as tf

        plan = self.layout()
        splits = list(self.splits())
        spec = {name: rule.spec for name, rule in plan.rules.items()}

        def epoch(number: Any) -> Iterator[dict[str, Array]]:
            order = np.random.default_rng(int(number) % 2**63) if reading.shuffle else None
            return shuffled_blocks(self._blocks(splits, plan, order), order, reading.buffer)

        numbers = tf.data.Dataset.from_tensors(np.int64(0))
        if reading.shuffle:
            numbers = epoch_numbers(reading.seed)
        dataset = numbers.flat_map(
            lambda number: tf.data.Dataset.from_generator(
                epoch, args=(number,), output_signature=spec
            )
        ).prefetch(2)
        if not plan.images:
            return dataset.map(plan.arranged).rebatch(batch_size)

        def decoded(row: dict[str, Any]) -> Any:
            rules = plan.images.items()
            return plan.arranged(row | {n: decode_image(row[n], rule.shape) for n, rule in rules})

        images = dataset.unbatch().map(decoded, num_parallel_calls=usable_cores())
        return images.batch(batch_size)

    def _blocks(
        self, splits: Sequence[Any], plan: Layout, order: np.random.Generator | None
    ) -> Iterator[dict[str, Array]]:
        """Yield the rows of one epoch in blocks of arrays by column; ``order`` draws the splits."""
        if order is not None:
            splits = [splits[i] for i in order.permutation(len(splits))]
        for where, batch in self.read(splits, plan.columns):
            for name in plan.unfilled:
                if batch[name].null_count:
                    row = batch[name].is_valid().to_pylist().index(False)
                    count = f"{batch[name].null_count} nulls"
                    raise has_null(where, name, f"{count}, the first in row {row} of this part")
            if batch.num_rows:
                columns = plan.rules.items()
                yield {name: array_of(batch.column(name), rule, where) for name, rule in columns}


def has_null(where: str, name: str, received: str) -> UserError:
    """Return the error for a column with nulls that no rule fills."""
    return UserError(
        f"{where}: the column {name!r} has a null.",
        expected="a value in every row",
        received=received,
        fix=f"fill={{{name!r}: value}}, or drop such rows where the table is written",
    )


def shuffled_blocks(
    blocks: Iterator[dict[str, Array]], order: np.random.Generator | None, buffer: int
) -> Iterator[dict[str, Array]]:
    """Yield rows shuffled in buffers of at least ``buffer``; unchanged without an order."""
    if order is None:
        yield from blocks
        return
    buffered, rows = [], 0
    for block in blocks:
        buffered.append(block)
        rows += len(next(iter(block.values())))
        if rows >= buffer:
            yield from _shuffled(buffered, order)
            buffered, rows = [], 0
    if buffered:
        yield from _shuffled(buffered, order)


def _shuffled(
    blocks: list[dict[str, Array]], order: np.random.Generator
) -> Iterator[dict[str, Array]]:
    """Yield the rows of these blocks in a new order, in blocks of about ``BLOCK_BYTES``."""
    whole = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    blocks.clear()  # frees them beside their copy
    count = len(next(iter(whole.values())))
    rows = order.permutation(count)
    step = max(BLOCK_BYTES * count // max(sum(map(_bytes, whole.values())), 1), 1)
    for start in range(0, count, step):
        chosen = rows[start : start + step]
        yield {name: values[chosen] for name, values in whole.items()}


def _bytes(values: Array) -> int:
    """Return the approximate bytes of an array; those of texts are estimated by the first ones."""
    if values.dtype != object:
        return int(values.nbytes)
    return len(values) * sum(map(len, values[:64])) // min(len(values), 64)


def epoch_numbers(seed: int) -> Any:
    """Return a dataset of one number an epoch, which depends on ``seed`` and the epoch alone.

    ``Dataset.random`` would mix in the global seed, and a Python generator would slow down every
    later step: see ``tfopt/train/kept_memory.py``.
    """
    import tensorflow as tf

    spec = tf.TensorSpec((), tf.int64)
    endless = tf.raw_ops.RandomDatasetV2(
        seed=seed % 2**63,
        seed2=1,  # two zeros would stand for "any seed"
        seed_generator=tf.raw_ops.DummySeedGenerator(),
        rerandomize_each_iteration=True,
        output_types=[spec.dtype],
        output_shapes=[spec.shape],
    )
    return tf.data.experimental.from_variant(endless, spec).take(1)
