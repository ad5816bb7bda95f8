"""Call the roll of the workers before TensorFlow starts, which would wait for ever for one.

Each worker listens at its own address, where TensorFlow's server will; the chief collects what they
say and gives all the same answer: that all are there and were started alike, or an error.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfopt.errors import UserError, WorkerMissing
from tfopt.job.cluster_place import ClusterPlace, addresses_of

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


@asynccontextmanager
async def _warned_while_waiting(message: Callable[[], str]) -> AsyncIterator[None]:
    async def warn() -> None:
        await asyncio.sleep(_FIRST_S)
        while True:
            _log.warning("%s", message())
            await asyncio.sleep(_THEN_S)

    warning = asyncio.create_task(warn())
    try:
        yield
    finally:
        warning.cancel()


@dataclass
class _Heard:
    """What the chief has heard so far; the cards by the names of the tasks."""

    cards: dict[str, dict[str, Any]] = field(default_factory=dict)
    lines: list[asyncio.StreamWriter] = field(default_factory=list)
    wrong: UserError | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)


def call_roll(place: ClusterPlace, card: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Wait for all workers; return the chief's card once they are all there and alike.

    ``card`` is what must be equal on all workers, as JSON; what begins with ``_`` may differ.
    """
    mine = {
        "task": f"{place.kind} {place.index}",
        "cluster": {kind: list(addresses) for kind, addresses in place.cluster.items()},
        **card,
    }

    def ask(heard: _Heard) -> Awaitable[dict[str, Any]]:
        if place.is_chief:
            return _collect(place, mine, heard, timeout_s)
        return _ask_chief(place, mine, timeout_s)

    return asyncio.run(_listening(place, ask))


async def _listening(
    place: ClusterPlace, ask: Callable[[_Heard], Awaitable[dict[str, Any]]]
) -> dict[str, Any]:
    heard = _Heard()
    calls: set[asyncio.Task[None]] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ValueError, OSError):  # whoever is no worker sends what it likes
            _take(place, heard, json.loads(await reader.readline()), writer)
            return
        writer.close()

    def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.add(asyncio.ensure_future(answer(reader, writer)))

    host, port = _split(place.address)
    # All interfaces, as TensorFlow's server has it: a name may stand for an outer address.
    own = host if host in ("localhost", "::1") or host.startswith("127.") else None
    try:
        server = await asyncio.start_server(called, own, port, limit=_LONGEST)
    except OSError as error:
        raise UserError(
            f"{place.kind} {place.index} cannot listen at its own address.",
            expected=f"{place.address} to be this machine's, and its port to be free",
            received=str(error),
            fix="give it another port, or end the process that holds this one",
        ) from error
    async with server:
        try:
            return await ask(heard)
        finally:
            for line in heard.lines:
                line.close()
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


def _take(
    place: ClusterPlace, heard: _Heard, card: dict[str, Any], line: asyncio.StreamWriter
) -> None:
    name = card["task"] if isinstance(card, dict) else ""
    if not place.is_chief or not isinstance(name, str):
        line.close()
        return
    if name in heard.cards:
        heard.wrong = heard.wrong or UserError(
            f"Two processes say that they are {name}.",
            expected="its own index for each process",
            received=f"{name} twice",
            fix="give each process its own index in TF_CONFIG",
        )
    heard.cards.setdefault(name, card)
    heard.lines.append(line)
    heard.news.set()


async def _collect(
    place: ClusterPlace, mine: dict[str, Any], heard: _Heard, timeout_s: float
) -> dict[str, Any]:
    """Hear all workers as the chief, compare what they say, and answer all."""
    own = str(mine["task"])
    heard.cards[own] = mine
    addresses = addresses_of(place)
    waits = _warned_while_waiting(lambda: f"{own} waits for {_absent(addresses, heard.cards)}")
    with suppress(TimeoutError):
        async with waits, asyncio.timeout(timeout_s) as limit:
            while not addresses.keys() <= heard.cards.keys():
                await heard.news.wait()
                heard.news.clear()
                heard.wrong = heard.wrong or _unlike(mine, heard.cards)
                if heard.wrong is not None:
                    limit.reschedule(
                        min(limit.when() or 0.0, asyncio.get_running_loop().time() + _GRACE_S)
                    )
    wrong = heard.wrong or await _missing(place, heard.cards, timeout_s)
    answer: dict[str, Any] = {"card": mine}
    if wrong is not None:
        answer = {"error": vars(wrong), "missing": isinstance(wrong, WorkerMissing)}
    for line in heard.lines:
        with suppress(OSError):
            line.write(json.dumps(answer).encode() + b"\n")
            await line.drain()
    if wrong is not None:
        raise wrong
    return mine


async def _ask_chief(place: ClusterPlace, mine: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Say who this worker is, and wait for the chief's answer."""
    chief, address = next(iter(addresses_of(place).items()))
    received, failures = b"", [""]
    waits = _warned_while_waiting(
        lambda: f"{mine['task']} waits for {chief} at {address}" + failures[-1]
    )
    with suppress(TimeoutError, OSError):
        # The chief may come last, and then take all its time.
        async with waits, asyncio.timeout(2 * timeout_s + 2 * _GRACE_S):
            async with asyncio.timeout(timeout_s):
                reader, writer = await _connected(address, failures)
            writer.write(json.dumps(mine).encode() + b"\n")
            await writer.drain()
            received = await reader.readline()
            writer.close()
    if not received:
        raise WorkerMissing(
            f"{chief} at {address} does not answer.",
            expected=f"all workers there within {timeout_s:g} s",
            received=f"no answer{failures[-1]}",
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


async def _connected(
    address: str, failures: list[str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = _split(address)
    while True:
        try:
            opened = await asyncio.open_connection(host, port, limit=_LONGEST)
            failures[:] = [""]
            return opened
        except OSError as error:
            # Also where nobody knows the name: that of a pod comes with the pod.
            failures[:] = [f" ({error})"]
        await asyncio.sleep(_PAUSE_S)


def _unlike(mine: dict[str, Any], cards: Mapping[str, dict[str, Any]]) -> UserError | None:
    for name, card in cards.items():
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
    return ", ".join(
        f"{name} at {address}" for name, address in addresses.items() if name not in there
    )


async def _missing(
    place: ClusterPlace, cards: Mapping[str, Any], timeout_s: float
) -> UserError | None:
    """Return an error about those who have not come, or cannot be called at their addresses."""
    addresses = addresses_of(place)
    absent, has, said = _absent(addresses, cards), "did not come", ", ".join(cards)
    if not absent:
        others = [name for name in cards if name != f"{place.kind} {place.index}"]
        asked = (asyncio.to_thread(answers, addresses[name], _GRACE_S) for name in others)
        answered = dict(zip(others, await asyncio.gather(*asked), strict=True))
        absent = _absent(addresses, {name for name in cards if answered.get(name, True)})
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


def silent(place: ClusterPlace) -> list[str]:
    """Return the other workers at whose address nobody answers now: those that have ended."""
    own = f"{place.kind} {place.index}"
    others = {name: at for name, at in addresses_of(place).items() if name != own}
    return [name for name, address in others.items() if not answers(address)]


def answers(address: str, timeout_s: float = 2.0) -> bool:
    """Return whether a process listens there."""
    try:
        with socket.create_connection(_split(address), timeout=timeout_s):
            return True
    except OSError:
        return False


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
