"""Set up a task, then become the user's command: ``python -m tfopt.distribute.launch.task``.

Under ``tfopt launch`` Linux sends the task SIGTERM when the launcher dies, as by kill -9; this
needs only Python.

Elsewhere, as under Slurm, the task sets what tf.distribute reads, so that a script needs to know
nothing of tfopt: TF_CONFIG, the task's share of the GPUs, and how the workers talk.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

LAUNCHER = "TFOPT_LAUNCHER"
"""The variable with the launcher's process."""
JOINED = "TFOPT_JOINED"
"""The variable that names the file by which a launcher sees that the tasks of a job have met."""
PREEMPTED = 75
"""What a task ends with that has saved and asks to be started again: EX_TEMPFAIL."""
_PR_SET_PDEATHSIG = 1


def require_command(command: tuple[str, ...], before: str) -> None:
    """Refuse a job without a command; ``before`` is what stands before it."""
    from tfopt.errors import UserError

    if not command:
        raise UserError(
            "There is no command for the workers.",
            expected="the command behind two dashes",
            fix=f"{before} -- python train.py",
        )


def leave_mark() -> None:
    """Show the launcher, where there is one, that this process looks for the others."""
    path = os.environ.get(JOINED)
    if path:
        with suppress(OSError):  # a container that does not see the launcher's folder
            Path(path).touch()


def become(command: list[str]) -> None:
    """Become ``command``; this never returns."""
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is not None:
        _end_with(int(launcher))
    else:
        _join_the_cluster()
    # Python ignores it, and what is ignored stays so in the command: `yes | head` would complain.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: {command[0]} cannot be started: {error.strerror}")


def _end_with(launcher: int) -> None:
    """Have this process, and what it becomes, end with its parent; on other systems it goes on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher:  # it died before
            sys.exit("error: the launcher is gone")


def _join_the_cluster() -> None:
    from tfopt.distribute.launch.communication import variables_to_talk
    from tfopt.distribute.launch.place import place_in_cluster
    from tfopt.errors import UserError

    try:
        place = place_in_cluster()
        _take_gpus()
    except UserError as error:
        sys.exit(f"error: {error}")
    if place is None:
        return
    os.environ["TF_CONFIG"] = place.tf_config
    hosts = [
        each.rpartition(":")[0].strip("[]") for all_ in place.cluster.values() for each in all_
    ]
    os.environ.update(variables_to_talk(os.environ, ps="ps" in place.cluster, hosts=hosts))


def _take_gpus() -> None:
    """Leave this task its own GPUs of those that all tasks of a Slurm node see."""
    from tfopt.distribute.launch.communication import shared_out, visible_gpus

    each, mine = os.environ.get("TFOPT_GPUS_PER_WORKER"), os.environ.get("SLURM_LOCALID")
    if each is None or mine is None:
        return
    shares = shared_out(visible_gpus(os.environ), int(mine) + 1, int(each))
    if shares is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(shares[int(mine)]) or "-1"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--"] and len(sys.argv) > 2:
        become(sys.argv[2:])
    else:
        sys.exit("usage: python -m tfopt.distribute.launch.task -- COMMAND ...")
