"""Set up a task, then exec the user's command: ``python -m tfopt.distribute.launch.task``.

Under ``tfopt launch``, with the standard library alone, Linux is asked to send the task SIGTERM
when the launcher dies. Under Slurm it sets the variables of tf.distribute, so that a script needs
no tfopt: TF_CONFIG, the task's GPUs, and those of NCCL and gRPC.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

LAUNCHER = "TFOPT_LAUNCHER"
"""The variable with the launcher's process id."""
JOINED = "TFOPT_JOINED"
"""The variable with the path of a file that tasks create when they join the cluster."""
PREEMPTED = 75
"""The exit code of a task that has saved and requests a restart: EX_TEMPFAIL."""
_PR_SET_PDEATHSIG = 1


def require_command(command: tuple[str, ...], before: str) -> None:
    """Refuse a job without a command; ``before`` is the command line before it."""
    from tfopt.errors import UserError

    if not command:
        raise UserError(
            "There is no command for the workers.",
            expected="the command after two dashes",
            fix=f"{before} -- python train.py",
        )


def mark_joined() -> None:
    """Show the launcher, if there is one, that this process joins the cluster."""
    path = os.environ.get(JOINED)
    if path:
        with suppress(OSError):  # in a container without the launcher's folder
            Path(path).touch()


def launchers_folder() -> str | None:
    """Return the folder that the launcher removes when it ends; None without one."""
    folder = os.path.dirname(os.environ.get(JOINED, ""))
    return folder if os.path.isdir(folder) else None  # a container may not have it


def become(command: list[str]) -> None:
    """Replace this process by ``command``."""
    launcher = os.environ.pop(LAUNCHER, None)
    if launcher is not None:
        _end_with(int(launcher))
    else:
        _join_the_cluster()
    # Python ignores SIGPIPE, and the command would inherit that.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: {command[0]} cannot be started: {error.strerror}")


def _end_with(launcher: int) -> None:
    """Let this process end with its parent, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != launcher:  # it ended before
            sys.exit("error: the launcher has ended")


def _join_the_cluster() -> None:
    from tfopt.distribute.launch.communication import communication_variables
    from tfopt.distribute.launch.place import KINDS, host_and_port, place_in_cluster
    from tfopt.errors import UserError

    try:
        place = place_in_cluster()
        _take_gpus()
    except UserError as error:
        sys.exit(f"error: {error}")
    if place is None:
        return
    os.environ["TF_CONFIG"] = place.tf_config
    hosts = [host_and_port(address)[0] for address in place.tasks(*KINDS).values()]
    os.environ.update(communication_variables(os.environ, ps="ps" in place.cluster, hosts=hosts))


def _take_gpus() -> None:
    """Show this task its part of the GPUs, all of which every task of a Slurm node sees."""
    from tfopt.distribute.launch.communication import cuda_names, gpus_per_task

    count, index = os.environ.get("TFOPT_GPUS_PER_WORKER"), os.environ.get("SLURM_LOCALID")
    if count is None or index is None:
        return
    gpus = gpus_per_task(cuda_names(os.environ), int(index) + 1, int(count))
    if gpus is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[int(index)]) or "-1"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--"] and len(sys.argv) > 2:
        become(sys.argv[2:])
    else:
        sys.exit("usage: python -m tfopt.distribute.launch.task -- COMMAND ...")
