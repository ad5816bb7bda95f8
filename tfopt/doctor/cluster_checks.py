"""Check that the other tasks of this process's cluster can be reached, and that clocks agree.

Doctors on several machines answer each other: each listens at its task's own address, where
TensorFlow will listen later, and asks the others for their time as NTP does. The difference to the
middle of the question is known to half its length. Ports are free again afterwards.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from tfopt.doctor.check import Check, Subject, check_of_error
from tfopt.errors import UserError
from tfopt.job.cluster_place import host_and_port, place_in_cluster

_GREETING = b"tfopt doctor\n"
_CONNECT_S = 3.0
_PAUSE_S = 0.2
_LONGEST = 200
# Training does not need agreeing clocks; logs, "newest" checkpoints and certificates do.
_SKEW_S = 1.0


@dataclass(frozen=True)
class Peer:
    """Another task, and what is known of it.

    Attributes:
        state: "answered": a doctor is there. "open": something else listens. "closed": the machine
            answers, and nobody listens yet. "unreachable": nothing came back.
        reason: What happened, in the system's words.
        ahead_s: How far its clock is ahead of this one's, where a doctor answered.
        within_s: How far from that it may be.
    """

    address: str
    state: str
    reason: str = ""
    ahead_s: float = 0.0
    within_s: float = 0.0


async def meet(
    own: str | None, others: Mapping[str, str], listen_s: float
) -> tuple[dict[str, Peer], str | None]:
    """Ask each of the others; for ``listen_s`` again until all have answered, while answering.

    Returns the others by name, and why this task could not listen.
    """
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
        host, port = host_and_port(own)
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
    return found, why_not


async def _ask_all(others: Mapping[str, str], own: str) -> dict[str, Peer]:
    answers = await asyncio.gather(*(_ask(address, own) for address in others.values()))
    return dict(zip(others, answers, strict=True))


async def _ask(address: str, own: str) -> Peer:
    host, port = host_and_port(address)
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
    name = f"{place.kind} {place.index}"
    counts = ", ".join(f"{len(addresses)} {kind}" for kind, addresses in place.cluster.items())
    text = f"{name} of {counts}, by {place.source}"
    yield Check("cluster", "cluster", "ok", text, (place.tf_config,))
    others = {
        f"{kind} {index}": address
        for kind, addresses in place.cluster.items()
        for index, address in enumerate(addresses)
    }
    own = others.pop(name, None)
    peers, not_listening = asyncio.run(meet(own, others, subject.listen_s))
    if own is not None and not_listening is None:
        yield Check("cluster", "own port", "ok", f"{own} is free to listen at")
    elif own is not None:
        text = f"this task cannot listen at its own address {own}: {not_listening}"
        fix = "end what listens there (ss -ltnp), take another port, or mend the host's name"
        yield Check("cluster", "own port", "failure", text, (), fix)
    yield _reached(peers)
    if peers:
        yield _clocks({name: peer for name, peer in peers.items() if peer.state == "answered"})


def _reached(peers: Mapping[str, Peer]) -> Check:
    evidence = tuple(
        f"{name} at {peer.address}: {peer.reason or 'its doctor answers'}"
        for name, peer in peers.items()
    )
    lost = [f"{name} ({p.address})" for name, p in peers.items() if p.state == "unreachable"]
    closed = [name for name, peer in peers.items() if peer.state == "closed"]
    if lost:
        text = f"{', '.join(lost)} cannot be reached"
        fix = "check the name, the network and the firewall: each task must reach each other's port"
        return Check("cluster", "other tasks", "failure", text, evidence, fix)
    text = f"all {len(peers)} other tasks can be reached"
    if closed:
        text = (
            f"all machines answer; nobody listens yet as {', '.join(closed)}, so a firewall that "
            "refuses looks the same: run `tfopt doctor --only cluster --listen 30` on all at once"
        )
    return Check("cluster", "other tasks", "ok", text, evidence)


def _clocks(answered: Mapping[str, Peer]) -> Check:
    if not answered:
        text = "no other doctor answered: clocks are not compared"
        return Check("cluster", "clocks of tasks", "not here", text)
    evidence = tuple(
        f"{name}: {peer.ahead_s:+.3f} s, known within {peer.within_s:.3f} s"
        for name, peer in answered.items()
    )
    off = [name for name, p in answered.items() if abs(p.ahead_s) - p.within_s > _SKEW_S]
    if off:
        text = f"the clocks of {', '.join(off)} are more than {_SKEW_S:g} s from this one's"
        fix = "timedatectl set-ntp true on all machines (chrony or systemd-timesyncd)"
        return Check("cluster", "clocks of tasks", "warning", text, evidence, fix)
    text = f"{len(answered)} other clock(s) agree with this one within {_SKEW_S:g} s"
    return Check("cluster", "clocks of tasks", "ok", text, evidence)
