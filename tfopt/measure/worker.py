"""Measure one variant in a process: ``python -m tfopt.measure.worker SPEC RESULT``.

Standard output carries nothing but one JSON event a line, and RESULT appears whole or not at all.
The worker ends when its work does, whatever threads the job has left, and with a third argument,
``with-parent``, when its standard input does.

``python -m tfopt.measure.worker --forks`` loads TensorFlow, does not use it, and forks a worker for
each line of its standard input (a JSON object with ``spec``, ``result``, ``log`` and ``folder``),
so that a trial does not wait for the import. Its standard output carries the worker's process id,
the worker's events, and its exit code, which is ``TOO_LATE`` where the job's module sets what
TensorFlow, XLA or Keras read when they are loaded.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import select
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tfopt.job.job import Transform
    from tfopt.job.parts import Effect

WITH_PARENT = "with-parent"
FORKS = "--forks"
TOO_LATE = 75
_READ_AT_IMPORT = ("TF_", "XLA_", "KERAS_")
_EVENT_EVERY_S = 0.1
_TFOPT = Path(__file__).resolve().parent.parent
# Keras colours some of its messages.
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def main(arguments: list[str]) -> int:
    spec_path, result_path, *flags = arguments
    if WITH_PARENT in flags:
        _end_with_parent()
    return work(spec_path, result_path, _private_stdout())


def work(spec_path: str, result_path: str, events: TextIO, *, forked: bool = False) -> int:
    """Carry out what the file says, and write the result; return the exit code."""
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    from tfopt.errors import UserError
    from tfopt.files import write_atomically

    afterwards = None
    try:
        result, afterwards = _measure(spec, events, forked=forked)
    except _LoadedTooEarly:
        return TOO_LATE
    except UserError as error:
        result = {"error": str(error), "user_error": True}
    except BaseException as error:
        # sys.exit too: as an exception that ends Python it would wait for the job's threads.
        traceback.print_exc()
        result = {"error": _message(error), "user_error": False}
    write_atomically(result_path, json.dumps(result, allow_nan=False))
    if afterwards is not None:
        afterwards()
    return 0


def _message(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        given = "" if error.code is None else repr(error.code)
        return f"the job called sys.exit({given})"
    return f"{type(error).__name__}: {_ANSI.sub('', str(error))}{_place(error)}"


def _place(error: BaseException) -> str:
    """Return where in the user's own code it was raised, or what there called it."""
    library = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(_TFOPT)}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        installed = {"site-packages", "dist-packages"} & set(path.parts)
        if path.is_absolute() and not installed and not library & set(map(str, path.parents)):
            return f" ({path.name}, line {frame.lineno}, in {frame.name})"
    return ""


class _LoadedTooEarly(BaseException):
    """TensorFlow was loaded before the job's module could set how."""


def _settings_of_tensorflow() -> dict[str, str]:
    return {name: os.environ[name] for name in os.environ if name.startswith(_READ_AT_IMPORT)}


def _measure(
    spec: dict[str, Any], events: TextIO, *, forked: bool
) -> tuple[dict[str, Any], Callable[[], None] | None]:
    """Return the result, and what is left to do once it is written."""
    from tfopt.job.recipe_file import chain_from_toml
    from tfopt.job.references import resolve_job
    from tfopt.measure.tasks import task_from_dict

    steps = chain_from_toml(spec["chain"])
    before = _settings_of_tensorflow()
    job = steps.apply(resolve_job(spec["job"], spec["arguments"], seed=spec["seed"]))
    if forked and _settings_of_tensorflow() != before:
        raise _LoadedTooEarly
    added = steps.parts[-1] if spec["skip_if_idle"] and steps.parts else None
    progress = _Progress(events, job.epochs)
    progress(0, 0)
    done = task_from_dict(spec["task"]).carry_out(job, added, progress)
    result = {"value": done.value, "effects": _effects(done.effects), "data": done.data}
    return result, done.afterwards


class _Progress:
    """A callback that sends where the training is, now and then."""

    def __init__(self, events: TextIO, epochs: int) -> None:
        self.events = events
        self.epochs = epochs
        self.last_sent = 0.0

    def __call__(self, epoch: int, step: int) -> None:
        now = time.monotonic()
        if now - self.last_sent > _EVENT_EVERY_S:
            self.last_sent = now
            event = {"epoch": epoch, "epochs": self.epochs, "step": step}
            self.events.write(json.dumps(event) + "\n")


def _effects(effects: Iterable[tuple[Transform, Effect]]) -> list[dict[str, Any]]:
    return [
        {"transform": repr(transform), "acted": effect.acted, "note": effect.note}
        for transform, effect in effects
    ]


def _private_stdout(log: int | None = None) -> TextIO:
    """Keep the real standard output for events; the rest goes to stderr, or both to ``log``."""
    sys.stdout.flush()
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    if log is not None:
        os.dup2(log, 2)
    os.dup2(2, 1)
    return events


def _end_with_parent() -> None:
    """Kill this process's group when nobody can write into its standard input any more."""
    pipe, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        hung_up = select.poll()
        hung_up.register(pipe, 0)  # POLLHUP is told without being asked for; nothing is read
        hung_up.poll()
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def serve_forks() -> int:
    """Fork a worker for each line of the standard input, one after the other."""
    import keras
    import numpy as np
    import tensorflow as tf

    from tfopt.job import references  # noqa: F401
    from tfopt.measure import blocks, tasks  # noqa: F401

    # Both load most of themselves when they are first touched.
    keras.Model, tf.Variable  # noqa: B018
    blocks.LOADED_S = blocks.lifetime_s()
    gc.freeze()  # no worker looks through what is loaded here
    os.chdir("/")  # each worker has its folder, and this process holds none
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            random.seed()
            np.random.seed()
            _end_with(partial(_forked, **asked))
        _send({"pid": pid})
        _, status = os.waitpid(pid, 0)
        _send({"code": os.waitstatus_to_exitcode(status)})
    return 0


def _send(message: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _forked(spec: str, result: str, log: str, folder: str) -> int:
    os.setsid()
    os.chdir(folder)
    sys.path[0] = folder
    _end_with_parent()
    written = os.open(log, os.O_WRONLY | os.O_CREAT)
    events = _private_stdout(written)
    os.close(written)
    return work(spec, result, events, forked=True)


def _end_with(work: Callable[[], int]) -> None:
    """End at once: Python would wait for a thread of tf.data that still feeds from a generator."""
    code = 1
    try:
        code = work()
    except BaseException:
        # A result that cannot be written: these are the last words.
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _end_with(serve_forks if sys.argv[1:] == [FORKS] else lambda: main(sys.argv[1:]))
