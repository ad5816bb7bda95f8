"""Build the dataset that ``fit`` reads from a source and a plan.

Every example comes once an epoch. The order is map, cache, shuffle, batch, map_batch, augment,
prefetch. The notes list what the pipeline does and which settings had no effect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from tfopt.data.augment import in_input, random_layers, require_random
from tfopt.data.caching import (
    cache_origin,
    cached_in_file,
    cached_in_memory,
    looking_ahead,
    size_in_memory,
)
from tfopt.data.fit_data import (
    DEFAULT_BATCH,
    INFINITE,
    Arrays,
    Batches,
    Examples,
    SourceExamples,
    examples_of,
    source_batches,
)
from tfopt.data.host_memory import require_fits
from tfopt.data.plan import Plan
from tfopt.data.service import served
from tfopt.data.sources.source import ReadOrder
from tfopt.data.sources.table_source import epoch_numbers
from tfopt.errors import CannotCombine, UserError
from tfopt.job.cgroup import usable_cores


def build(plan: Plan, data: Any, *, seed: int, endless: bool = False) -> tuple[Any, list[str]]:
    """Return the dataset, and notes that describe it.

    ``endless`` repeats it, for a ``fit`` with ``steps_per_epoch``.
    """
    import tensorflow as tf

    flow = _Flow(plan, seed)
    steps: int | None
    # The pipeline belongs to the host: on a GPU machine constants would go to the GPU.
    with tf.device("CPU:0"):
        source = flow.read(examples_of(data))
        if isinstance(source, Arrays):
            dataset, steps = flow.from_arrays(source)
        else:
            dataset, steps = flow.from_batches(source)
        if plan.map_batch is not None:
            dataset = flow.mapped(dataset, plan.map_batch)
            flow.notes.append("map_batch on whole batches")
        if plan.augment is not None:
            dataset = flow.augmented(dataset)
        if isinstance(source, Batches) and plan.service is not None:
            dataset = flow.served(dataset, source)
        if steps is not None and int(dataset.cardinality()) != steps:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
        if endless and steps != INFINITE:
            dataset = dataset.repeat()
            flow.notes.append("repeated, for steps_per_epoch")
        dataset = untuned(flow.prefetched(dataset), _options(plan))
    return dataset, flow.notes


def untuned(dataset: Any, options: Any = None) -> Any:
    """Return a dataset with these options and no autotuner, for which its iterator may wait.

    The tuner sleeps between its rounds, each time twice as long, and in TensorFlow 2.21 it may miss
    that its iterator ends: the end may take as long as the iterator has lived.
    """
    import tensorflow as tf

    options = tf.data.Options() if options is None else options
    options.autotune.enabled = False
    return dataset.with_options(options)


@dataclass
class _Flow:
    """The stages of a plan's pipeline, and the notes on those that were built."""

    plan: Plan
    seed: int
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        # The workers of a data service have a part of the examples each: none drops any.
        self.drop_remainder = self.plan.options.drop_remainder and self.plan.service is None

    # The source

    def read(self, examples: Examples) -> Arrays | Batches:
        """Return the arrays or batches, in new orders if neither a plan nor a cache forbids it."""
        plan, buffer = self.plan, self.plan.options.buffer
        # A cache would freeze the first order.
        shuffle = plan.shuffle is not False and plan.cache is None
        if not isinstance(examples, SourceExamples):
            return examples.read(self.seed if shuffle else None)
        shuffle = shuffle and plan.service is None
        self.notes.append(f"read from {type(examples.given).__name__}")
        if shuffle:
            self.notes.append(f"a new order every epoch, among {buffer:,} examples")
        reading = ReadOrder(shuffle=shuffle, buffer=buffer, seed=self.seed)
        return source_batches(examples.given, plan.batch_size or DEFAULT_BATCH, reading)

    # Arrays

    def from_arrays(self, source: Arrays) -> tuple[Any, int]:
        """Return batches of the arrays, and their number."""
        import tensorflow as tf

        plan, count = self.plan, source.examples
        if plan.service is not None:
            raise CannotCombine(
                "A data service cannot read arrays, which are in this process's memory.",
                expected="files: TFRecord, images, TFDS, or a tf.data.Dataset of files",
                fix="write the arrays as TFRecord and read those, or drop service=",
            )
        batch = plan.batch_size or DEFAULT_BATCH
        # Where it drops no example, the batch size becomes static.
        self.drop_remainder |= count % batch == 0
        _require_count_agrees(plan, count)
        shuffle = plan.shuffle is not False
        self.notes.append(f"{count:,} examples in batches of {batch}")
        if plan.map is not None and plan.cache is not None:
            dataset = self._mapped_examples(tf.data.Dataset.from_tensor_slices(source.structure))
            dataset = self._cached_and_batched(dataset, source, batch, count, shuffle)
        else:
            if plan.cache is not None:
                self.notes.append("nothing to cache: arrays without map are in memory already")
            if shuffle:
                self.notes.append("a new order every epoch")
            dataset = self._gathered(source, batch, shuffle)
        return dataset, self._steps(count, batch)

    def _gathered(self, source: Arrays, batch: int, shuffle: bool) -> Any:
        """Gather each batch by its indices, since single examples cost more than a small step."""
        import tensorflow as tf

        arrays = tf.nest.map_structure(tf.convert_to_tensor, source.structure)

        def rows(indices: Any) -> Any:
            return tf.nest.map_structure(lambda array: tf.gather(array, indices), arrays)

        order = self._order(source.examples, shuffle)
        if self.plan.map is None:
            batches = _in_batches(order, source.examples, batch, self.drop_remainder)
            return self.mapped(batches, rows)
        examples = order.flat_map(tf.data.Dataset.from_tensor_slices)
        dataset = self._mapped_examples(self.mapped(examples, rows))
        return dataset.batch(batch, drop_remainder=self.drop_remainder)

    def _order(self, count: int, shuffle: bool) -> Any:
        """Return a dataset that yields one vector of indices an epoch."""
        import tensorflow as tf

        numbers = tf.range(count, dtype=tf.int64)
        if not shuffle:
            return tf.data.Dataset.from_tensors(numbers)
        return epoch_numbers(self.seed).map(
            lambda seed: tf.random.experimental.stateless_shuffle(numbers, tf.stack([seed, 0]))
        )

    # Batches

    def from_batches(self, source: Batches) -> tuple[Any, int | None]:
        """Return the batches of a source, and their number; None if it is unknown."""
        plan = self.plan
        self.notes.extend(source.notes)
        exact, bound = self._example_counts(source)
        if plan.cache is not None and source.count == INFINITE:
            raise UserError(
                "An endless source cannot be cached.",
                expected="a finite source: a cache is complete only at its end",
                received=f"an endless {source.kind}",
                fix="take(...) part of it, or drop cache=",
            )
        shuffle = self._shuffles_examples(source)
        is_pydataset = source.kind == "pydataset"
        if plan.map is None and (is_pydataset or not shuffle):
            return self._whole_batches(source, exact, bound)
        batch = plan.batch_size or source.batch_size
        self.notes.append(f"taken apart into examples, in new batches of {batch}")
        dataset = source.dataset.unbatch()
        if plan.map is not None:
            dataset = self._mapped_examples(dataset)
        shuffle |= is_pydataset and plan.shuffle is None and plan.cache is not None
        dataset = self._cached_and_batched(dataset, source, batch, bound, shuffle)
        return dataset, self._steps_of(source, exact, batch)

    def _shuffles_examples(self, source: Batches) -> bool:
        """Return whether examples are shuffled here, neither while read nor behind the service."""
        if self.plan.service is not None:
            return False
        if source.kind == "source":
            return self.plan.shuffle is not False and self.plan.cache is not None
        return self.plan.shuffle is True

    def _whole_batches(
        self, source: Batches, exact: int | None, bound: int | None
    ) -> tuple[Any, int | None]:
        """Keep whole batches, which is cheaper than unbatching; only their size may change."""
        plan, dataset = self.plan, source.dataset
        in_any_order = source.kind == "pydataset" and plan.shuffle is not False
        if plan.cache is not None:
            dataset = self._cached(dataset, source, bound, "batches")
            if in_any_order:
                buffer = max(plan.options.buffer // source.batch_size, 2)
                dataset = dataset.shuffle(buffer, seed=self.seed, reshuffle_each_iteration=True)
            else:
                dataset = looking_ahead(dataset)
                self.notes.append("in the cached order every epoch")
        if in_any_order:
            self.notes.append("its batches in a new order every epoch")
        batch = plan.batch_size or source.batch_size
        if plan.options.drop_remainder or batch != source.batch_size:
            self.notes.append(f"batches of {batch} instead of {source.batch_size}")
            dataset = dataset.rebatch(batch, drop_remainder=self.drop_remainder)
            return dataset, self._steps_of(source, exact, batch)
        self.notes.append(f"batches as the {source.kind} yields them")
        return dataset, source.count if source.count > 0 else self._steps_of(source, exact, batch)

    def _example_counts(self, source: Batches) -> tuple[int | None, int | None]:
        """Return the exact number of examples, and an upper bound of it."""
        given, bound = self.plan.examples, None
        if source.count > 0 and (self.plan.cache is not None or source.static_batch):
            bound = source.count * source.batch_size
        exact = source.examples
        if exact is not None:
            _require_count_agrees(self.plan, exact)
        return given or exact, given or exact or bound

    # Stages

    def mapped(self, dataset: Any, function: Any) -> Any:
        """Call the function for each element, in parallel."""
        calls, order = usable_cores(), self.plan.deterministic
        return dataset.map(function, num_parallel_calls=calls, deterministic=order)

    def _mapped_examples(self, dataset: Any) -> Any:
        """Call the plan's ``map`` for each example."""
        self.notes.append("map on single examples")
        return self.mapped(dataset, self.plan.map)

    def augmented(self, dataset: Any) -> Any:
        """Apply Keras's random layers to whole batches."""
        layers = random_layers(self.plan.augment)
        for batch in dataset.take(1):
            require_random(layers, batch[0] if isinstance(batch, tuple) else batch)
        self.notes.append(f"augmented by {', '.join(type(layer).__name__ for layer in layers)}")
        return self.mapped(dataset, in_input(layers))

    def served(self, dataset: Any, source: Batches) -> Any:
        """Let a data service prepare the batches."""
        plan = self.plan
        shuffle = plan.shuffle is True or (source.kind == "source" and plan.shuffle is None)
        batch = plan.batch_size or source.batch_size
        dataset, notes = served(dataset, plan, batch, shuffle=shuffle, seed=self.seed)
        self.notes.extend(notes)
        return dataset

    def prefetched(self, dataset: Any) -> Any:
        """Keep batches ready, if the plan says so."""
        import tensorflow as tf

        ahead = self.plan.prefetch
        if not ahead:
            return dataset
        self.notes.append("prefetched" if ahead == "auto" else f"prefetched by {ahead}")
        return dataset.prefetch(tf.data.AUTOTUNE if ahead == "auto" else ahead)

    def _cached_and_batched(
        self, dataset: Any, source: Arrays | Batches, batch: int, bound: int | None, shuffle: bool
    ) -> Any:
        """Cache and shuffle single examples, and batch them."""
        plan = self.plan
        if not shuffle:
            dataset = dataset.batch(batch, drop_remainder=self.drop_remainder)
            if plan.cache is None:
                return dataset
            self.notes.append("in the same order every epoch")
            return looking_ahead(self._cached(dataset, source, bound, f"batches of {batch}"))
        buffer = plan.options.buffer
        if plan.cache is not None:
            dataset = self._cached(dataset, source, bound, "examples")
            if plan.cache_file is None and bound is not None:
                # The buffer refers to the cached examples and copies none.
                buffer = max(bound, 2)
        else:
            held = min(buffer, bound or buffer)
            size, detail = size_in_memory(dataset, held, per_example=True)
            fix = "PipelineOptions(buffer=...) with fewer examples"
            require_fits(size, what="The shuffle buffer", detail=detail, fix=fix)
        whole = bound is not None and buffer >= bound
        self.notes.append(
            "a new order every epoch" if whole else f"shuffled among {buffer:,} examples"
        )
        dataset = dataset.shuffle(buffer, seed=self.seed, reshuffle_each_iteration=True)
        return dataset.batch(batch, drop_remainder=self.drop_remainder)

    def _cached(self, dataset: Any, source: Any, count: int | None, unit: str) -> Any:
        path, single = self.plan.cache_file, unit == "examples"
        if path is None:
            dataset, note = cached_in_memory(dataset, source, count, per_example=single)
        else:
            origin = cache_origin(self.plan, source, dataset, unit)
            dataset, note = cached_in_file(dataset, path, origin, count, per_example=single)
        self.notes.append(note)
        return dataset

    def _steps_of(self, source: Batches, exact: int | None, batch: int) -> int | None:
        """Return the number of batches of a source; None if it is unknown."""
        if source.count == INFINITE:
            return INFINITE
        return None if exact is None else self._steps(exact, batch)

    def _steps(self, examples: int, batch: int) -> int:
        if not self.plan.options.drop_remainder:
            return math.ceil(examples / batch)
        if examples < batch:
            raise UserError(
                "Every batch would be dropped.",
                expected=f"at least one whole batch of {batch}",
                received=f"{examples} examples and drop_remainder=True",
                fix="use a smaller batch_size, or keep the remainder (FusedAttention drops it)",
            )
        return examples // batch


def _in_batches(order: Any, count: int, batch: int, drop: bool) -> Any:
    import tensorflow as tf

    starts = tf.range(0, count - batch + 1 if drop else count, batch, dtype=tf.int64)

    def cut(indices: Any) -> Any:
        slices = tf.data.Dataset.from_tensor_slices(starts)
        return slices.map(lambda start: indices[start : start + batch])

    batches = order.flat_map(cut)
    return batches.map(lambda indices: tf.ensure_shape(indices, (batch,))) if drop else batches


def _require_count_agrees(plan: Plan, count: int) -> None:
    if plan.examples not in (None, count):
        raise UserError(
            "examples= contradicts the data.",
            expected=f"{count:,}, the number of examples in the source",
            received=f"examples={plan.examples:,}",
            fix="leave it out: it is for sources of unknown length",
        )


def _options(plan: Plan) -> Any:
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = plan.deterministic
    policy = tf.data.experimental.AutoShardPolicy[plan.options.autoshard.upper()]
    options.experimental_distribute.auto_shard_policy = policy
    return options
