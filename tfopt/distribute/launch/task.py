"""Set up a task, then become the user's command: ``python -m tfopt.distribute.launch.task``.

Under ``tfopt launch`` the task gives its process group to the launcher's guard, so that there is no
moment in which the launcher could die and leave it behind. The guard is this file too, in a process
of its own: it ends the tasks of a launcher that is gone, as by kill -9. Both need only Python.

Elsewhere, as under Slurm, the task sets what tf.distribute reads, so that a script needs to know
nothing of tfopt: TF_CONFIG, the task's share of the GPUs, and how the workers talk.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

LIFELINE = "TFOPT_LIFELINE"


def become(command: list[str]) -> None:
    """Become ``command``; this never returns."""
    lifeline = os.environ.pop(LIFELINE, None)
    if lifeline is not None:
        try:
            os.write(int(lifeline), f"{os.getpgid(0)}\n".encode())
        except BrokenPipeError:
            sys.exit("error: the launcher's guard is gone")
        os.close(int(lifeline))
    else:
        _join_the_cluster()
    # Python ignores it, and what is ignored stays so in the command: `yes | head` would complain.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: {command[0]} cannot be started: {error.strerror}")


def _join_the_cluster() -> None:
    from tfopt.distribute.launch.communication import choose
    from tfopt.errors import UserError
    from tfopt.job.cluster_place import place_in_cluster

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
    chosen = choose(os.environ, ps="ps" in place.cluster, hosts=hosts)
    os.environ.update(chosen.to_set)
    if place.is_chief:
        sys.stderr.write(f"{chosen.table()}\n")
        sys.stderr.flush()


def _take_gpus() -> None:
    """Leave this task its own GPUs of those that all tasks of a Slurm node see."""
    from tfopt.distribute.launch.local_tasks import shared_out, visible_gpus

    each, mine = os.environ.get("TFOPT_GPUS_PER_WORKER"), os.environ.get("SLURM_LOCALID")
    if each is None or mine is None:
        return
    shares = shared_out(visible_gpus(os.environ), int(mine) + 1, int(each))
    if shares is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(shares[int(mine)]) or "-1"


def guard(grace: float) -> None:
    """Wait for the launcher's end, then end what it has left: SIGTERM, after the grace SIGKILL.

    Each task writes its process group into the standard input. The launcher holds the other end of
    this pipe, so it is read to its end when the launcher has ended without ending the guard first.
    A process that has left its task's group and session on purpose is not found.
    """
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    groups = signalled({int(line) for line in sys.stdin}, signal.SIGTERM)
    if groups:
        with contextlib.suppress(OSError):  # nobody may be there to read it
            sys.stderr.write(f"[tfopt] the launcher is gone: ending {len(groups)} task(s)\n")
            sys.stderr.flush()
    deadline = time.monotonic() + grace
    while groups and time.monotonic() < deadline:
        time.sleep(0.1)
        groups = signalled(groups, 0)
    signalled(groups, signal.SIGKILL)


def signalled(groups: set[int], number: int) -> set[int]:
    """Send the signal to each group; return those that are still there."""
    there = set()
    for group in groups:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            continue
        except PermissionError:
            pass  # a task that has become another user
        there.add(group)
    return there


if __name__ == "__main__":
    if sys.argv[1:2] == ["--guard"]:
        guard(float(sys.argv[2]))
    elif sys.argv[1:2] == ["--"] and len(sys.argv) > 2:
        become(sys.argv[2:])
    else:
        sys.exit("usage: python -m tfopt.distribute.launch.task -- COMMAND ...")
