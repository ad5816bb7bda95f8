"""Every architecture of keras.applications, and twelve small nets, through every serving format.

``python benchmarks/serving_table.py`` builds each with random weights (at the smallest input it
accepts), in a fresh process, and exports it in float32, int8 and dynamic range where a format has
them. A file *works* with its relative error against the Keras model, or is *refused* with a reason;
anything else has *failed*. Results are written after each net; a further run goes on from the last.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from typing import Any

from figures import RESULTS, save_figures
from serving_nets import ARCHITECTURES, NETS, net
from tfopt.subprocesses import Child

FORMATS = ("saved_model", "litert", "onnx", "openvino")
PRECISIONS = ("float32", "int8", "dynamic")
_LIMIT_S = 1800.0
_MOST_OFF = 50
"""What is further off is refused; random weights bear less than trained ones."""


def in_this_process(name: str, count: int) -> dict[str, Any]:
    """Return what became of each file of a net."""
    import numpy as np

    import tfopt
    from tfopt.export.formats.roster import FORMATS as ROSTER

    model, x = net(name)
    x = [a[:count] for a in x] if isinstance(x, list) else x[:count]
    rows: dict[str, Any] = {
        "parameters": int(np.sum([np.prod(w.shape) for w in model.weights])),
        "moved": moved(model, x),
    }
    for each in FORMATS:
        kinds = [p for p in PRECISIONS if p in ROSTER[each].precisions]
        with tempfile.TemporaryDirectory() as folder:
            try:
                made = tfopt.export(
                    model, folder, formats=each, precision=kinds, calibration=x, max_drop=_MOST_OFF
                )
            except tfopt.UserError as error:
                rows |= {f"{each}_{p}": {"refused": str(error.received)[:600]} for p in kinds}
                continue
            except Exception as error:
                rows |= {f"{each}_{p}": {"failed": repr(error)[:600]} for p in kinds}
                continue
        for file in made.files:
            rows[file.name] = {
                "relative_error": float(f"{file.parity.relative_error:.3g}"),
                "kib": round(file.kib),
            }
        rows |= {file.name: {"refused": file.reason[:600]} for file in made.refused}
    return rows


def moved(model: Any, x: Any) -> float | None:
    """Return how far the outputs move, of their size, for a millionth more of each input.

    Random weights of some deep nets magnify each rounding; no file can be nearer to the model.
    """
    import keras
    import numpy as np

    if not model.inputs[0].dtype.startswith("float"):
        return None
    more = [a * np.float32(1 + 1e-6) for a in x] if isinstance(x, list) else x * (1 + 1e-6)
    before, after = (keras.tree.flatten(model.predict(each, verbose=0))[0] for each in (x, more))
    return float(f"{np.abs(after - before).max() / np.abs(before).max():.2g}")


COLUMNS = (
    *("saved_model_float32", "litert_float32", "onnx_float32", "openvino_float32"),
    *("litert_int8", "onnx_int8", "openvino_int8", "litert_dynamic", "onnx_dynamic"),
)


def as_markdown(nets: dict[str, Any]) -> str:
    """Return the table: the relative error of each file, or what became of it, and the reasons."""
    lines = [f"| net | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    reasons = []
    for name, rows in nets.items():
        cells = []
        for column in COLUMNS:
            row = rows.get(column, rows)
            state = next((key for key in ("failed", "refused") if key in row), "")
            cells.append(f"{row['relative_error']:.2g}" if not state else f"*{state}*")
            if state:
                reasons.append(f"- {name}, {column}: {state}: {' '.join(row[state].split())[:200]}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *reasons]) + "\n"


def main() -> None:
    from serving_table import in_this_process  # by a name that a child process finds

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="*", default=[*NETS, *ARCHITECTURES])
    parser.add_argument("--examples", type=int, default=16)
    options = parser.parse_args()
    earlier = sorted(RESULTS.glob("*-serving_table.json"))
    nets = json.loads(earlier[-1].read_text())["nets"] if earlier else {}
    for name in (name for name in options.nets if name not in nets):
        try:
            with Child() as child:
                nets[name] = child(in_this_process, name, options.examples, limit_s=_LIMIT_S)
        except RuntimeError as error:  # also of a process that ended, or took too long
            nets[name] = {"failed": str(error)[:300]}
        print(name, nets[name], flush=True)
        nets = {name: nets[name] for name in (*NETS, *ARCHITECTURES) if name in nets}
        path = save_figures("serving_table", nets=nets)
        path.with_suffix(".md").write_text(as_markdown(nets), encoding="utf-8")


if __name__ == "__main__":
    main()
