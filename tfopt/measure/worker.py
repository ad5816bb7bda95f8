"""Measure one variant in a process: ``python -m tfopt.measure.worker SPEC RESULT``.

Standard output carries nothing but one JSON event a line, and RESULT appears whole or not at all.
The worker ends when its work does, whatever threads the job has left, and with a third argument,
``with-parent``, when its standard input does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tfopt.job.job import Transform
    from tfopt.job.parts import Effect

WITH_PARENT = "with-parent"
_EVENT_EVERY_S = 0.1
_TFOPT = Path(__file__).resolve().parent.parent
# Keras colours some of its messages.
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def main(arguments: list[str]) -> int:
    spec_path, result_path, *flags = arguments
    if WITH_PARENT in flags:
        _end_with_parent()
    events = _private_stdout()
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    from tfopt.errors import UserError
    from tfopt.files import write_atomically

    afterwards = None
    try:
        result, afterwards = _measure(spec, events)
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


def _measure(
    spec: dict[str, Any], events: TextIO
) -> tuple[dict[str, Any], Callable[[], None] | None]:
    """Return the result, and what is left to do once it is written."""
    from tfopt.job.recipe_file import chain_from_toml
    from tfopt.job.references import resolve_job
    from tfopt.measure.tasks import task_from_dict

    steps = chain_from_toml(spec["chain"])
    job = steps.apply(resolve_job(spec["job"], spec["arguments"], seed=spec["seed"]))
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


def _private_stdout() -> TextIO:
    """Keep the real standard output for events and point file descriptor 1 at stderr."""
    sys.stdout.flush()
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return events


def _end_with_parent() -> None:
    """Kill this process's group when the parent is gone, which closes the standard input."""
    parent = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        while os.read(parent, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


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
    _end_with(lambda: main(sys.argv[1:]))
