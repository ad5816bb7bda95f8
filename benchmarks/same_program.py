"""How often turns tell a program from itself, and how often they find a planted difference.

Twelve processes of one program take turns for a minute. Of many random draws of five against five,
at most 6 % may have a false verdict; 10 % put on one side (30 % with ``--busy``) must be found in
90 %. Prints what a turn costs beside what it measures, too.

    python benchmarks/same_program.py
    python benchmarks/same_program.py --busy
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from figures import save_figures
from neighbour import neighbour
from tfopt.measure.engine import Engine, copies, shared_rounds
from tfopt.measure.targets import Target
from tfopt.report.display import Display
from tfopt.report.statistics import compare

JOB, DATA = "tfopt.recipes.cnn_mnist:job", {"data": "embedded"}
PROCESSES, SIDE, DRAWS = 12, 5, 4000
FALSE = ("faster", "slower")


def drawn(medians: list[float], planted: float) -> list[str]:
    """Return the verdicts of random draws, the second side slower by a planted share."""
    chance, verdicts = random.Random(0), []
    for _ in range(DRAWS):
        both = chance.sample(medians, 2 * SIDE)
        slower = [(1 + planted) * each for each in both[SIDE:]]
        verdicts.append(compare(both[:SIDE], slower).verdict)
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--busy", action="store_true", help="beside a neighbour")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    planted = 0.3 if options.busy else 0.1
    with neighbour(options.busy), Display() as display, Engine(display) as engine:
        begun = time.monotonic()
        processes = engine.admit(copies(Target("program", JOB, arguments=DATA), PROCESSES))
        started_s = time.monotonic() - begun
        begun = time.monotonic()
        engine.take_rounds(processes, 10_000, until=begun + options.seconds)
        cost = engine.cost_s / (time.monotonic() - begun)
        rounds = shared_rounds(processes)
        medians = [each.example_s(rounds) for each in processes]
        memory = [each.held_mib for each in processes]
    false = sum(each in FALSE for each in drawn(medians, 0.0)) / DRAWS
    found = sum(each == "slower" for each in drawn(medians, planted)) / DRAWS
    spread = statistics.stdev(medians) / statistics.fmean(medians)
    print(
        f"{false:.1%} of the verdicts are false; {planted:.0%} is found in {found:.1%}; processes "
        f"scatter by {spread:.1%}; {len(rounds)} rounds; own cost {cost:.2%}; "
        f"{PROCESSES} processes started in {started_s:.1f} s, {statistics.fmean(memory):.0f} MiB"
    )
    save_figures(
        f"same_program{'-busy' if options.busy else ''}",
        false_verdicts=round(false, 4),
        planted=planted,
        planted_found=round(found, 4),
        scatter=round(spread, 4),
        rounds=len(rounds),
        own_cost=round(cost, 5),
        started_s=round(started_s, 1),
        own_mib=round(statistics.fmean(memory)),
        draws=DRAWS,
    )


if __name__ == "__main__":
    main()
