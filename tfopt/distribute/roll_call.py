"""Wait until all tasks of a cluster listen at their addresses, before TensorFlow starts.

TensorFlow waits for missing tasks without a timeout, and does not name them.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from tfopt.distribute.launch.place import ClusterPlace, host_and_port
from tfopt.errors import UserError, WorkerMissing

_log = logging.getLogger("tfopt")
_LATE_S, _AGAIN_S = 10.0, 60.0  # after which a task logs which tasks it waits for
_PAUSE_S = 0.2
_CONNECT_S = 2.0  # the timeout of a connection


def wait_for_workers(place: ClusterPlace, timeout_s: float) -> None:
    """Wait until all workers listen at their addresses, as this one does meanwhile.

    Afterwards TensorFlow's server listens there, which waits for others without a timeout.
    """
    with listening(place):
        wait_for(place.others, place, timeout_s)


def wait_for(tasks: Mapping[str, str], place: ClusterPlace, timeout_s: float) -> None:
    """Wait until these tasks, addresses by name, listen; name the missing ones."""
    own = f"{place.name} at {place.address}"
    absent = dict(tasks)
    begin = time.monotonic()
    log_at = begin + _LATE_S
    while absent := {name: absent[name] for name in unreachable(absent)}:
        names = ", ".join(f"{name} at {address}" for name, address in absent.items())
        now = time.monotonic()
        if now > begin + timeout_s:
            raise WorkerMissing(
                f"{names} did not start.",
                expected=f"all {len(tasks) + 1} tasks within {timeout_s:g} s",
                received=f"no connection from {own}",
                fix="check that it runs, that the addresses are correct and the same in each "
                "TF_CONFIG, and that no firewall is between; peer_timeout_s=, or "
                "patience_s= of train_asynchronously(), waits longer",
            )
        if now > log_at:
            _log.warning("%s waits for %s", own, names)
            log_at = now + _AGAIN_S
        time.sleep(_PAUSE_S)


@contextmanager
def listening(place: ClusterPlace) -> Iterator[socket.socket]:
    """Listen at this task's port, on all interfaces; yield the socket."""
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        _, port = host_and_port(place.address)
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise UserError(
            f"{place.name} cannot listen at its address.",
            expected=f"a free port at {place.address}",
            received=str(error),
            fix="give it another port, or end the process that uses this one",
        ) from error
    with server:
        yield server


def unreachable(addresses: Mapping[str, str]) -> dict[str, OSError]:
    """Return the error for each address at which no process listens, by its name."""
    with ThreadPoolExecutor(max(len(addresses), 1)) as threads:
        errors = threads.map(connection_error, addresses.values())
        return {name: error for name, error in zip(addresses, errors, strict=True) if error}


def connection_error(address: str) -> OSError | None:
    """Return the error of connecting to an address; None if a process listens there."""
    try:
        with socket.create_connection(host_and_port(address), timeout=_CONNECT_S):
            return None
    except OSError as error:
        return error
