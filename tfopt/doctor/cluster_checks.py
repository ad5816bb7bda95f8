"""Check that the other tasks of this process's cluster can be reached.

Doctors on several machines meet: each listens at its task's own address, where TensorFlow will
listen later, and connects to the others. Ports are free again afterwards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping

from tfopt.distribute.launch.place import host_and_port, place_in_cluster
from tfopt.doctor.check import Check, Subject, check_of_error
from tfopt.errors import UserError

_CONNECT_S = 3.0
_PAUSE_S = 0.2
ANSWERS = "answers"
REFUSED = "connection refused"


async def meet(
    own: str | None, others: Mapping[str, str], listen_s: float
) -> tuple[dict[str, str], str | None]:
    """Connect to each of the others; for ``listen_s`` again until all have met all.

    Returns what came of each by its name, and why this task could not listen.
    """
    met, server, why_not = 0, None, None

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal met
        met += 1
        writer.close()

    if own is not None:
        try:
            server = await asyncio.start_server(answer, *host_and_port(own))
        except OSError as error:
            why_not = error.strerror or str(error)
    try:
        found = await _connect_all(others)
        ends = time.monotonic() + listen_s
        while time.monotonic() < ends:
            left = {name: others[name] for name, told in found.items() if told != ANSWERS}
            # The others may not have asked yet when this one has all its answers.
            if not left and met >= len(others):
                break
            await asyncio.sleep(_PAUSE_S)
            found |= await _connect_all(left)
    finally:
        if server is not None:
            server.close()
            await server.wait_closed()
    return found, why_not


async def _connect_all(others: Mapping[str, str]) -> dict[str, str]:
    answers = await asyncio.gather(*map(_connect, others.values()))
    return dict(zip(others, answers, strict=True))


async def _connect(address: str) -> str:
    """Return ANSWERS, REFUSED or why the address cannot be reached."""
    try:
        connecting = asyncio.open_connection(*host_and_port(address))
        _, writer = await asyncio.wait_for(connecting, _CONNECT_S)
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return f"no answer within {_CONNECT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return ANSWERS


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
    name = place.name
    counts = ", ".join(f"{len(addresses)} {kind}" for kind, addresses in place.cluster.items())
    text = f"{name} of {counts}, by {place.source}"
    yield Check("cluster", "cluster", "ok", text, (place.tf_config,))
    others = {
        f"{kind} {index}": address
        for kind, addresses in place.cluster.items()
        for index, address in enumerate(addresses)
    }
    own = others.pop(name, None)
    found, not_listening = asyncio.run(meet(own, others, subject.listen_s))
    if not_listening is not None:
        text = f"this task cannot listen at its own address {own}: {not_listening}"
        fix = "end what listens there (ss -ltnp), take another port, or correct the host's name"
        yield Check("cluster", "own port", "failure", text, (), fix)
    elif own is not None:
        yield Check("cluster", "own port", "ok", f"{own} is free to listen at")
    yield _reached(others, found)


def _reached(others: Mapping[str, str], found: Mapping[str, str]) -> Check:
    evidence = tuple(f"{name} at {others[name]}: {told}" for name, told in found.items())
    lost = [name for name, told in found.items() if told not in (ANSWERS, REFUSED)]
    refused = [name for name, told in found.items() if told == REFUSED]
    if lost:
        text = ", ".join(f"{name} ({others[name]})" for name in lost) + " cannot be reached"
        fix = "check the name, the network and the firewall: each task must reach each other's port"
        return Check("cluster", "other tasks", "failure", text, evidence, fix)
    text = f"all {len(found)} other tasks can be reached"
    if refused:
        text = (
            f"all machines answer; nobody listens yet as {', '.join(refused)}, so a firewall that "
            "refuses looks the same: run `tfopt doctor --only cluster --listen 30s` on all at once"
        )
    return Check("cluster", "other tasks", "ok", text, evidence)
