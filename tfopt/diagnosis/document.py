"""The checks as one JSON document, for scripts, and the exit code that they come to.

Guarantees: the keys below stay as they are within a ``version``; new keys may come.

    version   1
    verdict   the worst of all: "failure", "warning" or "ok"
    counts    {"failure": n, "warning": n, "ok": n, "not here": n}
    checks    [{"theme", "name", "verdict", "told", "evidence": [...], "fix": text or null}, ...]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from tfopt.diagnosis.check import VERDICTS, Check

VERSION = 1


def worst(checks: Sequence[Check]) -> str:
    """The worst verdict of all; what is not here is as good as in order."""
    there = {check.verdict for check in checks}
    return next((verdict for verdict in ("failure", "warning") if verdict in there), "ok")


def exit_code(checks: Sequence[Check]) -> int:
    """1 where anything failed, else 0: a warning stops no script."""
    return int(worst(checks) == "failure")


def as_json(checks: Sequence[Check]) -> str:
    """The document."""
    counts = Counter(check.verdict for check in checks)
    content = {
        "version": VERSION,
        "verdict": worst(checks),
        "counts": {verdict: counts[verdict] for verdict in VERDICTS},
        "checks": [asdict(check) for check in checks],
    }
    return json.dumps(content, indent=2) + "\n"
