"""Turn everything that Keras's ``fit`` takes into one type, ``Examples``.

As in Keras, arrays (a tuple of them, possibly nested in tuples and dicts) hold single examples, and
everything else yields batches. All of them can be read again for every epoch.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from tfopt.data.ahead import mapped_ahead
from tfopt.data.signature import (
    BATCHES_FOR_SIGNATURE,
    batch_length,
    batch_signature,
    check_leaves,
    conform,
    leaves,
    length_of,
    standardised,
    tuples_for_lists,
    yields_nothing,
)
from tfopt.data.sources.source import ReadOrder, Source
from tfopt.data.stages import examples_batched
from tfopt.errors import UserError

if TYPE_CHECKING:
    from tfopt.job.parts import Data

Kind = Literal["arrays", "dataset", "pydataset", "generator", "source"]

UNKNOWN = -2
INFINITE = -1
DEFAULT_BATCH = 32  # of ``fit``, for arrays


@dataclass(frozen=True)
class Arrays:
    """Examples in memory: every leaf of the structure has ``examples`` rows."""

    structure: Any
    examples: int


@dataclass(frozen=True)
class Batches:
    """A tf.data.Dataset of batches; ``count`` is their number, ``INFINITE`` or ``UNKNOWN``."""

    dataset: Any
    count: int
    kind: Kind
    notes: tuple[str, ...] = ()
    rows: int | None = None
    """The number of examples; None if the source does not know it."""
    size: int | None = None
    """The batch size that was requested; None for the source's."""
    origin: str = "not looked at"
    """A fingerprint of the examples, for a cache."""

    @cached_property
    def static_batch(self) -> int | None:
        """Return the batch size that the spec guarantees; None if it is open."""
        import tensorflow as tf

        if self.size is not None:
            return self.size
        sizes = {
            leaf.shape[0] if leaf.shape.rank else None
            for leaf in tf.nest.flatten(self.dataset.element_spec)
        }
        size = sizes.pop() if len(sizes) == 1 else None
        return None if size is None else int(size)

    @cached_property
    def examples(self) -> int | None:
        """Return the number of examples; None if only reading them would show it."""
        if self.rows is not None or self.count <= 0:
            return self.rows
        if self.static_batch is not None:
            return self.count * self.static_batch
        return examples_batched(self.dataset)

    @cached_property
    def first(self) -> Any:
        """Return the first batch, for which the source is started once."""
        for batch in self.dataset.take(1):
            return batch
        raise yields_nothing(f"The {self.kind}")

    @cached_property
    def batch_size(self) -> int:
        """Return the size of every batch but the last: of the spec, or of the first batch."""
        return self.static_batch or batch_length(self.first)


class Examples(ABC):
    """A part of a job's data: train, validation or test.

    Attributes:
        given: The user's object.
        kind: Its kind.
        keeps_batches: Whether it yields batches of a fixed size.
        count: The batches of one pass, ``INFINITE`` or ``UNKNOWN``.
    """

    kind: ClassVar[Kind]
    keeps_batches: ClassVar[bool] = True

    def __init__(self, given: Any) -> None:
        self.given = given

    @property
    def count(self) -> int:
        return UNKNOWN

    @abstractmethod
    def read(self, orders: int | None = None) -> Arrays | Batches:
        """Return the arrays, or a dataset of batches.

        Args:
            orders: The seed by which the batches of a PyDataset are visited in a new order every
                epoch, as ``fit`` does; None visits them in order.
        """

    def sample(self) -> Any:
        """Return the arrays, or the first batch; None if there is none."""
        source = self.read()
        assert isinstance(source, Batches)
        return next(iter(source.dataset.take(1)), None)

    def steps(self, batch: int | None) -> int | None:
        """Return the number of batches in one pass; None if only reading would show it."""
        return self.count if self.count > 0 else None

    def fit_arguments(self, batch: int | None) -> dict[str, Any]:
        """Return the arguments of ``fit``; only arrays take a batch size."""
        return {"x": self.given}

    def extent(self) -> str:
        """Return length and shapes in words, as far as they are known without reading."""
        number = {INFINITE: "endless", UNKNOWN: "some"}.get(self.count, str(self.count))
        return f"{number} batches"


