"""Call the roll of the workers before TensorFlow starts, which would wait for ever for one.

Each worker listens at its own address, where TensorFlow's server will; the chief collects what they
say and gives all the same answer: that all are there and were started alike, or an error.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Container, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tfopt.errors import UserError, WorkerMissing
from tfopt.job.cluster_place import ClusterPlace, addresses_of, host_and_port

JOINED = "TFOPT_JOINED"
"""The variable that names the file by which a launcher sees that the tasks of a job have met."""

_log = logging.getLogger("tfopt")
_FIRST_S, _THEN_S = 10.0, 60.0  # after which it is said for whom a worker waits
_PAUSE_S = 0.2
# How long the chief waits for the others once it knows that something is wrong: they hear it too.
_GRACE_S = 10.0
_LONGEST = 1 << 20


def leave_mark() -> None:
    """Show the launcher, where there is one, that this process looks for the others."""
    path = os.environ.get(JOINED)
    if path:
        with suppress(OSError):  # a container that does not see the launcher's folder
            Path(path).touch()


class _Patience:
    """A wait that ends, and says now and then for whom it is."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._says = time.monotonic() + _FIRST_S

    def lasts(self, message: str) -> bool:
        """Return whether there is time left, and warn by the message when it is time for that."""
        now = time.monotonic()
        if now > self._says:
            _log.warning("%s", message)
            self._says = now + _THEN_S
        return now < self._end

    def shorten(self, seconds: float) -> None:
        self._end = min(self._end, time.monotonic() + seconds)


