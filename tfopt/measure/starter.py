"""Start processes for the parent: ``python -m tfopt.measure.starter SOCKET``.

TensorFlow is loaded once, not used, and each child is forked from here, which saves it the import:
CUDA starts in a fork too, as long as it has not started here. Each child is the leader of a process
group, and has a watcher, which tells how it ended, and a folder for Python's temporary files, which
the watcher removes. All end with this process, and this process with its parent.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import re
import shutil
import signal
import socket
import sys
import sysconfig
import tempfile
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfopt.subprocesses import remove_when_ended

_PDEATHSIG = 1  # PR_SET_PDEATHSIG
_READ_AT_IMPORT = ("TF_", "XLA_", "KERAS_")
_TFOPT = Path(__file__).resolve().parent.parent
_FRAME = re.compile(r'\s*File "|\s{4}')  # the way to an operation, as TensorFlow tells it
_LONGEST_PATH = 1 << 12


def serve(socket_number: int, folder: str) -> None:
    """Start a child for each message of the parent, a log's path with the child's end of a pipe."""
    control = socket.socket(fileno=socket_number)
    _load_tensorflow()
    os.chdir("/")  # each child has its folder, and this process holds none
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the watchers
    while True:
        log, numbers, _, _ = socket.recv_fds(control, _LONGEST_PATH, 1)
        if not log:  # the parent is gone, and may not have removed its folder
            waiting = remove_when_ended(folder)  # noqa: F841 (as long as this process)
            os._exit(0)
        if os.fork() == 0:
            control.close()
            _watch(numbers[0], log.decode())
        os.close(numbers[0])


def _watch(pipe: int, log: str) -> None:
    """Fork the child that carries out a task; tell its process id, and in the end its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # TensorFlow's AutoGraph, for one, leaves its files to an exit handler, which never runs.
    tempfile.tempdir = tempfile.mkdtemp(dir=Path(log).parent)
    pid = os.fork()
    if pid == 0:
        _become_child(pipe, log)

    def starter_is_gone(*_: object) -> None:
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
        os._exit(0)

    with suppress(OSError):  # whoever is first, this process or the child
        os.setpgid(pid, pid)
    signal.signal(signal.SIGTERM, starter_is_gone)
    _die_with_parent(signal.SIGTERM)
    told = Connection(pipe)
    with suppress(OSError):  # of a parent that has let go of the child
        told.send(("started", pid))
        told.send(("ended", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
    shutil.rmtree(tempfile.tempdir, ignore_errors=True)
    os._exit(0)


def _die_with_parent(number: signal.Signals) -> None:
    ctypes.CDLL(None).prctl(_PDEATHSIG, number)


def _load_tensorflow() -> None:
    import keras
    import tensorflow as tf

    from tfopt import run  # noqa: F401
    from tfopt.job import references  # noqa: F401
    from tfopt.measure import turn_taking  # noqa: F401

    keras.Model, tf.Variable  # noqa: B018 (both load most of themselves when they are first touched)
    gc.freeze()  # no child looks through what is loaded here


def _become_child(pipe: int, log: str) -> None:
    """Carry out one task in this process, and end at once.

    Python would wait for a thread of tf.data that still feeds from a generator.
    """
    code = 1
    try:
        os.setpgid(0, 0)
        _die_with_parent(signal.SIGKILL)  # a stopped process does not see its pipe close
        with suppress(OSError):  # the first to be killed where memory runs out
            Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(written, 1)
        os.dup2(written, 2)
        import numpy as np

        random.seed()
        np.random.seed()
        _work(Connection(pipe))
        code = 0
    except BaseException:  # these are its last words
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _work(pipe: Connection) -> None:
    """Carry out the task that comes through the pipe; send what it found, or what went wrong."""
    spec = pipe.recv()
    os.chdir(spec["folder"])
    sys.path[0] = spec["folder"]
    from tfopt.errors import UserError

    try:
        pipe.send(_carried_out(spec, pipe))
    except UserError as error:
        pipe.send(("refused", str(error)))
    except (BrokenPipeError, EOFError):
        return
    except BaseException as error:  # sys.exit too
        traceback.print_exc()
        pipe.send(("failed", _message(error)))


def _carried_out(spec: dict[str, Any], pipe: Connection) -> tuple[str, Any]:
    from tfopt.job.recipe_file import chain_from_toml
    from tfopt.job.references import resolve_job

    before = dict(os.environ)
    chain = chain_from_toml(spec["chain"])
    job = resolve_job(spec["job"], spec["arguments"], seed=spec["seed"])
    # What the job's module sets, TensorFlow and Keras have to find when they are loaded.
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_READ_AT_IMPORT) and before.get(name) != value
    }
    if settings and not spec["settings"]:
        return "settings", settings
    return "done", spec["task"](job, chain, pipe)


def _message(error: BaseException) -> str:
    from tfopt.errors import without_colours

    if isinstance(error, SystemExit):
        given = "" if error.code is None else repr(error.code)
        return f"the job called sys.exit({given})"
    lines = without_colours(str(error)).splitlines()
    words = " ".join(" ".join(line for line in lines if not _FRAME.match(line)).split())
    return f"{type(error).__name__}: {words}{_place(error)}"


def _place(error: BaseException) -> str:
    """Return where in the user's own code it was raised, or what there called it."""
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(_TFOPT)}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        installed = {"site-packages", "dist-packages"} & set(path.parts)
        if path.is_absolute() and not installed and not library & set(map(str, path.parents)):
            return f" ({path.name}, line {frame.lineno}, in {frame.name})"
    return ""


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
