"""Prepare batches in other processes or on other hosts, by ``tf.data.experimental.service``.

A dispatcher distributes the first elements of a pipeline, mostly file names, to data workers, which
read, map and batch; the training takes their batches in the order in which they are ready.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tfopt.data.plan import Plan
from tfopt.data.stages import PYTHON_OPERATIONS, dataset_graph, operations_of
from tfopt.errors import UserError, first_line


def served(
    dataset: Any, plan: Plan, batch_size: int, *, shuffle: bool, seed: int
) -> tuple[Any, list[str]]:
    """Return batches of this size that the plan's data workers prepare, and notes.

    They are shuffled here by the seed, if at all: the order in which they arrive varies.
    """
    import tensorflow as tf

    address, drops = plan.service, plan.options.drop_remainder
    assert address is not None
    _require_portable(dataset)
    _require_answer(address)
    service = tf.data.experimental.service
    batches = dataset.apply(service.distribute(service.ShardingPolicy.DYNAMIC, address))
    notes = [f"prepared by the data service at {address}, in the order in which batches are ready"]
    if not shuffle:
        return batches.rebatch(batch_size, drop_remainder=drops), notes
    buffer = plan.options.buffer
    notes.append(f"shuffled among {buffer:,} examples")
    batches = batches.unbatch().shuffle(buffer, seed=seed, reshuffle_each_iteration=True)
    return batches.batch(batch_size, drop_remainder=drops), notes


def _require_portable(dataset: Any) -> None:
    """Refuse a pipeline that data workers cannot run, or run with lost or repeated examples."""
    operations = operations_of(dataset_graph(dataset))
    # In TensorFlow 2.21 each worker reads the whole of what is shuffled before an interleave, and
    # of zipped datasets now and then one element is lost.
    refused = sorted(op for op in operations if op.startswith(("ShuffleDataset", "ZipDataset")))
    if refused or operations & PYTHON_OPERATIONS:
        raise UserError(
            "A data service repeats or loses examples of this pipeline, or cannot run it.",
            expected="one source that TensorFlow reads (TFRecord, TFDS, files), in order, and "
            "functions of TensorFlow operations",
            received=", ".join(refused) or "a generator, a table or a Python function",
            fix="replace shuffle() by pipeline(shuffle=True), which shuffles behind the service; "
            "write zipped data and that of Python as TFRecord, by tf.io.TFRecordWriter",
        )


def _require_answer(address: str) -> None:
    """Refuse an address where nothing listens."""
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
    """Run a dispatcher and data workers in threads of this process; yield the address.

    Args:
        workers: The number of data workers.
        port: Port of the dispatcher; 0: a free one.
        host: The name by which others reach this host; None: its host name.
    """
    import tensorflow as tf

    service = tf.data.experimental.service
    try:
        # TensorFlow would share a used port, and each service would get some of the calls.
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
    port, host = int(dispatcher.target.rpartition(":")[2]), host or socket.gethostname()
    config = service.WorkerConfig(f"localhost:{port}", f"{host}:%port%")  # its own, a free one
    servers = [service.WorkerServer(config) for _ in range(workers)]
    yield f"grpc://{host}:{port}"
    del servers
