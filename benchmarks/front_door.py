"""Run ``python -m tfopt.recipes.cnn_mnist`` as a new user does, some times, and keep what it says.

The bar: at most 2 minutes 30 on two cores, faster with certainty each time, also ``--busy``.

    python benchmarks/front_door.py --runs 3
    python benchmarks/front_door.py --runs 3 --busy
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from figures import save_figures
from neighbour import neighbour
from tfopt.report.bench_figures import kept
from tfopt.report.bench_report import read_bench_report
from tfopt.report.summary import headline_of


def one_run(busy: bool) -> dict[str, Any]:
    """Run the recipe in an empty folder with an empty home; return what its report says."""
    with tempfile.TemporaryDirectory() as home, neighbour(busy):
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tfopt.recipes.cnn_mnist", "--data", "embedded"],
            cwd=home,
            env={**os.environ, "HOME": home},
            capture_output=True,
            text=True,
            check=False,
        )
        took_s = time.monotonic() - begun
        folder = Path(home, "cnn_mnist_report")
        if done.returncode or not folder.exists():
            return {"took_s": round(took_s, 1), "failed": done.stderr[-2000:]}
        report = read_bench_report(folder)
        found = kept(report)
        chosen = found and (found.to_accuracy, found.whole, found.against_reference)
        return {
            "took_s": round(took_s, 1),
            "headline": headline_of(report),
            "chain": found and found.chain,
            "certain": bool(chosen and any(c and c.verdict == "faster" for c in chosen)),
            "to_accuracy": found and found.to_accuracy and asdict(found.to_accuracy),
            "whole": found and found.whole and asdict(found.whole),
            "example": found and found.against_reference and asdict(found.against_reference),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--busy", action="store_true", help="beside a neighbour")
    options = parser.parse_args()
    runs = []
    for _ in range(options.runs):
        runs.append(one_run(options.busy))
        print(runs[-1], flush=True)
    save_figures(f"front_door{'-busy' if options.busy else ''}", runs=runs)


if __name__ == "__main__":
    main()
