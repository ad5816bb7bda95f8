"""The scaling report: a real block of two replicas, and its conclusions on figures."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scaling(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("scaling")


def rounds(**steps):
    """Five rounds of steps by their number of replicas, each round slower than the one before."""
    return [
        {
            int(n[1:]): {kind: ms * slower for kind, ms in kinds.items()}
            for n, kinds in steps.items()
        }
        for slower in (1.0, 1.1, 1.3, 1.6, 2.0)
    ]


@pytest.mark.slow
def test_a_block_measures_each_kind_of_step_and_proves_that_one_does_not_exchange():
    # It ends with an error where weights are alike that should not be, or the other way round.
    flags = "--block 2 --replicas 1 2 --turns 1 --steps 2 --batch 4 --width 8"
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "scaling.py"), *flags.split()],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    times = json.loads(done.stdout.splitlines()[-1])
    kinds = {
        f"{mode}, {kind}" for mode in ("weak", "strong") for kind in ("whole", "without exchange")
    }
    assert times.keys() == kinds
    assert min(times.values()) > 0


def test_efficiency_exchange_and_where_it_stops_paying(scaling):
    times = rounds(
        n1={"weak, whole": 10.0, "strong, whole": 40.0},
        n2={
            "weak, whole": 12.5,
            "weak, without exchange": 10.0,
            "strong, whole": 25.0,
            "strong, without exchange": 20.0,
        },
        n4={
            "weak, whole": 20.0,
            "weak, without exchange": 10.0,
            "strong, whole": 30.0,
            "strong, without exchange": 10.0,
        },
    )
    one, two, four = scaling.rows(times, "weak")
    assert "speedup" not in one
    assert two["speedup"]["median"] == pytest.approx(1.6)
    assert two["efficiency"] == pytest.approx(0.8)
    assert four["efficiency"] == pytest.approx(0.5)
    assert four["without_exchange"]["median"] == pytest.approx(0.5)
    assert scaling.stops_at([one, two, four]) == "still pays at 4, the most that was tried"
    strong = scaling.rows(times, "strong")
    assert [row.get("pays") for row in strong] == [None, "yes", "no"]
    assert strong[2]["efficiency"] == pytest.approx(1 / 3)
    assert scaling.stops_at(strong) == "stops paying at 2"
    assert "| 4 | 39.00 | 1.33 (1.33 to 1.33) | 33 % | 67 % (67 to 67) | no |" in scaling.table(
        strong
    )


def test_what_the_intervals_do_not_decide_is_said(scaling):
    times = rounds(
        n1={"strong, whole": 10.0}, n2={"strong, whole": 10.0, "strong, without exchange": 9.0}
    )
    for number, each in enumerate(times):
        each[2]["strong, whole"] *= 1.3 if number % 2 else 0.7
    assert (
        scaling.stops_at(scaling.rows(times, "strong")) == "stops paying at 1 or not: inconclusive"
    )
