"""Prepare batches in other processes or on other hosts, by tf.data's own service.

A dispatcher shares out what a pipeline's source begins with (file names, most of all) to data
workers, which read, map and batch; the training takes their batches as they come.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any
from urllib.parse import urlsplit

from tfopt.data.stages import PYTHON_OPERATIONS, operations_of
from tfopt.errors import UserError, first_line
from tfopt.job.cluster_place import place_in_cluster

VARIABLE = "TFOPT_DATA_SERVICE"
"""Where ``tfopt launch --data-workers`` leaves the dispatcher's address."""
_ANSWERS_S = 10.0
_HEARTBEAT_MS = 1_000
_MISSING_MS = 10_000
_ENDS_S = 10.0
_HERE = ("localhost", "127.0.0.1", "::1")

_log = logging.getLogger("tfopt")


# The training's side.


def served(
    dataset: Any, service: str, batch_size: int, *, examples: int | None, buffer: int, seed: int
) -> tuple[Any, list[str]]:
    """Return the examples that data workers prepare, in batches of a size, and notes.

    Each example comes once an epoch. Those that a worker held when it was lost may be missing in
    that epoch: as many of another pass take their place, and a warning says how many.

    Args:
        dataset: Batches of any size.
        service: The dispatcher's address, or "auto".
        batch_size: Examples a batch.
        examples: How many there are; None: nobody knows, and none take another's place.
        buffer: Examples among which they are shuffled here; 0: they stay as they come.
        seed: Decides the shuffling, not the order in which they come.
    """
    import tensorflow as tf

    address = _address(service)
    _require_portable(dataset)
    host = urlsplit(address).hostname
    made = dataset.apply(
        tf.data.experimental.service.distribute(
            tf.data.experimental.service.ShardingPolicy.DYNAMIC,
            address,
            compression=None if host in _HERE else "AUTO",
        )
    )
    notes = [f"prepared by the data service at {address}, in the order in which it is done"]
    if examples is not None:
        epoch, prepared = _Epoch(examples), made
        lost = tf.data.Dataset.range(1).filter(
            lambda _: tf.numpy_function(epoch.misses, [], tf.bool)
        )
        counted = prepared.scan(tf.constant(0, tf.int64), epoch.counted)
        made = counted.concatenate(lost.flat_map(lambda _: prepared))
    if buffer:
        notes.append(f"shuffled among {buffer:,} examples")
        made = made.unbatch().shuffle(buffer, seed=seed, reshuffle_each_iteration=True)
        made = made.batch(batch_size)
    else:
        made = made.rebatch(batch_size)
    if examples is not None:
        made = made.take(-(-examples // batch_size))
    return made, notes


class _Epoch:
    """Counts the examples of an epoch."""

    def __init__(self, examples: int) -> None:
        self._examples = examples
        self._seen = 0

    def counted(self, before: Any, batch: Any) -> Any:
        """Return how many examples there were up to a batch, and the batch."""
        import tensorflow as tf

        seen = before + tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
        tf.numpy_function(self._saw, [seen], tf.bool)
        return seen, batch

    def _saw(self, seen: Any) -> bool:
        self._seen = int(seen)
        return True

    def misses(self) -> bool:
        """Return whether examples were lost, and say so."""
        lost = self._examples - self._seen
        if lost > 0:
            _log.warning(
                "a data worker was lost with %d of %d examples of this epoch; as many are taken "
                "from another pass over the data",
                lost,
                self._examples,
            )
        return lost > 0


def _address(service: str) -> str:
    """Return the dispatcher's address, where one answers."""
    address = os.environ.get(VARIABLE, "") if service == "auto" else service
    if not address:
        raise UserError(
            'service="auto" is the data service of `tfopt launch --data-workers`.',
            expected=f"its address in {VARIABLE}",
            received="no such variable",
            fix="start the training by it, or give the address that it prints without a training",
        )
    place = place_in_cluster()
    if place is not None and place.workers > 1:
        raise UserError(
            "A data service feeds one training process, with all of its GPUs.",
            expected="one worker",
            received=f"{place.workers} workers by {place.source}",
            fix="drop service=: each worker reads the data and takes its part",
        )
    _require_answer(address)
    return address


def _require_answer(address: str) -> None:
    parts = urlsplit(address)
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 0), _ANSWERS_S):
            pass
    except (OSError, ValueError) as error:
        raise UserError(
            f"No data service answers at {address}.",
            expected="the address that `tfopt launch --data-workers` prints",
            received=str(error),
        ) from error


def require_service(service: object) -> None:
    """Refuse what is no address."""
    text = isinstance(service, str) and (service == "auto" or service.startswith("grpc://"))
    if service is not None and not text:
        raise UserError(
            "service is no address of a data service.",
            expected='"grpc://host:port" as `tfopt launch --data-workers` prints it, or "auto" '
            "under it",
            received=repr(service),
        )


