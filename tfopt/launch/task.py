"""What a task goes through before it becomes the user's command: ``python -m tfopt.launch.task``.

Under ``tfopt launch`` it tells the guard its process group, so that there is no moment in which
the launcher could die and leave it behind. Under Slurm it writes TF_CONFIG from Slurm's variables,
and chooses how the workers talk from what this machine has, so that scripts which know nothing of
tfopt find what tf.distribute reads. Then it is replaced by the command: no process stays between.
"""

from __future__ import annotations

import os
import sys

LIFELINE = "TFOPT_LIFELINE"


def main(command: list[str]) -> None:
    """Never returns: the process becomes ``command``."""
    lifeline = os.environ.pop(LIFELINE, None)
    if lifeline is not None:
        try:
            os.write(int(lifeline), f"{os.getpgid(0)}\n".encode())
        except BrokenPipeError:
            sys.exit("error: the launcher's guard is gone")
        os.close(int(lifeline))
    else:
        _join_the_cluster()
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"error: {command[0]} cannot be started: {error.strerror}")


def _join_the_cluster() -> None:
    from tfopt.cluster import place_in_cluster
    from tfopt.errors import UserError
    from tfopt.launch.communication import choose

    try:
        place = place_in_cluster()
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


if __name__ == "__main__":
    if sys.argv[1:2] != ["--"] or len(sys.argv) < 3:
        sys.exit("usage: python -m tfopt.launch.task -- COMMAND ...")
    main(sys.argv[2:])
