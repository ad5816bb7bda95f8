"""Read whatever Keras's ``fit`` takes as arrays in memory, or as a stream of batches.

By Keras's convention arrays (a tuple of them, each possibly nested in tuples and dicts) hold single
examples, and everything else yields batches. A source can be read again for every epoch.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfopt.data.signature import (
    BATCHES_FOR_SIGNATURE,
    batch_length,
    batch_signature,
    conform,
    holds_objects,
    standardised,
    tuples_for_lists,
)
from tfopt.data.sources.source import Reading, Source
from tfopt.data.stages import examples_batched
from tfopt.errors import UserError

if TYPE_CHECKING:
    from tfopt.job.parts import Data

Kind = Literal["arrays", "dataset", "pydataset", "generator", "source"]

UNKNOWN = -2
INFINITE = -1


@dataclass(frozen=True)
class Arrays:
    """Examples in memory: every leaf of the structure has ``examples`` rows."""

    structure: Any
    examples: int


@dataclass(frozen=True)
class Batches:
    """A tf.data.Dataset of batches; ``count`` is its cardinality."""

    dataset: Any
    count: int
    kind: Kind
    notes: tuple[str, ...] = ()
    rows: int | None = None
    """How many examples, where the source says so."""
    most_rows: int | None = None
    """How many examples at most, where it says no more."""
    size: int | None = None
    """Examples a batch, where they were asked for."""
    origin: str = "not looked at"
    """What tells the examples from others, for a cache of them."""

    @cached_property
    def static_batch(self) -> int | None:
        """Return the batch size where the source's own spec promises it."""
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
        """Return how many there are, where that follows without reading them or guessing."""
        if self.rows is not None or self.count <= 0:
            return self.rows
        if self.static_batch is not None:
            return self.count * self.static_batch
        return examples_batched(self.dataset)

    @cached_property
    def first(self) -> Any:
        """Return the first batch; reading it starts the source once."""
        for batch in self.dataset.take(1):
            return batch
        raise yields_nothing(self.kind)

    @cached_property
    def batch_size(self) -> int:
        """Return the size of every batch but the last: promised, or else that of the first."""
        return self.static_batch or batch_length(self.first)


def kind_of(data: Any) -> Kind:
    """Return which of the five kinds of data this is; refuse anything else."""
    import keras
    import tensorflow as tf

    if isinstance(data, Source):
        return "source"
    if isinstance(data, tf.data.Dataset):
        return "dataset"
    if isinstance(data, keras.utils.PyDataset):
        return "pydataset"
    if isinstance(data, tuple | dict) or _is_array(data):
        return "arrays"
    if isinstance(data, tf.distribute.DistributedDataset):
        raise _not_a_source(data, "give the dataset as it was before it was distributed")
    if hasattr(data, "__next__"):
        raise UserError(
            "A generator that is running already can be read only once.",
            expected="a function without arguments that returns a fresh one for every epoch",
            received=type(data).__name__,
            fix="pass the function itself: data=batches, not data=batches()",
        )
    if callable(data):
        return "generator"
    if isinstance(data, list):
        raise _not_a_source(data, "give (x, y) as a tuple; several inputs as ([a, b], y)")
    raise _not_a_source(data, None)


def _is_array(data: Any) -> bool:
    # A data frame has a dtype for every column, and none of its own.
    return hasattr(data, "shape") and (hasattr(data, "dtype") or hasattr(data, "__array__"))


def read_source(data: Any, *, shuffle_batches: bool = False, seed: int = 0) -> Arrays | Batches:
    """Return the arrays, or a dataset of batches.

    Args:
        data: Anything that ``fit`` takes for ``x``, with a generator as the function that makes it.
        shuffle_batches: Visit the batches of a PyDataset in an order of their own every epoch,
            as ``fit`` does; other sources are not affected.
        seed: Decides those orders.
    """
    kind = kind_of(data)
    if kind == "arrays":
        return _arrays(data)
    if kind == "dataset":
        return _dataset(data)
    if kind == "pydataset":
        return _py_dataset(data, shuffle_batches, seed)
    if kind == "source":
        return source_batches(data, DEFAULT_BATCH, Reading())
    return _generator(data)


# What ``fit`` takes for arrays.
DEFAULT_BATCH = 32


