"""The process that answers one question: ``python -m tfopt.doctor.probe QUESTION ASKED SAID``.

Guarantees: SAID gets one JSON object a line, at once: what it is at, each answer, and in the end
that it is done; it ends when its work does, whatever threads are left, or when its standard input
ends, which is when who asked is gone.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

At = Callable[[str], None]
Question = Callable[[Mapping[str, Any], At], Iterator[Mapping[str, Any]]]

_HOMES = {
    "compute": "tfopt.doctor.gpu_checks:compute",
    "defects": "tfopt.doctor.version_checks:look_for",
    "job": "tfopt.doctor.job_probe:look_at",
}


def main(arguments: list[str]) -> int:
    question, asked, path = arguments
    threading.Thread(target=_end_with_asker, daemon=True).start()
    module, _, name = _HOMES[question].partition(":")
    with open(path, "w", encoding="utf-8", buffering=1) as said:

        def say(**event: Any) -> None:
            said.write(json.dumps(event) + "\n")

        answer: Question = getattr(import_module(module), name)
        for each in answer(json.loads(asked), lambda at: say(at=at)):
            say(answer=each)
        say(done=True)
    return 0


def _end_with_asker() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    code = 1
    try:
        code = main(sys.argv[1:])
    except BaseException:
        # These are the last words.
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
