"""Draw the picture of the README, whole trainings before and after, from two committed results.

    python benchmarks/before_after.py

It takes the middle one of the three runs on two cores, and the one on a GPU, and writes an SVG.
"""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
TARGET = HERE.parent / "docs" / "before_after.svg"
CORES = HERE / "results" / "2026-11-29-front_door.json"
GPU = HERE / "results" / "2026-11-27-bench-cnn_mnist-h200.json"
UNIT = 80  # pixels: as fast as before
HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" width="600" height="252" viewBox="0 0 600 252" role="img">
<title>Whole trainings of the MNIST demo, before and after, with 95 % intervals</title>
<style>
svg { font: 16px system-ui, "DejaVu Sans", sans-serif; }
text { fill: #171a1e; } .name { font-weight: 600; } .soft { fill: #5a636d; }
line { stroke: #171a1e; stroke-width: 2; } .before { fill: #b4bcc5; } .after { fill: #37a868; }
</style>
<rect width="600" height="252" rx="8" fill="#f6f7f8"/>
"""


def whole_trainings() -> list[tuple[str, dict[str, float]]]:
    """Return each machine's whole training, as a share of the time of the job as it is."""
    runs = [run["whole"] for run in json.loads(CORES.read_text("utf-8"))["runs"]]
    variants = json.loads(GPU.read_text("utf-8"))["variants"]
    middle = sorted(runs, key=lambda run: run["ratio"])[len(runs) // 2]
    return [("Two CPU cores", middle), ("One H200 GPU", variants[-1]["whole"])]


def group(name: str, whole: dict[str, float], top: int) -> str:
    """Return the two bars of one machine."""
    speed, low, high = 1 / whole["ratio"], 1 / whole["high"], 1 / whole["low"]
    start, end = low * UNIT, high * UNIT
    return f"""\
<g transform="translate(16 {top})">
<text class="name" y="16">{name}</text>
<rect class="before" y="26" width="{UNIT}" height="26" rx="3"/>
<text class="soft" x="{UNIT + 10}" y="45">as it is</text>
<rect class="after" y="56" width="{speed * UNIT:.0f}" height="26" rx="3"/>
<line x1="{start:.0f}" y1="69" x2="{end:.0f}" y2="69"/>
<line x1="{start:.0f}" y1="64" x2="{start:.0f}" y2="74"/>
<line x1="{end:.0f}" y1="64" x2="{end:.0f}" y2="74"/>
<text x="{end + 10:.0f}" y="75"><tspan class="name">{speed:.1f} times as fast</tspan>
({low:.1f} to {high:.1f})</text>
</g>
"""


def drawn() -> str:
    """Return the picture."""
    rows = [group(*each, top=12 + 102 * n) for n, each in enumerate(whole_trainings())]
    told = "Speed of a whole training; the line on a bar is the 95 % interval."
    return f'{HEAD}{"".join(rows)}<text class="soft" x="16" y="236">{told}</text>\n</svg>\n'


if __name__ == "__main__":
    TARGET.write_text(drawn(), encoding="utf-8")