def examples_of(data: Any) -> Examples:
    """Return data for ``fit`` as ``Examples``; refuse data that cannot be read."""
    import keras
    import tensorflow as tf

    if isinstance(data, Examples):
        return data
    if isinstance(data, Source):
        return SourceExamples(data)
    if isinstance(data, tf.data.Dataset):
        return DatasetExamples(data)
    if isinstance(data, keras.utils.PyDataset):
        return PyDatasetExamples(data)
    if isinstance(data, tuple | dict) or _is_array(data):
        return ArrayExamples(data)
    if isinstance(data, tf.distribute.DistributedDataset):
        raise _not_readable(data, "give the dataset from before it was distributed")
    if hasattr(data, "__next__"):
        raise UserError(
            "A running generator can be read only once.",
            expected="a function without arguments that returns a new generator for every epoch",
            received=type(data).__name__,
            fix="pass the function itself: data=batches, not data=batches()",
        )
    if callable(data):
        return GeneratorExamples(data)
    if isinstance(data, list):
        raise _not_readable(data, "give (x, y) as a tuple; several inputs as ([a, b], y)")
    # As those of grain, and a streamed data set of Hugging Face.
    if hasattr(data, "__iter__") and not isinstance(data, str):
        raise _not_readable(data, "where it yields batches of (x, y): data=lambda: iter(batches)")
    raise _not_readable(data, None)


def parts_of(data: Data) -> dict[str, Examples]:
    """Return the parts of a job's data by name, without those that are None."""
    given = {"train": data.train, "validation": data.validation, "test": data.test}
    return {name: examples_of(part) for name, part in given.items() if part is not None}


def _is_array(data: Any) -> bool:
    # A data frame has dtypes only for its columns.
    return hasattr(data, "shape") and (hasattr(data, "dtype") or hasattr(data, "__array__"))


def _not_readable(data: Any, fix: str | None) -> UserError:
    return UserError(
        "Data of this type cannot be read.",
        expected="a tuple of arrays, a tf.data.Dataset, a keras.utils.PyDataset, a source such as "
        "tfopt.data.Parquet, or a function returning a generator of batches",
        received=type(data).__name__,
        fix=fix,
    )


class ArrayExamples(Examples):
    """Arrays: x, (x, y) or (x, y, sample_weight), each possibly nested."""

    kind = "arrays"
    keeps_batches = False

    @cached_property
    def structure(self) -> Any:
        """Return the arrays in tuples and dicts."""
        data = self.given
        if isinstance(data, tuple):
            # fit(x, y, None) is fit(x, y).
            while data and data[-1] is None:
                data = data[:-1]
            if len(data) > 3:
                raise UserError(
                    "The tuple of arrays has too many parts.",
                    expected="(x,), (x, y) or (x, y, sample_weight)",
                    received=f"{len(data)} parts",
                    fix="give several inputs as a tuple: ((a, b), y)",
                )
        structure = tuples_for_lists(data)
        check_leaves(leaves(structure), "The data")
        return structure

    @cached_property
    def rows(self) -> int:
        """Return the number of examples."""
        return length_of(leaves(self.structure), "The data")

    def read(self, orders: int | None = None) -> Arrays:
        import tensorflow as tf

        return Arrays(tf.nest.map_structure(_as_fit_casts, self.structure), self.rows)

    def sample(self) -> Any:
        return self.structure

    def steps(self, batch: int | None) -> int:
        return math.ceil(self.rows / (batch or DEFAULT_BATCH))

    def extent(self) -> str:
        return f"{self.rows} examples of {_shapes(self.structure, first=1)}"

    def fit_arguments(self, batch: int | None) -> dict[str, Any]:
        parts = self.given if isinstance(self.given, tuple) else (self.given,)
        named = dict(zip(("x", "y", "sample_weight"), parts, strict=False))
        return {**named, "batch_size": batch}


