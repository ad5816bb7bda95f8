"""How a dataset is shared out over the workers, and whether each example is then seen once.

Guarantees: files are shared out where there are enough of them, examples otherwise, and what
a dataset asks for by its own options is left; a dataset that each worker would shuffle otherwise is
refused, since its shares would overlap. Only what tf.data shows of a dataset is seen: a shuffle
inside a function of ``interleave`` or ``flat_map`` is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tfopt.errors import UserError

# Those by which TensorFlow's own sharding finds out that a dataset reads files.
_READERS = frozenset(
    name + version
    for name in ("FixedLengthRecordDataset", "RecordIODataset", "SSTableDataset")
    for version in ("", "V2")
) | {"ArrayRecordDataset", "TextLineDataset", "TFRecordDataset", "TFRecordDatasetV2"}
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})


@dataclass(frozen=True)
class Shares:
    """A dataset as it is to be distributed, and the rule."""

    dataset: Any
    policy: str
    files: int | None
    """How many files it reads; None: none, or that cannot be seen."""

    @property
    def of_known_length(self) -> bool:
        """Whether all workers together take as many steps as the dataset has batches."""
        return self.policy == "DATA"

    @property
    def note(self) -> str:
        """For people."""
        if self.policy == "FILE":
            return f"each worker reads its share of {self.files or 'the'} files"
        if self.policy == "DATA":
            return "each worker reads all and takes its share of every batch"
        return "each worker takes all of its own data"


def shared_out(dataset: Any, workers: int) -> Shares:
    """The dataset with the policy that is in force said in its options."""
    import tensorflow as tf

    policy, files = policy_of(dataset), _files(dataset)
    if policy == "AUTO":
        policy = "FILE" if files is not None and files >= workers else "DATA"
        options = tf.data.Options()
        chosen = getattr(tf.data.experimental.AutoShardPolicy, policy)
        options.experimental_distribute.auto_shard_policy = chosen
        dataset = dataset.with_options(options)
    _refuse_own_orders(dataset, policy)
    return Shares(dataset, policy, files)


def policy_of(dataset: Any) -> str:
    """The policy that the dataset's options name: AUTO, FILE, DATA, OFF ..."""
    return str(dataset.options().experimental_distribute.auto_shard_policy.name)


def shuffle_seeds(dataset: Any) -> list[list[int]]:
    """The seeds of each shuffle, from the last one on; zeros are a seed made up anew."""
    return [_seeds(each) for each in _shuffles(dataset)]


def all_of(dataset: Any) -> Iterator[Any]:
    """A dataset, and all that it is made from, sources last."""
    yield dataset
    for each in dataset._inputs():
        yield from all_of(each)


def is_names(dataset: Any) -> bool:
    """Whether each element is one string, as names of files are."""
    import tensorflow as tf

    spec = dataset.element_spec
    return bool(isinstance(spec, tf.TensorSpec) and spec.dtype == tf.string and spec.shape == ())


def reads_python(dataset: Any) -> bool:
    """Whether Python code makes some of what it yields."""
    # The functions one by one: a dataset's own graph holds all the data that it is made from.
    graphs = [
        wrapped.function.graph.as_graph_def()
        for each in all_of(dataset)
        for wrapped in each._functions()
    ]
    return any(_ops(graph) & _PYTHON for graph in graphs)


def _ops(graph: Any) -> set[str]:
    functions = graph.library.function
    return {node.op for node in graph.node} | {n.op for f in functions for n in f.node_def}


def _refuse_own_orders(dataset: Any, policy: str) -> None:
    if policy == "OFF":
        return
    for each in _shuffles(dataset):
        # Behind the files, a worker may have its own order of what is its own.
        before_reading = policy == "DATA" or is_names(each)
        if before_reading and not any(_seeds(each)):
            raise UserError(
                "The dataset is shuffled by a seed of each worker's own, before it is shared out: "
                "workers would see the same examples twice, and others never.",
                expected="the same order on every worker",
                received="shuffle() or list_files() without a seed, and no seed set for all",
                fix="give it a seed, or leave tf.random.set_seed as distribute() has set it",
            )


def _shuffles(dataset: Any) -> list[Any]:
    return [each for each in all_of(dataset) if type(each).__name__ == "_ShuffleDataset"]


def _seeds(shuffle: Any) -> list[int]:
    return [int(shuffle._seed), int(shuffle._seed2)]


def _files(dataset: Any) -> int | None:
    """How many file names the dataset begins with, where it reads files."""
    from tensorflow.core.framework import graph_pb2

    sources = [each for each in all_of(dataset) if not each._inputs()]
    if len(sources) != 1 or not is_names(sources[0]):
        return None
    if not _ops(graph_pb2.GraphDef.FromString(dataset._as_serialized_graph().numpy())) & _READERS:
        return None
    number = int(sources[0].cardinality())
    return number if number >= 0 else None
