"""Write a batch file for Slurm: one ``srun`` of all workers, queued again when preempted.

Each task is started by ``tfopt.distribute.launch.task``, so the Python of the job, that of the
command if it begins with one, must have tfopt. Slurm's ``--gpus-per-task`` is not used: it hides
the other GPUs of the node from each task, so that NCCL cannot copy between them.

The batch shell gets SIGTERM before the time limit or at a preemption, and forwards it to all tasks;
only if they end with 75 then is the job queued again: srun returns the highest exit code, so after
the failure of one task it is the 75 of the others. After the first task's end the others have the
site's KillWait (often 30 s) to end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tfopt.distribute.launch.task import PREEMPTED, require_command
from tfopt.distribute.launch.templates import rendered
from tfopt.errors import UserError, require_count


@dataclass(frozen=True)
class SlurmJob:
    """The settings of the batch file; ``batch_file()`` is its text."""

    command: tuple[str, ...]
    nodes: int
    workers_per_node: int = 1
    gpus_per_worker: int = 0
    cpus_per_worker: int = 1
    name: str = "train"
    partition: str | None = None
    time: str | None = None
    requeue: bool = False
    grace: int = 120
    """Seconds before the time limit at which the tasks get SIGTERM."""

    def __post_init__(self) -> None:
        require_count("--nodes", self.nodes)
        require_count("--workers-per-node", self.workers_per_node)
        require_count("--gpus-per-worker", self.gpus_per_worker, 0)
        require_count("--cpus-per-worker", self.cpus_per_worker)
        require_count("--grace", self.grace)
        require_command(self.command, "tfopt launch slurm --nodes 2")
        texts = {"--name": self.name, "--partition": self.partition, "--time": self.time}
        for flag, text in texts.items():
            if text is not None and not re.fullmatch(r"[A-Za-z0-9_.,:-]+", text):
                raise UserError(
                    f"{flag} has characters that a batch file cannot contain.",
                    expected="letters, digits, and . , : _ -",
                    received=repr(text),
                )

    def batch_file(self) -> str:
        """Return the text for ``sbatch``."""
        # The command's Python if it begins with one, else that of the job's PATH.
        first = self.command[0]
        python = first if re.fullmatch(r"python[0-9.]*", Path(first).name) else "python"
        return rendered("slurm.sh.j2", job=self, python=python, preempted=PREEMPTED)
