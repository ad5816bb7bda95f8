"""Doctors on several machines answer each other: who can be reached, and how far the clocks are.

Each listens at its task's own address, where TensorFlow will listen later, and asks the others
for their time as NTP does: the difference to the middle of the question, known to half its length.
Guarantees: nothing is set; who does not answer is told by what happened; sockets are closed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

_GREETING = b"tfopt doctor\n"
_CONNECT_S = 3.0
_PAUSE_S = 0.2
_LONGEST = 200


@dataclass(frozen=True)
class Peer:
    """What is known of another task.

    Attributes:
        state: "answered": a doctor is there. "open": something else listens. "closed": the machine
            answers, and nobody listens yet. "unreachable": nothing came back.
        told: What happened, in the system's words.
        ahead_s: How far its clock is before this one's, where a doctor answered.
        within_s: How far from that it may be.
    """

    address: str
    state: str
    told: str = ""
    ahead_s: float | None = None
    within_s: float | None = None


@dataclass(frozen=True)
class Meeting:
    """All other tasks by name, and why this one could not listen."""

    peers: Mapping[str, Peer]
    not_listening: str | None


def meet(own: str | None, others: Mapping[str, str], listen_s: float) -> Meeting:
    """Asks each of the others; for ``listen_s`` again until all have answered, while answering."""
    return asyncio.run(_meet(own, others, listen_s))


async def _meet(own: str | None, others: Mapping[str, str], listen_s: float) -> Meeting:
    asked_by: set[str] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.TimeoutError, ValueError):
            if await asyncio.wait_for(reader.readline(), _CONNECT_S) == _GREETING:
                asked_by.add((await asyncio.wait_for(reader.readline(), _CONNECT_S)).decode())
                writer.write(json.dumps({"time": time.time()}).encode() + b"\n")
                await writer.drain()
        writer.close()

    server, why_not = None, None
    if own is not None:
        host, port = _parts(own)
        try:
            server = await asyncio.start_server(answer, host, port)
        except OSError as error:
            why_not = error.strerror or str(error)
    try:
        found = await _ask_all(others, own or "")
        ends = time.monotonic() + listen_s
        # The others may not have asked yet when this one has all its answers.
        while time.monotonic() < ends and not (
            all(peer.state == "answered" for peer in found.values())
            and len(asked_by) >= len(others)
        ):
            await asyncio.sleep(_PAUSE_S)
            left = {name: others[name] for name, p in found.items() if p.state != "answered"}
            found = {**found, **await _ask_all(left, own or "")}
    finally:
        if server is not None:
            server.close()
            await server.wait_closed()
    return Meeting(found, why_not)


async def _ask_all(others: Mapping[str, str], own: str) -> dict[str, Peer]:
    answers = await asyncio.gather(*(_ask(address, own) for address in others.values()))
    return dict(zip(others, answers, strict=True))


async def _ask(address: str, own: str) -> Peer:
    host, port = _parts(address)
    try:
        reader, writer = await asyncio.wait_for(asyncio.open_connection(host, port), _CONNECT_S)
    except ConnectionRefusedError:
        return Peer(address, "closed", "connection refused")
    except TimeoutError:
        return Peer(address, "unreachable", f"no answer within {_CONNECT_S:g} s")
    except OSError as error:
        return Peer(address, "unreachable", error.strerror or str(error))
    try:
        return await asyncio.wait_for(_their_time(reader, writer, address, own), _CONNECT_S)
    except (OSError, TimeoutError, ValueError, KeyError, TypeError):
        return Peer(address, "open", "something listens, and is no doctor")
    finally:
        writer.close()


async def _their_time(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, own: str
) -> Peer:
    begun = time.time()
    writer.write(_GREETING + own.encode() + b"\n")
    await writer.drain()
    line = await reader.readline()
    ended = time.time()
    if len(line) > _LONGEST:
        raise ValueError("no answer of a doctor")
    theirs = float(json.loads(line)["time"])
    ahead = theirs - (begun + ended) / 2
    return Peer(address, "answered", ahead_s=ahead, within_s=(ended - begun) / 2)


def _parts(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
