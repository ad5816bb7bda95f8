"""What more replicas bring, in weak and strong scaling, and where it stops paying.

``python benchmarks/scaling.py --replicas 1 2 4`` trains a dense network on as many replicas: weak
scaling (each replica has as many examples, whatever their number) and strong scaling (the global
batch stays). Several processes of each number take turns in tfopt's own engine, and the time of an
example is compared.

Replicas are GPUs with ``--gpus``; otherwise logical CPU devices, which share the cores of the
machine: their figures say nothing of GPUs.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from figures import save_figures
from tfopt import Distribute, chain
from tfopt.measure.engine import Candidate, Engine, compared, copies
from tfopt.measure.targets import Target
from tfopt.report.display import Display

JOB, MODES = "benchmarks.jobs:dense", ("weak", "strong")
PROCESSES = 3
PAYS = {"faster": "yes", "slower": "no", "no difference": "no", "inconclusive": "inconclusive"}


def target(mode: str, replicas: int, options: argparse.Namespace) -> Target:
    """Return the network on so many replicas."""
    where = {"gpus": list(range(replicas))} if options.gpus else {"logical_cpus": replicas}
    batch = options.batch * (replicas if mode == "weak" else max(options.replicas))
    link = Distribute(**where, global_batch=batch, verify=False)
    return Target(f"{mode}, {replicas}", JOB, chain(link), {"width": options.width})


def rows(sides: dict[int, list[Candidate]]) -> list[dict[str, Any]]:
    """Return for each number of replicas its speed, efficiency, and whether it pays."""
    first, *_ = sides
    found: list[dict[str, Any]] = [{"replicas": first, "speed": 1.0, "efficiency": 1.0}]
    for before, replicas in pairwise(sides):
        time, gain = (compared(sides[n], sides[replicas]) for n in (first, before))
        if time is None or gain is None:
            raise RuntimeError(f"not measured on {replicas}: {sides[replicas][0].out}")
        row = {"replicas": replicas, "speed": 1 / time.ratio, "time": asdict(time)}
        row["efficiency"] = row["speed"] * first / replicas
        found.append({**row, "pays": PAYS[gain.verdict]})
    return found


def stops_at(found: list[dict[str, Any]]) -> str:
    """Return where more replicas stop paying, as far as the intervals decide."""
    for before, row in pairwise(found):
        if row["pays"] != "yes":
            doubt = " or not: inconclusive" if row["pays"] == "inconclusive" else ""
            return f"stops paying at {before['replicas']}{doubt}"
    return f"still pays at {found[-1]['replicas']}, the most that was tried"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--gpus", action="store_true", help="GPUs instead of logical CPU devices")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="of a replica, in weak scaling")
    parser.add_argument("--width", type=int, default=512, help="of each layer")
    options = parser.parse_args()
    figures = {}
    for mode in MODES:
        with Display() as display, Engine(display) as engine:
            sides = {
                number: engine.admit(copies(target(mode, number, options), PROCESSES))
                for number in options.replicas
            }
            engine.take_rounds([each for side in sides.values() for each in side], options.rounds)
        found = rows(sides)
        figures[mode] = {"rows": found, "conclusion": stops_at(found)}
        print(f"{mode} scaling {stops_at(found)}")
        for row in found:
            print(f"{row['replicas']:4} {row['speed']:.2f} times, {row['efficiency']:.0%}")
    where = "GPUs" if options.gpus else "logical CPU devices, which share the machine's cores"
    save_figures("scaling", replicas_are=where, **figures)


if __name__ == "__main__":
    main()
