"""What is said while a worker waits for others, and what it can tell of its own address.

Guarantees: whoever waits for longer than some seconds says for whom, and again each minute; nothing
is decided here.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

_log = logging.getLogger("tfopt")
_FIRST_S, _THEN_S = 10.0, 60.0


@asynccontextmanager
async def told_while_waiting(what: Callable[[], str]) -> AsyncIterator[None]:
    """Inside, what is waited for is told now and then, as a warning of the logger ``tfopt``."""

    async def tell() -> None:
        await asyncio.sleep(_FIRST_S)
        while True:
            _log.warning("%s", what())
            await asyncio.sleep(_THEN_S)

    telling = asyncio.create_task(tell())
    try:
        yield
    finally:
        telling.cancel()


def is_here(host: str) -> bool:
    """Whether an address of this machine; not so where something forwards it from outside."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        with socket.socket(family, kind, protocol) as attempt:
            try:
                attempt.bind(address)
            except OSError:
                continue
            return True
    return False
