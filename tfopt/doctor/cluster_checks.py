"""The other tasks of this process's cluster: whether they can be reached, and all clocks agree.

Guarantees: what TF_CONFIG or Slurm say is checked as a whole; ports are only tried, and free again
afterwards. Clocks are compared where ``tfopt doctor --listen`` runs on the other tasks meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfopt.doctor.check import Check, Inspection, Subject, Verdict, of_error
from tfopt.doctor.version_checks import text_of
from tfopt.errors import UserError
from tfopt.job.cluster_place import ClusterPlace, place_in_cluster

# Doctors on several machines answer each other: who can be reached, and how far the clocks are.
#
# Each listens at its task's own address, where TensorFlow will listen later, and asks the others
# for their time as NTP does: the difference to the middle of the question, known to half its
# length. Guarantees: nothing is set; who does not answer is told by what happened; sockets are
# closed.

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


# Training does not need agreeing clocks; logs, "newest" checkpoints and certificates do.
_SKEW_S = 1.0


def cluster(subject: Subject) -> Iterable[Check]:
    """The tasks that TF_CONFIG or Slurm name."""
    try:
        place = place_in_cluster(subject.environment)
    except UserError as error:
        yield of_error("cluster", "cluster", error)
        return
    if place is None:
        told = "one process: neither TF_CONFIG nor Slurm names others"
        yield Check("cluster", "cluster", "not here", told)
        return
    name = f"{place.kind} {place.index}"
    counts = ", ".join(f"{len(addresses)} {kind}" for kind, addresses in place.cluster.items())
    told = f"{name} of {counts}, by {place.source}"
    yield Check("cluster", "cluster", "ok", told, (place.tf_config,))
    listed = place.index < len(place.cluster.get(place.kind, ()))
    own = place.address if listed else None
    others = {task: address for task, address in _tasks(place) if task != name}
    meeting = meet(own, others, subject.listen_s)
    if own is not None:
        yield _own_port(own, meeting, subject.root)
    yield _reached(meeting)
    yield from _clocks(meeting)


def _tasks(place: ClusterPlace) -> Iterator[tuple[str, str]]:
    for kind, addresses in place.cluster.items():
        for index, address in enumerate(addresses):
            yield f"{kind} {index}", address


def _own_port(own: str, meeting: Meeting, root: Path) -> Check:
    if meeting.not_listening is None:
        evidence = tuple(_given_out(own, root))
        return Check("cluster", "own port", "ok", f"{own} is free to listen at", evidence)
    return Check(
        "cluster",
        "own port",
        "failure",
        f"this task cannot listen at its own address {own}: {meeting.not_listening}",
        (),
        "end what listens there (ss -ltnp), take another port, or mend the host's name",
    )


def _given_out(own: str, root: Path) -> Iterator[str]:
    words = text_of(root / "proc/sys/net/ipv4/ip_local_port_range").split()
    port = int(own.rpartition(":")[2])
    if len(words) == 2 and all(map(str.isdigit, words)) and int(words[0]) <= port <= int(words[1]):
        yield (
            f"Linux gives ports {words[0]} to {words[1]} out to whoever connects: one below is "
            "not taken by chance"
        )


def _reached(meeting: Meeting) -> Check:
    lost = {name: p for name, p in meeting.peers.items() if p.state == "unreachable"}
    evidence = tuple(f"{name} {_told(peer)}" for name, peer in meeting.peers.items())
    if lost:
        named = ", ".join(f"{name} ({peer.address})" for name, peer in lost.items())
        return Check(
            "cluster",
            "other tasks",
            "failure",
            f"{named} cannot be reached",
            evidence,
            "check the name, the network and the firewall: each task must reach each other's port",
        )
    closed = [name for name, p in meeting.peers.items() if p.state == "closed"]
    told = f"all {len(meeting.peers)} other tasks can be reached"
    if closed:
        told = (
            f"all machines answer; nobody listens yet as {', '.join(closed)}, so a firewall that "
            "refuses looks the same: run `tfopt doctor --only cluster --listen 30` on all at once"
        )
    return Check("cluster", "other tasks", "ok", told, evidence)


def _told(peer: Peer) -> str:
    if peer.state == "answered":
        return f"at {peer.address}: its doctor answers"
    return f"at {peer.address}: {peer.told}"


def _clocks(meeting: Meeting) -> Iterator[Check]:
    known = {
        name: (peer.ahead_s, peer.within_s)
        for name, peer in meeting.peers.items()
        if peer.ahead_s is not None and peer.within_s is not None
    }
    if not known:
        told = "no other doctor answered: clocks are not compared"
        if meeting.peers:
            yield Check("cluster", "clocks of tasks", "not here", told)
        return
    evidence = tuple(
        f"{name}: {ahead:+.3f} s, known within {within:.3f} s"
        for name, (ahead, within) in known.items()
    )
    off = [name for name, (ahead, within) in known.items() if abs(ahead) - within > _SKEW_S]
    if off:
        told = f"the clocks of {', '.join(off)} are more than {_SKEW_S:g} s from this one's"
        fix = "timedatectl set-ntp true on all machines (chrony or systemd-timesyncd)"
        yield Check("cluster", "clocks of tasks", "warning", told, evidence, fix)
    else:
        told = f"{len(known)} other clock(s) agree with this one within {_SKEW_S:g} s"
        yield Check("cluster", "clocks of tasks", "ok", told, evidence)


def own_clock(subject: Subject) -> Iterable[Check]:
    """Whether the system says that this machine's clock is kept by NTP."""
    told = _system_says(("timedatectl", "show", "-p", "NTPSynchronized", "--value"))
    leap = "" if told in ("yes", "no") else _system_says(("chronyc", "tracking"))
    if told == "yes" or "Leap status     : Normal" in leap:
        yield Check("cluster", "own clock", "ok", "kept by NTP")
    elif told == "no" or leap:
        # A container's clock is its host's, and a single machine needs none.
        alone = place_or_none(subject) is None
        verdict: Verdict = "ok" if alone else "warning"
        said = "not kept by NTP, as far as the system tells here" + (
            ": one machine alone does without" if alone else ""
        )
        fix = None if alone else "timedatectl set-ntp true; in a container look at the host"
        yield Check("cluster", "own clock", verdict, said, (), fix)
    else:
        told = "neither timedatectl nor chronyc tells whether NTP keeps this clock"
        yield Check("cluster", "own clock", "not here", told)


def place_or_none(subject: Subject) -> ClusterPlace | None:
    """None outside a cluster, and where what names it is wrong."""
    try:
        return place_in_cluster(subject.environment)
    except UserError:
        return None


def _system_says(command: tuple[str, ...]) -> str:
    path = shutil.which(command[0])
    if path is None:
        return ""
    try:
        done = subprocess.run(
            [path, *command[1:]], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


CLUSTER_INSPECTIONS = (
    # Longer than anybody may listen; in a thread, since a notebook's own has a loop already.
    Inspection("cluster", "cluster", cluster, limit_s=3700.0),
    Inspection("cluster", "own clock", own_clock),
)
