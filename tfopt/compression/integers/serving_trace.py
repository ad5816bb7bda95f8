"""Whether a model is being traced for the file that serves it: then its weights are constants."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_serving = threading.local()


@contextmanager
def as_served() -> Iterator[None]:
    """What is traced inside has kernels and ranges as constants, as the converter needs them."""
    _serving.on = True
    try:
        yield
    finally:
        _serving.on = False


def serves() -> bool:
    """Whether this thread is inside :func:`as_served`."""
    return getattr(_serving, "on", False)
