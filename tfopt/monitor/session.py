"""An open session with NVIDIA's management library (NVML).

Guarantees: NVML is imported and initialised only inside a call and shut down after it; whatever it
refuses is an ``UnavailableError`` in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

MIB = 1024 * 1024


class UnavailableError(Exception):
    """NVML cannot answer; the text says why."""


@contextmanager
def session() -> Iterator[Any]:
    """NVML, initialised and shut down again; whatever it refuses is an UnavailableError."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnavailableError(f"NVML: {error}") from error
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise UnavailableError(f"NVML: {error}") from error
    finally:
        # A driver that went away meanwhile cannot be left in good order.
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def text(value: bytes | str) -> str:
    """What NVML calls something; older versions of pynvml give bytes."""
    return value.decode() if isinstance(value, bytes) else value
