"""Place the tasks of a job on this machine, hear signals for them, and mark their lines."""

from __future__ import annotations

import io
import re
import secrets
import signal
import socket
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from tfopt.distribute.launch.place import ClusterPlace
from tfopt.errors import UserError

# What a task ends with that has saved and asks to be started again: sysexits.h's EX_TEMPFAIL.
PREEMPTED = 75
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Below those that Linux gives to outgoing connections, so that none takes it before the task does.
_PORTS = range(20000, 32000)


def require_at_least(least: int, **counts: float) -> None:
    """Refuse counts below ``least``, by the names of their flags."""
    for name, count in counts.items():
        if not count >= least:  # also what is no number at all
            flag = "--" + name.replace("_", "-")
            raise UserError(
                f"{flag} is too small.", expected=f"{least} or more", received=str(count)
            )


def require_command(command: Sequence[str], before: str) -> None:
    """Refuse a job without a command; ``before`` is what stands before it."""
    if not command:
        raise UserError(
            "There is no command for the workers.",
            expected="the command behind two dashes",
            fix=f"{before} -- python train.py",
        )


class Signals:
    """A context in which the signals that end a program are collected, for a loop to act on.

    What the process was started to ignore (``nohup``, a shell's background) stays ignored.
    """

    def __init__(self) -> None:
        self.heard: list[signal.Signals] = []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            raise UserError(
                "A job can only be started from the main thread.",
                expected="the thread in which Python hears signals",
                received=threading.current_thread().name,
            )
        for number in _PASSED_ON:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: a handler that was not made in Python, and cannot be put back from it.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.heard.append(signal.Signals(number))


class MarkedLines(threading.Thread):
    """Write the lines of one stream of one task as wholes, each marked by the task.

    A progress bar's carriage return ends a line. What nobody reads any more is dropped.
    """

    _one_at_a_time = threading.Lock()

    def __init__(
        self,
        source: IO[bytes],
        label: str,
        target: IO[bytes],
        last: deque[str],
    ) -> None:
        super().__init__(name=f"tfopt-lines-{label}", daemon=True)
        # Bytes that are no text come out as they went in.
        self._lines = io.TextIOWrapper(source, "utf-8", errors="surrogateescape")
        self._label, self._target, self._last = label, target, last

    def run(self) -> None:
        with self._lines:
            for line in self._lines:
                self._last.append(line.rstrip("\n"))
                text = f"[{self._label}] {self._last[-1]}\n".encode("utf-8", "surrogateescape")
                with suppress(OSError), self._one_at_a_time:
                    write_all(self._target, text)


def write_all(target: IO[bytes], text: bytes) -> None:
    """Write all of it, also where a signal interrupts: an unbuffered stream then writes a part."""
    left = memoryview(text)
    while left:
        left = left[target.write(left) :]
    target.flush()


@dataclass(frozen=True)
class Task:
    """One process of a job."""

    place: ClusterPlace
    gpus: tuple[str, ...] | None
    """What CUDA_VISIBLE_DEVICES shall say; None where the machine has no GPU."""

    @property
    def is_chief_of_ps(self) -> bool:
        """Return whether the job is over when this task is done."""
        return self.place.kind == "chief" and "ps" in self.place.cluster

    @property
    def can_come_back(self) -> bool:
        """Return whether the others go on without it, and take it in when it is there again."""
        return self.place.kind == "worker" and "ps" in self.place.cluster

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables that make a process this task."""
        variables = {"TF_CONFIG": self.place.tf_config}
        if self.gpus is not None:
            # An empty text hides nothing from some versions of CUDA.
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus) or "-1"
        return variables


def tasks_here(workers: int, ps: int, gpus: Sequence[Sequence[str]] | None) -> list[Task]:
    """Return the tasks of a job with fresh ports: workers alone, or a chief, workers and ps.

    ``gpus`` are those of each worker; chief and ps of a parameter-server job get none.
    """
    kinds = {"chief": 1, "worker": workers, "ps": ps} if ps else {"worker": workers}
    ports = iter(free_ports(sum(kinds.values())))
    cluster = {
        kind: tuple(f"127.0.0.1:{next(ports)}" for _ in range(count))
        for kind, count in kinds.items()
    }
    tasks = []
    for kind, addresses in cluster.items():
        for index in range(len(addresses)):
            mine = None
            if gpus is not None:
                mine = tuple(gpus[index]) if kind == "worker" else ()
            place = ClusterPlace(kind, index, cluster, "tfopt launch")
            tasks.append(Task(place, mine))
    return tasks


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, at random so that two launchers seldom meet."""
    found: list[int] = []
    for port in secrets.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as attempt:
            # As the servers of TensorFlow do, which listen on every interface.
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                attempt.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise UserError(
        "There are not enough free ports on this machine.",
        expected=f"{count} between {_PORTS.start} and {_PORTS.stop}",
        received=f"{len(found)}",
    )


def visible_gpus(environment: Mapping[str, str], root: Path = Path("/")) -> tuple[str, ...]:
    """Return the GPUs that a process here sees: CUDA_VISIBLE_DEVICES, else the driver's devices."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # CUDA stops at the first name that is none.
        ends = [at for at, name in enumerate(names) if name in ("", "-1", "NoDevFiles", "none")]
        return tuple(names[: ends[0]] if ends else names)
    devices = (root / "dev").glob("nvidia*")
    count = sum(re.fullmatch(r"nvidia\d+", device.name) is not None for device in devices)
    return tuple(str(index) for index in range(count))


def shared_out(
    visible: Sequence[str], workers: int, gpus_per_worker: int | None
) -> list[tuple[str, ...]] | None:
    """Return the GPUs of each worker; None where there are none and none were asked for."""
    if not visible and not gpus_per_worker:
        return None
    each = len(visible) // workers if gpus_per_worker is None else gpus_per_worker
    if each * workers > len(visible) or (each == 0 and gpus_per_worker is None):
        raise UserError(
            "There are too few GPUs for the workers.",
            expected=f"{max(each, 1) * workers} GPU(s) for {workers} worker(s)",
            received=f"{len(visible)} visible ({', '.join(visible) or 'none'})",
            fix="fewer workers or --gpus-per-worker; --gpus-per-worker 0 trains on the CPU",
        )
    return [tuple(visible[each * at : each * (at + 1)]) for at in range(workers)]