def call_roll(place: ClusterPlace, card: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Wait for all workers; return the chief's card once they are all there and alike.

    ``card`` is what must be equal on all workers, as JSON; what begins with ``_`` may differ.
    """
    mine = {
        "task": f"{place.kind} {place.index}",
        "cluster": {kind: list(addresses) for kind, addresses in place.cluster.items()},
        **card,
    }
    with _listening(place) as server:
        if place.is_chief:
            return _collect(place, mine, server, timeout_s)
        return _ask_chief(place, mine, timeout_s)


@contextmanager
def _listening(place: ClusterPlace) -> Iterator[socket.socket]:
    """Listen at the own address: on all interfaces, as a name may stand for an outer address."""
    host, port = host_and_port(place.address)
    family, both = socket.AF_INET, False
    if host not in ("localhost", "::1") and not host.startswith("127."):
        host, both = "", socket.has_dualstack_ipv6()
    if both or host == "::1":
        family = socket.AF_INET6
    try:
        server = socket.create_server((host, port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise UserError(
            f"{place.kind} {place.index} cannot listen at its own address.",
            expected=f"{place.address} to be this machine's, and its port to be free",
            received=str(error),
            fix="give it another port, or end the process that holds this one",
        ) from error
    with server:
        yield server


def _collect(
    place: ClusterPlace, mine: dict[str, Any], server: socket.socket, timeout_s: float
) -> dict[str, Any]:
    """Hear all workers as the chief, compare what they say, and answer all."""
    own = str(mine["task"])
    cards, addresses = {own: mine}, addresses_of(place)
    patience, wrong = _Patience(timeout_s), None
    lines: list[socket.socket] = []
    while not addresses.keys() <= cards.keys():
        if not patience.lasts(f"{own} waits for {_absent(addresses, cards)}"):
            break
        line, card = _caller(server)
        if line is None:
            continue
        lines.append(line)
        wrong = wrong or _unlike(mine, cards, card)
        cards.setdefault(card["task"], card)
        if wrong is not None:
            patience.shorten(_GRACE_S)
    wrong = wrong or _missing(place, cards, timeout_s)
    answer: dict[str, Any] = {"card": mine}
    if wrong is not None:
        answer = {"error": vars(wrong), "missing": isinstance(wrong, WorkerMissing)}
    for line in lines:
        with suppress(OSError), line:
            line.sendall(json.dumps(answer).encode() + b"\n")
    if wrong is not None:
        raise wrong
    return mine


def _caller(server: socket.socket) -> tuple[socket.socket | None, dict[str, Any]]:
    """Return the line to a worker that calls now, and its card; None for nobody, or a stranger."""
    server.settimeout(_PAUSE_S)
    with suppress(OSError):
        line, _ = server.accept()
        with suppress(OSError, ValueError):
            card = json.loads(_received(line, _Patience(_GRACE_S / 2), ""))
            if isinstance(card, dict) and isinstance(card.get("task"), str):
                return line, card
        line.close()
    return None, {}


def _ask_chief(place: ClusterPlace, mine: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Say who this worker is, and wait for the chief's answer."""
    chief, address = next(iter(addresses_of(place).items()))
    patience, failure, received = _Patience(timeout_s), "", b""
    waits = f"{mine['task']} waits for {chief} at {address}"
    line: socket.socket | None = None
    while line is None and patience.lasts(waits + failure):
        try:
            line = socket.create_connection(host_and_port(address), min(timeout_s, _GRACE_S))
        except OSError as error:
            # Also where nobody knows the name: that of a pod comes with the pod.
            failure = f" ({error})"
            time.sleep(_PAUSE_S)
    if line is not None:
        # The chief may come last, and then take all its time.
        patience, failure = _Patience(2 * timeout_s + 2 * _GRACE_S), ""
        with suppress(OSError), line:
            line.sendall(json.dumps(mine).encode() + b"\n")
            received = _received(line, patience, waits)
    if not received:
        raise WorkerMissing(
            f"{chief} at {address} does not answer.",
            expected=f"all workers there within {timeout_s:g} s",
            received=f"no answer{failure}",
            fix="see whether it runs, whether the address is right, and whether a firewall is "
            "between; peer_timeout_s= waits longer",
        )
    try:
        answer = json.loads(received)
    except ValueError as error:
        raise UserError(
            f"What answers at {address} is not {chief}.",
            expected="the chief, started with the same TF_CONFIG",
            received=repr(received[:80])[1:],
            fix="end the process that listens there, or give the chief another port",
        ) from error
    if "error" in answer:
        kind = WorkerMissing if answer["missing"] else UserError
        raise kind(**answer["error"])
    return dict(answer["card"])


def _received(line: socket.socket, patience: _Patience, message: str) -> bytes:
    """Return what comes there until a line ends, the connection or the patience."""
    received = b""
    line.settimeout(_PAUSE_S)
    while not received.endswith(b"\n") and len(received) < _LONGEST and patience.lasts(message):
        try:
            got = line.recv(65536)
        except TimeoutError:
            continue
        if not got:
            break
        received += got
    return received


def _unlike(
    mine: dict[str, Any], cards: Mapping[str, Any], card: dict[str, Any]
) -> UserError | None:
    """Return an error about a worker that was started otherwise than the chief, or twice."""
    name = card["task"]
    if name in cards:
        return UserError(
            f"Two processes say that they are {name}.",
            expected="its own index for each process",
            received=f"{name} twice",
            fix="give each process its own index in TF_CONFIG",
        )
    for key in sorted(mine.keys() | card.keys()):
        if key != "task" and not key.startswith("_") and mine.get(key) != card.get(key):
            return UserError(
                f"{name} was started otherwise than {mine['task']}: another {key}.",
                expected=f"on all workers {json.dumps(mine.get(key))}",
                received=json.dumps(card.get(key)),
                fix="start all workers with the same cluster in TF_CONFIG, the same code, the "
                "same packages and the same number of devices",
            )
    return None


def _absent(addresses: Mapping[str, str], there: Container[str]) -> str:
    return ", ".join(f"{name} at {at}" for name, at in addresses.items() if name not in there)


def _missing(place: ClusterPlace, cards: Mapping[str, Any], timeout_s: float) -> UserError | None:
    """Return an error about those who have not come, or cannot be called at their addresses."""
    addresses = addresses_of(place)
    absent, has, said = _absent(addresses, cards), "did not come", ", ".join(cards)
    if not absent:
        absent = _absent(addresses, addresses.keys() - silent(place, _GRACE_S))
        has, said = "cannot be reached, though it has called the chief", "no connection from it"
    if not absent:
        return None
    return WorkerMissing(
        f"{absent} {has}.",
        expected=f"all {len(addresses)} workers there within {timeout_s:g} s, at their addresses",
        received=said,
        fix=f"see whether it runs, whether {place.address} is the chief's right address, and "
        "whether a firewall is between; peer_timeout_s= waits longer",
    )


def silent(place: ClusterPlace, timeout_s: float = 2.0) -> list[str]:
    """Return the other workers at whose address nobody answers now: those that have ended."""
    own = f"{place.kind} {place.index}"
    others = {name: at for name, at in addresses_of(place).items() if name != own}
    with ThreadPoolExecutor(len(others)) as threads:  # all at once
        there = threads.map(lambda address: answers(address, timeout_s), others.values())
        return [name for name, answer in zip(others, there, strict=True) if not answer]


def answers(address: str, timeout_s: float = 2.0) -> bool:
    """Return whether a process listens there."""
    try:
        with socket.create_connection(host_and_port(address), timeout=timeout_s):
            return True
    except OSError:
        return False
