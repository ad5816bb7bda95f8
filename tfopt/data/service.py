"""Prepare batches in other processes or on other hosts, by tf.data's own service.

A dispatcher shares out what a pipeline's source begins with (file names, most of all) to data
workers, which read, map and batch; the training takes their batches as they come.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tfopt.data.stages import PYTHON_OPERATIONS, operations_of
from tfopt.errors import UserError, first_line


def served(
    dataset: Any, address: str, batch_size: int, *, examples: int | None, buffer: int, seed: int
) -> tuple[Any, list[str]]:
    """Return the examples that data workers prepare, in batches of a size, and notes.

    Args:
        dataset: Batches of any size.
        address: The dispatcher's.
        batch_size: Examples a batch.
        examples: How many there are, each once an epoch; None: nobody knows.
        buffer: Examples among which they are shuffled here; 0: they stay as they come.
        seed: Decides the shuffling, not the order in which they come.
    """
    import tensorflow as tf

    _require_portable(dataset)
    _require_answer(address)
    made = dataset.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            address,
        )
    )
    notes = [f"prepared by the data service at {address}, in the order in which it is done"]
    if buffer:
        notes.append(f"shuffled among {buffer:,} examples")
        made = made.unbatch().shuffle(buffer, seed=seed, reshuffle_each_iteration=True)
        made = made.batch(batch_size)
    else:
        made = made.rebatch(batch_size)
    if examples is not None:
        length = tf.data.experimental.assert_cardinality(-(-examples // batch_size))
        made = made.apply(length)
    return made, notes


def require_service(service: object) -> None:
    """Refuse what is no address."""
    if service is not None and not (isinstance(service, str) and service.startswith("grpc://")):
        raise UserError(
            "service is no address of a data service.",
            expected='"grpc://host:port" as `tfopt launch --data-workers` prints it',
            received=repr(service),
        )


def _require_portable(dataset: Any) -> None:
    """Refuse a pipeline that data workers cannot run, or of which they lose or repeat examples."""
    import tensorflow as tf

    content = tf.raw_ops.DatasetToGraphV2(input_dataset=dataset._variant_tensor).numpy()
    operations = operations_of(tf.compat.v1.GraphDef.FromString(content))
    # In TensorFlow 2.21 each worker reads the whole of what is shuffled before an interleave, and
    # of zipped datasets now and then one element is lost.
    refused = sorted(op for op in operations if op.startswith(("ShuffleDataset", "ZipDataset")))
    if refused or operations & PYTHON_OPERATIONS:
        raise UserError(
            "A data service repeats or loses examples of this pipeline, or cannot run it.",
            expected="one source that TensorFlow reads (TFRecord, TFDS, files), in order, and "
            "functions of its operations",
            received=", ".join(refused) or "a generator, a table or a function of Python",
            fix="leave out shuffle(): pipeline(shuffle=True) shuffles what comes; write what is "
            "zipped or made by Python as TFRecord, by tf.io.TFRecordWriter",
        )


def _require_answer(address: str) -> None:
    """Refuse a service that is not there."""
    parts = urlsplit(address)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), 10.0):
            pass
    except (OSError, ValueError) as error:
        raise UserError(
            f"No data service answers at {address}.",
            expected="the address that `tfopt launch --data-workers` prints",
            received=str(error),
        ) from error


@contextmanager
def serving(workers: int, *, port: int = 0, host: str | None = None) -> Iterator[str]:
    """Run a dispatcher and data workers by TensorFlow's threads; yield the address.

    Args:
        workers: How many data workers.
        port: Where the dispatcher listens; 0: a free one.
        host: By which name others reach this host; None: its own.
    """
    import tensorflow as tf

    service = tf.data.experimental.service
    try:
        # TensorFlow would share the port with another service, and each get some of the calls.
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("", port))
        dispatcher = service.DispatchServer(service.DispatcherConfig(port=port))
    except (OSError, OverflowError, tf.errors.OpError) as error:
        raise UserError(
            f"The data service cannot listen on port {port}.",
            expected="a port that is free, or 0",
            received=first_line(error),
        ) from error
    at, host = dispatcher.target.rpartition(":")[2], host or socket.gethostname()
    running = []
    for _ in range(workers):
        with socket.socket() as free:
            free.bind(("", 0))
            own = free.getsockname()[1]
        config = service.WorkerConfig(f"localhost:{at}", f"{host}:{own}", port=own)
        running.append(service.WorkerServer(config))
    yield f"grpc://{host}:{at}"
    del running
