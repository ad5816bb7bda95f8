"""The process that measures one variant: ``python -m tfopt.bench.worker SPEC RESULT``.

Guarantees: standard output carries nothing but one JSON event a line; whatever the job or
TensorFlow prints goes to standard error; RESULT appears whole or not at all; with
a third argument, ``with-parent``, the worker and what it started end when its standard input does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from tfopt.job import Effect, Job, Transform

WITH_PARENT = "with-parent"
_EVENT_EVERY_S = 0.1


def main(arguments: list[str]) -> int:
    spec_path, result_path, *flags = arguments
    if WITH_PARENT in flags:
        _end_with_parent()
    events = _private_stdout()
    spec = json.loads(Path(spec_path).read_text(encoding="utf-8"))
    from tfopt.errors import UserError
    from tfopt.files import write_atomically

    try:
        result = _measure(spec, events)
    except UserError as error:
        result = {"error": str(error), "user_error": True}
    except Exception as error:
        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}", "user_error": False}
    write_atomically(result_path, json.dumps(result, allow_nan=False))
    return 0


def _measure(spec: dict[str, Any], events: TextIO) -> dict[str, Any]:
    from tfopt.recipe_file import chain_from_toml
    from tfopt.references import resolve_job

    steps = chain_from_toml(spec["chain"])
    job = steps.apply(resolve_job(spec["job"], spec["arguments"]))
    added = steps.parts[-1] if spec["skip_if_idle"] and steps.parts else None
    if spec["span"] is not None:
        return _measure_block(spec, job, added)
    return _measure_training(spec, job, added, events)


def _measure_block(spec: dict[str, Any], job: Job, added: Transform | None) -> dict[str, Any]:
    from tfopt.bench.block import Span, block_to_dict, measure_block

    block, effects = measure_block(job, Span(**spec["span"]), skip_if_idle=added)
    return {
        "block": None if block is None else block_to_dict(block),
        "effects": _effects(effects),
        "data": "" if block is None else block.data,
    }


def _measure_training(
    spec: dict[str, Any], job: Job, added: Transform | None, events: TextIO
) -> dict[str, Any]:
    from tfopt.bench.measure import measure
    from tfopt.report.schema import figures_to_dict

    last_sent = 0.0

    def progress(epoch: int, step: int) -> None:
        nonlocal last_sent
        now = time.monotonic()
        if now - last_sent > _EVENT_EVERY_S:
            last_sent = now
            _send(events, epoch=epoch, epochs=job.epochs, step=step)

    _send(events, epoch=0, epochs=job.epochs, step=0)
    output = Path(spec["output"]) if spec["output"] else None
    measured = measure(job, skip_if_idle=added, output=output, progress=progress)
    return {
        "figures": None if measured.figures is None else figures_to_dict(measured.figures),
        "effects": _effects(measured.effects),
        "data": measured.data,
    }


def _effects(effects: Iterable[tuple[Transform, Effect]]) -> list[dict[str, Any]]:
    return [
        {"transform": repr(transform), "acted": effect.acted, "note": effect.note}
        for transform, effect in effects
    ]


def _private_stdout() -> TextIO:
    """Keeps the real standard output for events and points file descriptor 1 at stderr."""
    sys.stdout.flush()
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return events


def _end_with_parent() -> None:
    """Kills this process's group when the parent is gone, which closes the standard input."""
    parent = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)

    def wait() -> None:
        while os.read(parent, 1):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def _send(events: TextIO, **event: Any) -> None:
    events.write(json.dumps(event) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
