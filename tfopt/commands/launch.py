"""Start a distributed job here, or write the file that starts it elsewhere: ``tfopt launch``."""

from __future__ import annotations

import argparse
import math
import re
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any, NoReturn

from tfopt.commands.arguments import add_command, drop_output
from tfopt.errors import UserError, require_count
from tfopt.recipes.flags import duration

_DESCRIPTION = """\
Starts COMMAND once for each worker on this machine. Each finds its place in TF_CONFIG, where
tfopt.distribute() and tf.distribute look for it; its lines are marked with its name. Worker 0 is
the chief. With --ps there are also a chief and parameter servers, and the job ends with the chief.

The first task that fails ends all others: SIGTERM, and SIGKILL after the grace. With --restarts
the job is then started again, as after exit code 75, by which a task says that it has saved its
work (tfopt.resume does). With --ps a failed worker is started again alone. A job that was told to
end (SIGINT, SIGTERM, SIGHUP) is not started again. TFOPT_RESTART counts the restarts.

With --data-workers there is no training: it runs tf.data's service until it is told to end, and
prints the address for Pipeline(service=...). It has no passwords: keep its ports in your network.
"""
_CODES = """\
examples:
  tfopt launch --workers 2 --restarts 3 -- python train.py
  tfopt launch slurm --nodes 2 --gpus-per-worker 1 --output job.sh -- python train.py
  tfopt launch slurm --help        its flags; likewise for kubernetes

exit codes:
  0     all tasks (or the chief of a --ps job) ended well
  75    a task asks to be started again, and no restart is left
  else  that of the task that failed first; 128 + its number for a signal
"""
_USAGE = (
    "tfopt launch --workers N [options] -- COMMAND ..., or tfopt launch --data-workers N [options]"
)


