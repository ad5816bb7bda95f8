"""Where the figures of benchmarks go, with the environment that they come from."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tfopt.files import write_atomically
from tfopt.measure.provenance import read_provenance

RESULTS = Path(__file__).parent / "results"


def command_line() -> str:
    """Return the command by which this process was started."""
    spec = sys.modules["__main__"].__spec__
    script = f"-m {spec.name}" if spec else f"benchmarks/{Path(sys.argv[0]).name}"
    return " ".join(["python", script, *sys.argv[1:]])


def save_figures(name: str, **figures: Any) -> Path:
    """Write a dated JSON result with the environment it comes from; print its path."""
    today = datetime.now(UTC).date().isoformat()
    RESULTS.mkdir(exist_ok=True)
    content = {
        "benchmark": name,
        "command": command_line(),
        "date": today,
        "environment": asdict(read_provenance()),
        **figures,
    }
    path = write_atomically(
        RESULTS / f"{today}-{name}.json", json.dumps(content, indent=1, allow_nan=False) + "\n"
    )
    print(path)
    return path
