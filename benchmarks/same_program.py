"""How often a real measurement finds a difference between a program and itself.

``python benchmarks/same_program.py`` compares a small job with itself, again and again, in rounds
of quick blocks as ``tfopt.measure.rounds`` runs them. The bar: of 20 comparisons at most one has
a verdict other than "no difference" or "inconclusive".
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import asdict
from pathlib import Path

from paired import save_figures
from tfopt.measure.blocks import QUICK, BlockStore
from tfopt.measure.rounds import Budget, RoundsPlan, rounds
from tfopt.measure.variant import Variant
from tfopt.measure.watcher import Watcher

JOB, DATA = "tfopt.recipes.cnn_mnist:job", {"data": "embedded"}
FALSE = ("faster", "slower")


class Quiet(Watcher):
    def left_out(self, variant: str, reason: str) -> None:
        raise SystemExit(f"{variant}: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--comparisons", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5, help="at least, of each comparison")
    parser.add_argument("--most", type=int, default=8, help="rounds of each comparison at most")
    options = parser.parse_args()
    found = []
    for number in range(options.comparisons):
        plan = RoundsPlan(
            variants=(
                Variant("first", JOB, arguments=DATA),
                Variant("second", JOB, arguments=DATA),
            ),
            span=QUICK,
            budget=Budget(options.rounds, options.most),
            seed=number,
        )
        with tempfile.TemporaryDirectory() as folder:
            store = BlockStore(Path(folder), plan.to_dict())
            store.open(resume=False)
            *_, measured = rounds(plan, store, Quiet())
        comparison = measured.compared("first", "second")
        assert comparison is not None
        found.append({**asdict(comparison), "verdict": comparison.verdict})
        print(f"{number + 1}: {found[-1]}", flush=True)
    false = sum(each["verdict"] in FALSE for each in found)
    print(f"{false} of {len(found)} verdicts are false")
    save_figures(
        "same_program",
        f"python benchmarks/same_program.py --comparisons {options.comparisons} "
        f"--rounds {options.rounds} --most {options.most}",
        false_verdicts=false,
        comparisons=found,
        span=asdict(QUICK),
    )


if __name__ == "__main__":
    main()