def cut_command(given: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return the arguments of ``tfopt launch``, and the user's command after the two dashes."""
    arguments = list(given)
    if arguments[:1] != ["launch"] or "--" not in arguments:
        return arguments, ()
    at = arguments.index("--")
    return arguments[:at], tuple(arguments[at + 1 :])


def add_launch(commands: Any) -> None:
    """Add the command to ``tfopt``."""
    parser = add_command(
        commands,
        "launch",
        _launch,
        help="start a distributed job here, or write its file for Slurm or Kubernetes",
        usage=_USAGE,
        description=_DESCRIPTION,
        epilog=_CODES,
    )
    add = parser.add_argument
    number = partial(add, type=int)
    number("--workers", metavar="N", help="number of workers")
    number("--ps", default=0, metavar="M", help="number of parameter servers (default: 0)")
    text = "number of processes that prepare batches for Pipeline(service=...); no COMMAND"
    number("--data-workers", metavar="D", help=text)
    text = "with --data-workers: its port (default: a free one)"
    number("--port", default=0, metavar="P", help=text)
    add("--host", help="with --data-workers: the name of this host for others")
    _add_restarts(parser, ", after a failure or exit code 75")
    text = "visible GPUs for each worker (default: all, shared out evenly)"
    number("--gpus-per-worker", metavar="G", help=text)
    text = "time for a task to save and end (default: 30s)"
    add("--grace", type=duration, default=30.0, metavar="TIME", help=text)
    # argparse would take a command without its dashes for another kind of launcher.
    plain: Callable[[str], NoReturn] = parser.error

    def error(message: str) -> NoReturn:
        if word := re.search(r"invalid choice: '(.*?)'", message):
            message = f"no -- before the command {word[1]!r}, or an unknown flag before it"
            message += "; as in: tfopt launch --workers 2 -- python train.py"
        plain(message)

    setattr(parser, "error", error)  # noqa: B010 (mypy: a method)
    elsewhere = parser.add_subparsers(metavar="elsewhere", prog="tfopt launch")
    _add_slurm(elsewhere)
    _add_kubernetes(elsewhere)


def _add_slurm(elsewhere: Any) -> None:
    parser = add_command(
        elsewhere,
        "slurm",
        _slurm,
        help="write a batch file for Slurm",
        usage="tfopt launch slurm --nodes N [options] -- COMMAND ...",
        description="Writes a file for sbatch that starts COMMAND in every task of one srun. Its\n"
        "tasks get SIGTERM before the time limit and at a preemption; where they end\n"
        "with exit code 75, --requeue queues the job again.",
    )
    add = parser.add_argument
    add("--nodes", type=int, required=True, metavar="N", help="number of nodes")
    number = partial(add, type=int)
    number("--workers-per-node", default=1, metavar="W", help="tasks on a node (default: 1)")
    number("--gpus-per-worker", default=0, metavar="G", help="GPUs of a task (default: 0)")
    number("--cpus-per-worker", default=1, metavar="C", help="cores of a task (default: 1)")
    add("--name", default="train", help="the job's name (default: train)")
    add("--partition", help="the partition, as the site calls it")
    add("--time", help="the time limit as Slurm writes it, such as 1-12:00:00")
    add("--requeue", action="store_true", help="queue the job again after a preemption")
    _add_grace(parser, "time to save before the time limit (default: 2m)")
    _add_output(parser)


def _add_kubernetes(elsewhere: Any) -> None:
    parser = add_command(
        elsewhere,
        "kubernetes",
        _kubernetes,
        help="write a manifest for Kubernetes",
        usage="tfopt launch kubernetes --image IMAGE --workers N [options] -- COMMAND ...",
        description="Writes an Indexed Job and its Service, for kubectl apply -f. A pod that was\n"
        "evicted, or ends with exit code 75, starts again and does not count as a\n"
        "failure.",
    )
    add = parser.add_argument
    add("--name", default="train", help="the job's name (default: train)")
    add("--image", required=True, help="the container image with the script")
    add("--workers", type=int, default=1, metavar="N", help="number of pods (default: 1)")
    add("--gpus-per-worker", type=int, default=0, metavar="G", help="GPUs of a pod (default: 0)")
    quantity = partial(add, metavar="QUANTITY")
    quantity("--cpus-per-worker", help="cores to request for a pod, such as 8")
    quantity("--memory", help="memory limit of a pod, such as 64Gi")
    shared = "how much of that may be shared memory (default: 8Gi)"
    quantity("--shared-memory", default="8Gi", help=shared)
    add("--claim", metavar="NAME:/PATH", help="a volume claim for checkpoints, and its mount path")
    _add_restarts(parser, " after a failure")
    _add_grace(parser, "time for a pod to save and end (default: 2m)")
    _add_output(parser)


def _add_restarts(parser: argparse.ArgumentParser, when: str) -> None:
    text = f"how often to start the job again{when} (default: 0)"
    parser.add_argument("--restarts", type=int, default=0, metavar="R", help=text)


def _add_grace(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--grace", type=_whole_seconds, default=120, metavar="TIME", help=text)


def _whole_seconds(text: str) -> int:
    return math.ceil(duration(text))


def _add_output(parser: argparse.ArgumentParser) -> None:
    text = "the file to write (default: print it)"
    parser.add_argument("--output", metavar="FILE", help=text)


def _slurm(options: argparse.Namespace) -> int:
    from tfopt.distribute.launch.slurm import SlurmJob

    job = SlurmJob(**_fields(SlurmJob, options))
    return _written(job.batch_file(), options.output)


def _kubernetes(options: argparse.Namespace) -> int:
    from tfopt.distribute.launch.kubernetes import KubernetesJob

    job = KubernetesJob(**_fields(KubernetesJob, options))
    return _written(job.manifest(), options.output)


def _fields(kind: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that a dataclass has fields for."""
    return {field.name: getattr(options, field.name) for field in fields(kind)}


def _written(text: str, output: str | None) -> int:
    from tfopt.files import target_of, write_atomically

    if output is None:
        print(text, end="")
    else:
        print(write_atomically(target_of(output), text))
    return 0


def _launch(options: argparse.Namespace) -> int:
    from tfopt.distribute.launch.local import LocalJob, launch_here

    if options.data_workers is not None:
        return _serve(options)
    if options.workers is None:
        raise UserError(
            "tfopt launch needs the number of workers.",
            expected=_USAGE,
            fix="add --workers 2, for instance",
        )
    job = LocalJob(
        options.command,
        options.workers,
        ps=options.ps,
        restarts=options.restarts,
        gpus_per_worker=options.gpus_per_worker,
        grace=options.grace,
    )
    code = launch_here(job)
    if code == 128 + signal.SIGPIPE:
        # Who read the tasks' lines has gone. What is left of them is not worth a second error.
        drop_output()
    return code


def _serve(options: argparse.Namespace) -> int:
    """Run data workers until the process is told to end."""
    from tfopt.data.service import serving

    if options.workers is not None or options.command:
        raise UserError(
            "--data-workers runs a data service, and no training beside it.",
            expected="tfopt launch --data-workers N, without --workers and a command",
            received="a training beside it",
            fix="start it by itself, and give the training the address: service='grpc://host:port'",
        )
    require_count("--data-workers", options.data_workers)
    with serving(options.data_workers, port=options.port, host=options.host) as address:
        print(address, flush=True)
        threading.Event().wait()
    return 0
