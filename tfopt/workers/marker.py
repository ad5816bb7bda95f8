"""Word from a worker to its launcher: it has joined the others, or trains with parameter servers.

Guarantees: a launcher that asks for it can tell a job whose tasks never met, each of which has
trained a model of its own, from one that trained together. Nothing fails where nobody asks.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

# The file that a launcher wants to see there.
JOINED = "TFOPT_JOINED"


def leave_mark() -> None:
    """Tells the launcher, where there is one, that this process found the others."""
    path = os.environ.get(JOINED)
    if path:
        with suppress(OSError):  # a container that does not see the launcher's folder
            Path(path).touch()