def _require_portable(dataset: Any) -> None:
    """Refuse a pipeline that data workers cannot run, or of which they lose or repeat examples."""
    import tensorflow as tf

    content = tf.raw_ops.DatasetToGraphV2(input_dataset=dataset._variant_tensor).numpy()
    graph = tf.compat.v1.GraphDef.FromString(content)
    operations = operations_of(graph)
    if operations & PYTHON_OPERATIONS:
        raise UserError(
            "This pipeline runs Python, which a data service cannot run elsewhere.",
            expected="a source that TensorFlow reads (TFRecord, TFDS, a tf.data.Dataset of files), "
            "and functions of its operations",
            received="a generator, tf.py_function or tf.numpy_function, or a table",
            fix="write the examples as TFRecord, by tf.io.TFRecordWriter",
        )
    # In TensorFlow 2.21 each worker reads the whole of what is shuffled before an interleave, and
    # of zipped datasets now and then one element is lost.
    refused = sorted(op for op in operations if op.startswith(("ShuffleDataset", "ZipDataset")))
    if refused:
        raise UserError(
            "This pipeline shuffles or zips, of which a data service repeats or loses examples.",
            expected="one source, in order",
            received=", ".join(refused),
            fix="leave out shuffle(): pipeline(shuffle=True) shuffles what comes; write what is "
            "zipped, as image folders are, as TFRecord, by tf.io.TFRecordWriter",
        )


# The service's side.


@contextlib.contextmanager
def started(workers: int, err: IO[bytes] | None = None) -> Iterator[str]:
    """Run a dispatcher and data workers beside this process; yield the address.

    They end with this process, however it ends.
    """
    with _child("serve", str(workers), err=err) as process:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        if not address:
            raise UserError(
                "The data service did not start.",
                received=f"exit code {process.wait()}; its own lines are above",
            )
        yield address


def serve(
    workers: int,
    *,
    port: int = 0,
    host: str | None = None,
    join: str | None = None,
    tell: Callable[[str], None] = print,
    ended: threading.Event | None = None,
) -> None:
    """Prepare data for trainings until the process ends, or ``ended`` is set.

    Args:
        workers: Data workers on this host, each a process; one that dies is started again. 0: the
            dispatcher alone.
        port: Where the dispatcher listens; 0: a free one.
        host: By which name others reach this host; None: its own.
        join: The address of a dispatcher elsewhere, to which the workers go instead.
        tell: Gets the address once it is served, then a line for each worker that was lost.
    """
    if join is not None:
        require_service(join)
        _require_answer(join)
    host = host or socket.gethostname()
    with contextlib.ExitStack() as stack:
        address = join or f"grpc://{host}:{stack.enter_context(_dispatcher(port))}"

        # One that comes back to its port gets its tasks back; others are waited for without end.
        ports = [_free_port() for _ in range(workers)]

        def start(at: int) -> subprocess.Popen[bytes]:
            return stack.enter_context(_child("work", address, host, str(at)))

        running = [start(at) for at in ports]
        tell(address)
        ended = ended or threading.Event()
        while not ended.wait(1.0):
            for number, process in enumerate(running):
                if process.poll() is not None:
                    tell(f"data worker {number} ended ({process.returncode}) and is started again")
                    running[number] = start(ports[number])


@contextlib.contextmanager
def _dispatcher(port: int) -> Iterator[int]:
    import tensorflow as tf

    service = tf.data.experimental.service
    config = service.DispatcherConfig(port=port, protocol="grpc", worker_timeout_ms=_MISSING_MS)
    try:
        # TensorFlow would share the port with another service, and each get some of the calls.
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("", port))
        server = service.DispatchServer(config)
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            f"The data service cannot listen on port {port}.",
            expected="a port that is free, or 0",
            received=first_line(error),
        ) from error
    yield int(server.target.rpartition(":")[2])


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("", 0))
        return int(free.getsockname()[1])


def _work(address: str, host: str, port: str) -> None:
    """Be a data worker until standard input ends, which is when its parent does."""
    import tensorflow as tf

    service = tf.data.experimental.service
    config = service.WorkerConfig(
        dispatcher_address=urlsplit(address).netloc,
        worker_address=f"{host}:{port}",
        port=int(port),
        protocol="grpc",
        heartbeat_interval_ms=_HEARTBEAT_MS,
    )
    server = service.WorkerServer(config)
    sys.stdin.read()
    del server


@contextlib.contextmanager
def _child(*arguments: str, err: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run this module in a process that ends when its standard input does; it takes no GPU."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tfopt.data.service", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=err,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"},
        start_new_session=True,  # Ctrl-C is the training's
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(_ENDS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _main(kind: str, *arguments: str) -> None:
    if kind == "work":
        _work(*arguments)
        return
    ended = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        ended.set()

    def tell(text: str) -> None:
        # The address is for the one who started this, the rest for who looks on.
        out = sys.stdout if text.startswith("grpc://") else sys.stderr
        print(text, file=out, flush=True)

    threading.Thread(target=listen, daemon=True).start()
    serve(int(arguments[0]), host="localhost", tell=tell, ended=ended)


if __name__ == "__main__":
    _main(*sys.argv[1:])
