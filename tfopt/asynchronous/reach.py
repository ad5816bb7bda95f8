"""Who answers: whether something listens at an address, and who has fallen silent.

Guarantees: every wait ends. A task counts as gone when it has not answered ``GONE_AFTER`` times in
a row, one second and more apart: between ten and thirty seconds, never on one lost packet.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable

from tfopt.errors import UserError

GONE_AFTER = 10
_PAUSE_S = 1.0


def answers(address: str, timeout_s: float = 2.0) -> bool:
    """Whether a process listens there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s):
            return True
    except OSError:
        return False


def wait_for(
    tasks: dict[str, str], patience_s: float, enough: Callable[[set[str]], bool] | None = None
) -> set[str]:
    """Waits until all tasks answer; those that do when patience is over, if they are enough.

    Args:
        tasks: Addresses by name.
        patience_s: How long to wait, in seconds.
        enough: Whether to begin with some of them; they still get a moment for the others.
    """
    there: set[str] = set()
    pause = threading.Event()
    tried = 0
    with_some = 0
    while True:
        there |= {name for name, address in tasks.items() if answers(address, 1.0)}
        if len(there) == len(tasks):
            return there
        tried += 1
        with_some += enough is not None and enough(there)
        if with_some > GONE_AFTER:
            return there
        if tried * _PAUSE_S >= patience_s:
            if with_some:
                return there
            raise UserError(
                "Tasks of the cluster do not answer: "
                + ", ".join(f"{name} at {tasks[name]}" for name in tasks if name not in there)
                + ".",
                expected=f"a process listening there within {patience_s:g} s",
                received="no connection",
                fix="start the same script once for each task, with the same cluster in TF_CONFIG; "
                "see that no firewall is between",
            )
        pause.wait(_PAUSE_S)


class Watch:
    """Looks in the background at who still answers."""

    def __init__(self, tasks: dict[str, str]) -> None:
        self._tasks = dict(tasks)
        self._silent = dict.fromkeys(tasks, 0)
        self._losses = dict.fromkeys(tasks, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, name="tfopt-watch", daemon=True)
        self._thread.start()

    def add(self, name: str, address: str) -> None:
        self._silent[name] = self._losses[name] = 0
        self._tasks[name] = address

    def gone(self, names: Iterable[str]) -> list[str]:
        """Those that have been silent for too long."""
        return [name for name in names if self._silent.get(name, 0) >= GONE_AFTER]

    def losses(self) -> int:
        """How often a task has stopped answering."""
        return sum(self._losses.values())

    def stop(self) -> None:
        self._stop.set()

    def _look(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            for name, address in list(self._tasks.items()):
                if answers(address):
                    self._silent[name] = 0
                else:
                    self._losses[name] += self._silent[name] == 0
                    self._silent[name] += 1