def source_batches(source: Source, batch_size: int, how: Reading, *, whole: bool = True) -> Batches:
    """Return a source of files or tables as batches of a size, of known length if it is whole.

    ``whole=False`` is for one that others read in parts, each of which knows no length.
    """
    import tensorflow as tf

    dataset = source.batches(batch_size, how)
    if how.share.count > 1:
        origin = f"{source.fingerprint()} {how.share}"
        return Batches(dataset, UNKNOWN, "source", size=batch_size, origin=origin)
    rows = source.count()
    if rows == 0:
        raise yields_nothing(type(source).__name__)
    count = rows // batch_size if how.drop_remainder else math.ceil(rows / batch_size)
    if whole:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(count))
    return Batches(
        dataset, count, "source", rows=rows, size=batch_size, origin=source.fingerprint()
    )


def describe_data(data: Data) -> str:
    """Return a job's data in words, with its length and shapes, as far as they show unread."""
    part = data.train
    kind = kind_of(part)
    if kind == "arrays":
        source = _arrays(part)
        extent = f"{source.examples} examples of {_shapes(source.structure, first=1)}"
    elif kind == "dataset":
        count = int(part.cardinality())
        many = {INFINITE: "endless", UNKNOWN: "some"}.get(count, str(count))
        extent = f"{many} batches of {_shapes(part.element_spec, first=0)}"
    elif kind == "source":
        extent = f"{part.count()} examples of {part!r}"
    elif kind == "pydataset":
        extent = "endless batches" if part.num_batches is None else f"{part.num_batches} batches"
    else:
        extent = "a generator"
    return f"{data.summary} ({extent})"


def _shapes(structure: Any, *, first: int) -> str:
    import tensorflow as tf

    def shape(leaf: Any) -> str:
        if not hasattr(leaf, "shape"):
            return type(leaf).__name__
        sizes = "x".join("?" if size is None else str(size) for size in leaf.shape[first:])
        return f"{tf.as_dtype(leaf.dtype).name}[{sizes}]"

    return ", ".join(shape(leaf) for leaf in tf.nest.flatten(structure))


def yields_nothing(what: str) -> UserError:
    """Return the error for a source without examples."""
    return UserError(
        f"The {what} yields nothing.",
        expected="at least one example",
        received="an empty source",
        fix="check its path, its filter and its split",
    )


def _arrays(data: Any) -> Arrays:
    import tensorflow as tf

    if isinstance(data, tuple):
        # fit(x, y, None) is fit(x, y).
        while data and data[-1] is None:
            data = data[:-1]
        if len(data) > 3:
            raise UserError(
                "The tuple of arrays has too many parts.",
                expected="(x,), (x, y) or (x, y, sample_weight)",
                received=f"{len(data)} parts",
                fix="several inputs belong together: ((a, b), y)",
            )
    structure = tuples_for_lists(data)
    leaves = tf.nest.flatten(structure)
    for leaf in leaves:
        _check_array(leaf)
    lengths = {int(leaf.shape[0]) for leaf in leaves}
    if len(lengths) > 1:
        raise UserError(
            "The arrays differ in length.",
            expected="one row an example in every array",
            received=f"{' and '.join(map(str, sorted(lengths)))} rows",
        )
    if not lengths or lengths == {0}:
        raise yields_nothing("tuple of arrays")
    return Arrays(tf.nest.map_structure(_as_fit_casts, structure), lengths.pop())


def _check_array(leaf: Any) -> None:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        if hasattr(leaf, "__array__"):  # a data frame, whose columns have types of their own
            return
        raise UserError(
            "Among the arrays is something else.",
            expected="NumPy arrays or tensors, in tuples and dicts",
            received=f"{type(leaf).__name__}: {leaf!r:.60}",
            fix="convert it with np.asarray(...)",
        )
    if len(leaf.shape) == 0:
        raise UserError(
            "Among the arrays is a single value.",
            expected="arrays whose first dimension counts the examples",
            received=f"a scalar {leaf.dtype}",
        )
    if holds_objects(leaf):
        raise UserError(
            "An array holds Python objects.",
            expected="numbers or text; every example of the same shape",
            received="dtype object",
            fix="convert it with np.asarray(..., dtype=...); pad examples of different lengths",
        )


def _as_fit_casts(leaf: Any) -> Any:
    import keras
    import tensorflow as tf

    if isinstance(leaf, tf.Tensor):
        floating, cast = leaf.dtype.is_floating, tf.cast
    else:
        leaf = np.asarray(leaf)
        floating, cast = np.issubdtype(leaf.dtype, np.floating), np.ndarray.astype
    different = floating and keras.backend.standardize_dtype(leaf.dtype) != keras.config.floatx()
    return cast(leaf, keras.config.floatx()) if different else leaf


