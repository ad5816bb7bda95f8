"""What the benchmarks share: paired ratios with an interval, and where results go.

A figure is a ratio of two things measured one right after the other, so that a slow moment of
a shared machine falls on both. The interval is a bootstrap over the pairs.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tfopt.files import write_atomically
from tfopt.measure.provenance import read_provenance

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Ratio:
    """The median of paired ratios, its 95 % bootstrap interval, and the pairs themselves."""

    name: str
    median: float
    low: float
    high: float
    pairs: tuple[float, ...]

    def __str__(self) -> str:
        interval = f"95 %: {self.low:.3f} to {self.high:.3f}"
        return f"{self.name}: {self.median:.3f} ({interval}, {len(self.pairs)} pairs)"


def paired_ratio(name: str, tried: list[float], reference: list[float]) -> Ratio:
    """Return how large ``tried`` is against ``reference``, pair by pair."""
    ratios = np.asarray(tried) / np.asarray(reference)
    draws = np.random.default_rng(0).choice(ratios, size=(10_000, len(ratios)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return Ratio(name, float(np.median(ratios)), float(low), float(high), tuple(map(float, ratios)))


def command_line() -> str:
    """Return the command by which this process was started."""
    spec = sys.modules["__main__"].__spec__
    script = f"-m {spec.name}" if spec else f"benchmarks/{Path(sys.argv[0]).name}"
    return " ".join(["python", script, *sys.argv[1:]])


def save_result(name: str, ratios: list[Ratio], **details: Any) -> Path:
    """Write a dated JSON result with the environment it comes from; print the ratios."""
    for ratio in ratios:
        print(ratio)
    return save_figures(name, ratios=[asdict(ratio) for ratio in ratios], **details)


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
