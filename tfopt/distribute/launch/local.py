"""Run a job on this machine, with one process for each task.

The first task that fails ends the others and their child processes. A restart starts all tasks with
new ports, except for a worker of a parameter-server job, which is restarted alone at its address.
It must run in the main thread, which handles signals.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tfopt.distribute.launch.attempt import Attempt, Task, write_all
from tfopt.distribute.launch.communication import (
    communication_variables,
    cuda_names,
    gpus_per_task,
)
from tfopt.distribute.launch.place import ClusterPlace
from tfopt.distribute.launch.task import JOINED, require_command
from tfopt.errors import UserError, require_count
from tfopt.subprocesses import handling

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PORTS = range(20000, 32000)  # below those of outgoing connections on Linux


@dataclass(frozen=True)
class LocalJob:
    """The settings of ``tfopt launch`` on this machine."""

    command: tuple[str, ...]
    workers: int
    ps: int = 0
    restarts: int = 0
    gpus_per_worker: int | None = None
    grace: float = 30.0
    """Seconds for a task to save and end after SIGTERM."""

    def __post_init__(self) -> None:
        require_count("--workers", self.workers)
        require_count("--ps", self.ps, 0)
        require_count("--restarts", self.restarts, 0)
        require_count("--gpus-per-worker", self.gpus_per_worker or 0, 0)
        require_command(self.command, "tfopt launch --workers 2")


def launch_here(
    job: LocalJob,
    out: IO[bytes] | None = None,
    err: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
) -> int:
    """Run the job and return its exit code.

        code = launch_here(LocalJob(("python", "train.py"), workers=2))

    That is the code of the task that failed first (128 + the signal's number for a signal), 0 if
    none failed, and 75 if a task requests a restart and none remains. If a signal stopped the
    launcher, it is 128 + the signal's number, unless the tasks ended by 0 or 75.
    """
    out, err = out or sys.stdout.buffer, err or sys.stderr.buffer
    base = dict(os.environ if environment is None else environment)
    gpus = gpus_per_task(cuda_names(base), job.workers, job.gpus_per_worker)
    count = len(gpus[0]) if gpus else 0
    variables = communication_variables(base, gpus=count, ps=job.ps > 0, hosts=["127.0.0.1"])
    base.update(variables)
    base.setdefault("PYTHONUNBUFFERED", "1")

    def log(text: str) -> None:
        with contextlib.suppress(OSError):  # of a closed terminal
            write_all(err, f"[tfopt] {text}\n".encode(errors="replace"))

    for name, value in variables.items():
        log(f"{name}={value}")
    signals: list[int] = []
    with (
        handling(lambda number, _: signals.append(number), *_FORWARDED),
        tempfile.TemporaryDirectory(prefix="tfopt-launch-") as marks,
    ):
        joined = Path(marks) / "joined"
        base[JOINED] = str(joined)
        workers = f"{job.workers} worker{'s' if job.workers > 1 else ''}"
        restarts = iter(range(1, job.restarts + 1))
        base["TFOPT_RESTART"] = "0"
        while True:
            tasks = tasks_here(job.workers, job.ps, gpus)
            log("starting " + (f"a chief, {workers}, {job.ps} ps" if job.ps else workers))
            attempt = Attempt(job.command, base, job.grace, signals, (out, err), log, restarts)
            code = attempt.run(tasks)
            if code == 0 and not joined.exists() and (job.workers > 1 or job.ps):
                call = "train_asynchronously" if job.ps else "distribute"
                log(
                    f"no task has called tfopt.{call}(): unless the script connects the tasks in "
                    "another way, each has trained a separate model"
                )
            number = None if code == 0 or attempt.stopped_by else next(restarts, None)
            if number is None:
                return code
            base["TFOPT_RESTART"] = str(number)
            log(f"starting again ({number} of {job.restarts} restarts)")


def tasks_here(workers: int, ps: int, gpus: Sequence[Sequence[str]] | None) -> list[Task]:
    """Return the tasks of a job with free ports: workers, or a chief, workers and ps.

    ``gpus`` are those of each worker; the chief and ps get none.
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
    """Return random free ports, so that two launchers seldom choose the same ones."""
    ports = secrets.SystemRandom().sample(_PORTS, len(_PORTS))
    found = list(itertools.islice(filter(_is_free, ports), count))
    if len(found) < count:
        raise UserError(
            "There are not enough free ports on this machine.",
            expected=f"{count} between {_PORTS.start} and {_PORTS.stop}",
            received=str(len(found)),
        )
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        # As TensorFlow's servers do.
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("", port))
        except OSError:
            return False
    return True
