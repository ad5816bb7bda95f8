"""Check that the other tasks of this process's cluster can be reached.

The doctor of each task listens at the task's address, where TensorFlow will listen later, and
connects to the others.
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
REACHED = "reached"
REFUSED = "connection refused"


async def connect_all(
    own: str | None, others: Mapping[str, str], listen_s: float
) -> tuple[dict[str, str], str | None]:
    """Connect to all others, and retry for ``listen_s`` until all have connected to all.

    Returns the result for each by its name, and the error of listening, if any.
    """
    connected, server, listen_error = 0, None, None

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        writer.close()

    if own is not None:
        try:
            server = await asyncio.start_server(accept, *host_and_port(own))
        except OSError as error:
            listen_error = error.strerror or str(error)
    try:
        results = await _connect_each(others)
        end = time.monotonic() + listen_s
        while time.monotonic() < end:
            failed = {name: others[name] for name, text in results.items() if text != REACHED}
            if not failed and connected >= len(others):
                break
            await asyncio.sleep(_PAUSE_S)
            results |= await _connect_each(failed)
    finally:
        if server is not None:
            server.close()
            await server.wait_closed()
    return results, listen_error


async def _connect_each(others: Mapping[str, str]) -> dict[str, str]:
    results = await asyncio.gather(*map(_connect, others.values()))
    return dict(zip(others, results, strict=True))


async def _connect(address: str) -> str:
    """Return REACHED, REFUSED or the reason why the address cannot be reached."""
    try:
        connecting = asyncio.open_connection(*host_and_port(address))
        _, writer = await asyncio.wait_for(connecting, _CONNECT_S)
    except ConnectionRefusedError:
        return REFUSED
    except TimeoutError:
        return f"no reply within {_CONNECT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return REACHED


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
    results, listen_error = asyncio.run(connect_all(own, others, subject.listen_s))
    if listen_error is not None:
        text = f"this task cannot listen at its address {own}: {listen_error}"
        fix = "end the process there (ss -ltnp), use another port, or correct the host name"
        yield Check("cluster", "own port", "failure", text, (), fix)
    elif own is not None:
        yield Check("cluster", "own port", "ok", f"{own} is free to listen at")
    yield _reached(others, results)


def _reached(others: Mapping[str, str], results: Mapping[str, str]) -> Check:
    evidence = tuple(f"{name} at {others[name]}: {text}" for name, text in results.items())
    lost = [name for name, text in results.items() if text not in (REACHED, REFUSED)]
    refused = [name for name, text in results.items() if text == REFUSED]
    if lost:
        text = ", ".join(f"{name} ({others[name]})" for name in lost) + " cannot be reached"
        fix = "check host name, network and firewall: all tasks must reach the ports of all others"
        return Check("cluster", "other tasks", "failure", text, evidence, fix)
    text = f"all {len(results)} other tasks can be reached"
    if refused:
        text = (
            f"all machines can be reached; {', '.join(refused)} does not listen yet, which a "
            "firewall may hide: run `tfopt doctor --only cluster --listen 30s` on all at once"
        )
    return Check("cluster", "other tasks", "ok", text, evidence)