def _as_fit_casts(leaf: Any) -> Any:
    import keras
    import tensorflow as tf

    if isinstance(leaf, tf.Tensor):
        floating, cast = leaf.dtype.is_floating, tf.cast
    else:
        given, leaf = type(leaf).__name__, np.asarray(leaf)
        if not leaf.ndim:  # NumPy takes what it cannot read as one object
            raise UserError(
                f"A {given} cannot be cut into batches.",
                expected="NumPy arrays, tensors or data frames",
                received=given,
                fix="give a tf.data.Dataset, as tf.data.Dataset.from_tensor_slices((x, y))"
                ".batch(32), or a dense array",
            )
        floating, cast = np.issubdtype(leaf.dtype, np.floating), np.ndarray.astype
    different = floating and keras.backend.standardize_dtype(leaf.dtype) != keras.config.floatx()
    return cast(leaf, keras.config.floatx()) if different else leaf


class DatasetExamples(Examples):
    """A ``tf.data.Dataset`` of batches."""

    kind = "dataset"

    @property
    def count(self) -> int:
        return int(self.given.cardinality())

    def read(self, orders: int | None = None) -> Batches:
        self._require_batches()
        if self.count == 0:
            raise yields_nothing("The dataset")
        return Batches(self.given, self.count, "dataset")

    def _require_batches(self) -> None:
        import tensorflow as tf

        spec = self.given.element_spec
        for leaf in tf.nest.flatten(spec):
            if getattr(leaf, "shape", None) is not None and leaf.shape.rank == 0:
                raise UserError(
                    "The dataset yields single examples, not batches.",
                    expected="a batched dataset, as fit takes it",
                    received=f"elements {spec}",
                    fix="call .batch(...) on it; pipeline(batch_size=...) can change the size",
                )

    def sample(self) -> Any:
        self._require_batches()
        return next(iter(self.given.take(1)), None)

    def extent(self) -> str:
        return f"{super().extent()} of {_shapes(self.given.element_spec, first=0)}"


def source_batches(source: Source, batch_size: int, reading: ReadOrder) -> Batches:
    """Return the batches of a source of files or tables."""
    dataset, rows = source.batches(batch_size, reading), source.count()
    if rows == 0:
        raise yields_nothing(f"The {type(source).__name__}")
    count, origin = math.ceil(rows / batch_size), source.fingerprint()
    return Batches(dataset, count, "source", rows=rows, size=batch_size, origin=origin)


class SourceExamples(Examples):
    """A source of files or tables, read in batches of any size."""

    kind = "source"
    keeps_batches = False

    def read(self, orders: int | None = None) -> Batches:
        return source_batches(self.given, DEFAULT_BATCH, ReadOrder())

    def steps(self, batch: int | None) -> int:
        return math.ceil(int(self.given.count()) / (batch or DEFAULT_BATCH))

    def extent(self) -> str:
        return f"{self.given.count()} examples of {self.given!r}"


class GeneratorExamples(Examples):
    """A function that returns a generator of batches."""

    kind = "generator"

    @cached_property
    def _first(self) -> list[Any]:
        """Return the first batches, which give the signature."""
        try:
            running = iter(self.given())
        except TypeError as error:
            name = getattr(self.given, "__name__", type(self.given).__name__)
            raise UserError(
                "The generator function cannot be started.",
                expected="a function without arguments that returns an iterator over batches",
                received=f"{name}: {error}",
                fix="bind its arguments: functools.partial(function, ...)",
            ) from error
        try:
            return [standardised(batch) for batch in islice(running, BATCHES_FOR_SIGNATURE)]
        finally:
            getattr(running, "close", lambda: None)()

    def read(self, orders: int | None = None) -> Batches:
        import tensorflow as tf

        owner = "The generator function"
        if not self._first:
            raise yields_nothing(owner)
        signature = batch_signature(self._first, owner)

        def epoch() -> Iterator[Any]:
            for batch in self.given():
                yield conform(batch, signature, owner)

        dataset = tf.data.Dataset.from_generator(epoch, output_signature=signature)
        return Batches(dataset, UNKNOWN, "generator")

    def sample(self) -> Any:
        return next(iter(self._first), None)

    def extent(self) -> str:
        return "a generator"