def _dataset(data: Any) -> Batches:
    import tensorflow as tf

    for leaf in tf.nest.flatten(data.element_spec):
        if getattr(leaf, "shape", None) is not None and leaf.shape.rank == 0:
            raise UserError(
                "The dataset yields single examples, not batches.",
                expected="a batched dataset, as fit takes it",
                received=f"elements {data.element_spec}",
                fix="call .batch(...) on it; pipeline(batch_size=...) can change the size",
            )
    count = int(data.cardinality())
    if count == 0:
        raise yields_nothing("dataset")
    return Batches(data, count, "dataset")


def _generator(function: Callable[[], Any]) -> Batches:
    owner = "The generator function"
    running = started(function, owner)
    try:
        sample = [standardised(batch) for batch in itertools.islice(running, BATCHES_FOR_SIGNATURE)]
    finally:
        getattr(running, "close", lambda: None)()
    if not sample:
        raise yields_nothing("generator function")
    signature = batch_signature(sample, owner)

    def epoch() -> Iterator[Any]:
        for batch in function():
            yield conform(batch, signature, owner)

    return Batches(_from_generator(epoch, signature), UNKNOWN, "generator")


def started(function: Callable[[], Any], owner: str) -> Iterator[Any]:
    """Return a fresh iterator from a generator function."""
    try:
        return iter(function())
    except TypeError as error:
        raise UserError(
            f"{owner} cannot be started.",
            expected="a function without arguments that returns an iterator over batches",
            received=f"{getattr(function, '__name__', type(function).__name__)}: {error}",
            fix="bind its arguments: functools.partial(function, ...)",
        ) from error


def _py_dataset(data: Any, shuffle: bool, seed: int) -> Batches:
    count, owner = data.num_batches, type(data).__name__
    if count == 0:
        raise yields_nothing("PyDataset")
    number = BATCHES_FOR_SIGNATURE if count is None else min(count, BATCHES_FOR_SIGNATURE)
    signature = batch_signature([standardised(data[i]) for i in range(number)], owner)
    orders = _epoch_orders(count, seed) if shuffle and count is not None else None
    dataset = _from_generator(partial(_epoch, data, count, orders, signature), signature)
    notes: tuple[str, ...] = ()
    if data.use_multiprocessing:
        notes = (f"{owner}'s own worker processes are left off: its batches come from threads",)
    return Batches(dataset, INFINITE if count is None else count, "pydataset", notes)


def _epoch_orders(count: int, seed: int) -> Callable[[], Iterator[np.ndarray[Any, Any]]]:
    """Return a function that yields an order for each epoch, the n-th always the same."""
    epochs = itertools.count()

    def order() -> Iterator[np.ndarray[Any, Any]]:
        yield np.random.default_rng((abs(seed), int(seed < 0), next(epochs))).permutation(count)

    return order


def _epoch(data: Any, count: int | None, orders: Any, signature: Any) -> Iterator[Any]:
    """Yield one epoch, in which on_epoch_end comes before the last batch is handed out.

    ``fit`` knows the length and never asks for more, so nothing after the last batch would run.
    """
    numbers = (
        itertools.count() if count is None else iter(next(orders()) if orders else range(count))
    )
    data.on_epoch_begin()
    batches = _fetched(data, map(int, numbers), max(data.workers, 1))
    for position, batch in enumerate(batches, start=1):
        whole = conform(batch, signature, type(data).__name__)
        if position == count:
            batches.close()
            data.on_epoch_end()
        yield whole


def _fetched(data: Any, numbers: Iterator[int], workers: int) -> Generator[Any, None, None]:
    """Yield the batches in order, ``workers`` of them being made at a time."""
    if workers == 1:
        yield from (data[number] for number in numbers)
        return
    with ThreadPoolExecutor(workers) as pool:
        pending: list[Future[Any]] = []
        try:
            for number in numbers:
                pending.append(pool.submit(data.__getitem__, number))
                if len(pending) > workers:
                    yield pending.pop(0).result()
            while pending:
                yield pending.pop(0).result()
        finally:
            for future in pending:
                future.cancel()


def _from_generator(epoch: Callable[[], Iterator[Any]], signature: Any) -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_generator(epoch, output_signature=signature)


def _not_a_source(data: Any, fix: str | None) -> UserError:
    return UserError(
        "The examples are of a kind that cannot be read.",
        expected="a tuple of arrays, a tf.data.Dataset, a keras.utils.PyDataset, a source such as "
        "tfopt.data.Parquet, or a function returning a generator of batches",
        received=type(data).__name__,
        fix=fix,
    )
