"""Where the figures of benchmarks go, with the environment that they come from; other Pythons."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tfopt.files import prepare_folder, write_atomically
from tfopt.measure.provenance import read_provenance

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def save_figures(name: str, folder: Path = RESULTS, **figures: Any) -> Path:
    """Write a dated JSON result with the environment it comes from; print its path."""
    today = datetime.now(UTC).date().isoformat()
    prepare_folder(folder)
    content = {
        "benchmark": name,
        "command": " ".join(["python", *sys.orig_argv[1:]]),
        "date": today,
        "environment": asdict(read_provenance()),
        **figures,
    }
    path = write_atomically(
        folder / f"{today}-{name}.json", json.dumps(content, indent=1, allow_nan=False) + "\n"
    )
    print(path)
    return path


def answer_of(python: str, module: str, given: bytes) -> dict[str, Any]:
    """Return what a module of this folder prints as JSON, run by another Python."""
    command = [python, "-m", f"benchmarks.{module}"]
    done = subprocess.run(command, input=given, stdout=subprocess.PIPE, cwd=ROOT, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