class PyDatasetExamples(Examples):
    """A ``keras.utils.PyDataset``, read by threads."""

    kind = "pydataset"

    @property
    def count(self) -> int:
        batches = self.given.num_batches
        return INFINITE if batches is None else int(batches)

    @cached_property
    def _first(self) -> list[Any]:
        number = BATCHES_FOR_SIGNATURE if self.count == INFINITE else self.count
        return [standardised(self.given[at]) for at in range(min(number, BATCHES_FOR_SIGNATURE))]

    def read(self, orders: int | None = None) -> Batches:
        import tensorflow as tf

        data, count, owner = self.given, self.count, type(self.given).__name__
        if not self._first:
            raise yields_nothing(owner)
        signature, epochs = batch_signature(self._first, owner), itertools.count()

        def epoch() -> Iterator[Any]:
            numbers: Iterable[int] = range(count) if count != INFINITE else itertools.count()
            if orders is not None and count != INFINITE:
                seeds = (abs(orders), int(orders < 0), next(epochs))
                numbers = map(int, np.random.default_rng(seeds).permutation(count))
            data.on_epoch_begin()
            batches = (data[number] for number in numbers)
            if data.workers > 1:
                batches = mapped_ahead(data.__getitem__, numbers, data.workers)
            for position, batch in enumerate(batches, start=1):
                copy = conform(batch, signature, owner)
                if position == count:  # ``fit`` knows it, and does not come back after the last
                    batches.close()
                    data.on_epoch_end()
                yield copy

        dataset = tf.data.Dataset.from_generator(epoch, output_signature=signature)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
        notes: tuple[str, ...] = ()
        if data.use_multiprocessing:
            notes = (f"threads in place of {owner}'s worker processes make its batches",)
        return Batches(dataset, count, "pydataset", notes)

    def sample(self) -> Any:
        return next(iter(self._first), None)


# In words


def describe_data(data: Data) -> str:
    """Return a job's data in words, with length and shapes as far as they are known."""
    return f"{data.summary} ({examples_of(data.train).extent()})"


def batch_shapes(data: Any, batch: int) -> str:
    """Return the shapes of a batch of examples in words: "float32[32x28x28x1], int64[32]"."""
    spec = getattr(data, "element_spec", None)
    if spec is None:
        examples = examples_of(data)
        if not isinstance(examples, ArrayExamples):
            return f"{batch} examples"
        spec = examples.structure
    return _shapes(spec, first=1, lead=(batch,))


def vary_in_shape(data: Any) -> bool:
    """Return whether the batches of a dataset differ in more than their number of examples."""
    import tensorflow as tf

    leaves_of_batch = tf.nest.flatten(getattr(data, "element_spec", ()))
    shapes = [leaf.shape for leaf in leaves_of_batch if hasattr(leaf, "shape")]
    return any(shape.rank is None or None in shape[1:] for shape in shapes)


def _shapes(structure: Any, *, first: int, lead: tuple[int, ...] = ()) -> str:
    import tensorflow as tf

    def shape(leaf: Any) -> str:
        if not hasattr(leaf, "shape"):
            return type(leaf).__name__
        given = (*lead, *leaf.shape[first:])
        sizes = "x".join("?" if size is None else str(size) for size in given)
        return f"{tf.as_dtype(leaf.dtype).name}[{sizes}]"

    return ", ".join(shape(leaf) for leaf in tf.nest.flatten(structure))
