"""Every architecture of keras.applications through tfopt's compression, and through tfmot's.

``python benchmarks/compression_sweep.py`` builds each with random weights at the smallest input it
accepts, in a fresh process, applies each operation to a fresh model, and checks the result:
*worked* means that it does what it says, trains a step, and saves to a file that loads in a
process without tfopt. *refused* is a UserError with its reason; anything else has *failed*.
tfmot gets the twin of tf_keras. Results are written after each architecture, each with its date;
a further run goes on from the newest file.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sweep_tfmot
import sweep_tfopt
from paired import RESULTS, save_figures

# Smallest first, so that the first results come soon.
_NAMES = """
    MobileNetV3Small MobileNet MobileNetV2 MobileNetV3Large NASNetMobile EfficientNetB0
    EfficientNetV2B0 DenseNet121 EfficientNetB1 EfficientNetV2B1 EfficientNetB2 EfficientNetV2B2
    DenseNet169 EfficientNetB3 EfficientNetV2B3 ResNet50 ResNet50V2 Xception InceptionV3
    DenseNet201 ConvNeXtTiny EfficientNetB4 EfficientNetV2S ConvNeXtSmall ResNet101 ResNet101V2
    EfficientNetB5 InceptionResNetV2 EfficientNetV2M ResNet152 ResNet152V2 EfficientNetB6
    ConvNeXtBase VGG16 VGG19 NASNetLarge EfficientNetB7 EfficientNetV2L ConvNeXtLarge
    ConvNeXtXLarge
"""
ARCHITECTURES = _NAMES.split()
SMALLEST = {"InceptionV3": 75, "InceptionResNetV2": 75, "Xception": 71}
OPERATIONS: dict[str, dict[str, Callable[..., dict[str, Any]]]] = {
    "tfopt": sweep_tfopt.OPERATIONS,
    "tfmot": sweep_tfmot.OPERATIONS,
}
_MOST_SECONDS = 3600


def in_this_process(tool: str, architecture: str, operation: str) -> dict[str, Any]:
    """Applies one operation, and says what came of it."""
    from tfopt.errors import UserError

    size = SMALLEST.get(architecture, 32)
    try:
        return {"result": "worked", **OPERATIONS[tool][operation](architecture, size)}
    except UserError as error:
        return {"result": "refused", "reason": str(error)}
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return {"result": "failed", "reason": f"{type(error).__name__}: {lines[0][:300]}"}


def in_a_fresh_process(tool: str, architecture: str, operations: list[str]) -> dict[str, Any]:
    """The operations on one architecture; what a crash left undone has failed."""
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.json"
        command = [sys.executable, __file__, "--worker", tool, architecture, str(answers)]
        try:
            done = subprocess.run(
                [*command, *operations],
                timeout=_MOST_SECONDS,
                check=False,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            crash = f"the process ended with {done.returncode}: {done.stderr[-300:]}"
        except subprocess.TimeoutExpired:
            crash = f"not done in {_MOST_SECONDS} s"
        found = json.loads(answers.read_text()) if answers.exists() else {}
    return {name: found.get(name, {"result": "failed", "reason": crash}) for name in operations}


def work(tool: str, architecture: str, answers: Path, operations: list[str]) -> None:
    """The worker: writes after each operation."""
    found = {}
    for operation in operations:
        found[operation] = in_this_process(tool, architecture, operation)
        answers.write_text(json.dumps(found))


def summary(rows: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[str, int]]:
    """How many architectures each operation worked for, refused, failed."""
    counts: dict[str, dict[str, int]] = {}
    for tools in rows.values():
        for tool, operations in tools.items():
            for operation, answer in operations.items():
                of = counts.setdefault(f"{tool} {operation}", {})
                of[answer["result"]] = of.get(answer["result"], 0) + 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression of architectures")
    parser.add_argument("--operations", default="", help="a regular expression of operations")
    parser.add_argument("--tools", nargs="*", default=list(OPERATIONS), choices=list(OPERATIONS))
    parser.add_argument("--again", action="store_true", help="run also what is there")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        tool, architecture, answers, *operations = options.worker
        work(tool, architecture, Path(answers), operations)
        return
    earlier = sorted(RESULTS.glob("*-compression_sweep.json"))
    rows = json.loads(earlier[-1].read_text())["architectures"] if earlier else {}
    for architecture in ARCHITECTURES:
        if not re.search(options.only, architecture):
            continue
        for tool in options.tools:
            there = rows.setdefault(architecture, {}).setdefault(tool, {})
            names = [name for name in OPERATIONS[tool] if re.search(options.operations, name)]
            names = [name for name in names if options.again or name not in there]
            if not names:
                continue
            answers = in_a_fresh_process(tool, architecture, names)
            today = datetime.now(UTC).date().isoformat()
            there.update({name: {**answer, "date": today} for name, answer in answers.items()})
            for name in names:
                print(architecture, tool, name, there[name], flush=True)
            save_figures(
                "compression_sweep",
                "python benchmarks/compression_sweep.py",
                summary=summary(rows),
                architectures=rows,
            )


if __name__ == "__main__":
    main()
