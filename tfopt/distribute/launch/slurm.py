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
import shlex
from dataclasses import dataclass
from pathlib import Path

from tfopt.distribute.launch.task import PREEMPTED, require_command
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
        options = [
            f"--job-name={self.name}",
            f"--nodes={self.nodes}",
            f"--ntasks-per-node={self.workers_per_node}",
            f"--cpus-per-task={self.cpus_per_worker}",
            f"--signal=B:TERM@{self.grace}",
            "--open-mode=append",
            "--requeue" if self.requeue else "--no-requeue",
        ]
        if self.gpus_per_worker:
            options.append(f"--gres=gpu:{self.gpus_per_worker * self.workers_per_node}")
        options += [f"--partition={self.partition}"] if self.partition else []
        options += [f"--time={self.time}"] if self.time else []
        # The command's Python if it begins with one, else that of the job's PATH.
        first = self.command[0]
        python = first if re.fullmatch(r"python[0-9.]*", Path(first).name) else "python"
        return _FILE.format(
            options="\n".join(f"#SBATCH {option}" for option in options),
            gpus=self.gpus_per_worker,
            cpus=self.cpus_per_worker,
            python=shlex.quote(python),
            command=shlex.join(self.command),
            requeue=_REQUEUE if self.requeue else "",
        )


_REQUEUE = f"""\
if [ "$passed" = yes ] && [ "$code" = {PREEMPTED} ]; then
  echo "tfopt: the tasks request a restart: queueing the job again"
  scontrol requeue "$SLURM_JOB_ID"
fi
"""
_FILE = """\
#!/bin/bash
{options}

export TFOPT_GPUS_PER_WORKER={gpus} PYTHONUNBUFFERED=1

# One failure ends all tasks. The shell waits beside srun, to handle SIGTERM.
srun --label --kill-on-bad-exit=1 --distribution=block --cpus-per-task={cpus} \\
  {python} -m tfopt.distribute.launch.task -- {command} &
step=$!
passed=no
pass_on() {{
  # Once: a task may not handle a second SIGTERM.
  [ "$passed" = yes ] && return
  passed=yes
  echo "tfopt: forwarding SIGTERM to all tasks"
  scancel --signal=TERM "$SLURM_JOB_ID"
}}
trap pass_on TERM
wait "$step"
code=$?
# A signal ends the wait, not the step.
while kill -0 "$step" 2>/dev/null; do
  wait "$step"
  code=$?
done
{requeue}exit "$code"
"""
