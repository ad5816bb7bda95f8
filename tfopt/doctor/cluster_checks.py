"""Check that the other tasks of this process's cluster can be reached.

The doctor of each task listens at the task's port, where TensorFlow will listen later, and connects
to the others.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress

from tfopt.distribute.launch.place import KINDS, place_in_cluster
from tfopt.distribute.roll_call import listening, unreachable
from tfopt.doctor.check import Check, Subject, check_of_error
from tfopt.errors import UserError

_PAUSE_S = 0.2


def cluster(subject: Subject) -> Iterable[Check]:
    """Check the tasks that TF_CONFIG or Slurm name."""
    try:
        place = place_in_cluster(subject.environment)
    except UserError as error:
        yield check_of_error("cluster", "cluster", error)
        return
    if place is None:
        text = "one process: neither TF_CONFIG nor Slurm names others"
        yield Check("cluster", "cluster", "not here", text)
        return
    counts = ", ".join(f"{len(addresses)} {kind}" for kind, addresses in place.cluster.items())
    text = f"{place.name} of {counts}, by {place.source}"
    yield Check("cluster", "cluster", "ok", text, (place.tf_config,))
    others = place.tasks(*KINDS)
    del others[place.name]
    try:
        with listening(place) as server:
            errors = _connect(server, others, subject.listen_s)
        yield Check("cluster", "own port", "ok", f"{place.address} is free to listen at")
    except UserError as error:
        yield check_of_error("cluster", "own port", error)
        errors = unreachable(others)
    yield _reached(others, errors)


def _connect(
    server: socket.socket, others: Mapping[str, str], listen_s: float
) -> dict[str, OSError]:
    """Connect to each of the others, and retry for ``listen_s`` until all have connected to all.

    Returns the errors of those that cannot be reached.
    """
    server.setblocking(False)
    end, heard = time.monotonic() + listen_s, 0
    errors = unreachable(others)
    while time.monotonic() < end:
        with suppress(BlockingIOError):
            while True:
                server.accept()[0].close()
                heard += 1
        if not errors and heard >= len(others):
            break
        time.sleep(_PAUSE_S)
        errors = unreachable({name: others[name] for name in errors})
    return errors


def _reached(others: Mapping[str, str], errors: Mapping[str, OSError]) -> Check:
    told = {name: error.strerror or str(error) for name, error in errors.items()}
    evidence = tuple(
        f"{name} at {address}: {told.get(name, 'reached')}" for name, address in others.items()
    )
    silent = [name for name, error in errors.items() if isinstance(error, ConnectionRefusedError)]
    if lost := [name for name in errors if name not in silent]:
        text = ", ".join(f"{name} ({others[name]})" for name in lost) + " cannot be reached"
        fix = "check host name, network and firewall: all tasks must reach the ports of all others"
        return Check("cluster", "other tasks", "failure", text, evidence, fix)
    text = f"all {len(others)} other tasks can be reached"
    if silent:
        text = (
            f"all machines can be reached; {', '.join(silent)} does not listen yet, which a "
            "firewall may hide: run `tfopt doctor --only cluster --listen 30s` on all at once"
        )
    return Check("cluster", "other tasks", "ok", text, evidence)
