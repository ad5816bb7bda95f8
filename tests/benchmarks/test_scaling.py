"""The scaling report says where more replicas stop paying, as far as the intervals decide."""

import importlib
from pathlib import Path

import pytest

from tfopt.report.statistics import Comparison


def test_efficiency_and_where_more_replicas_stop_paying(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    scaling = importlib.import_module("scaling")

    def found(times, spread=0.01):
        """Return the rows for the time of an example on so many replicas."""

        def compared(before, replicas):
            ratio = times[replicas] / times[before]
            return Comparison(ratio, (1 - spread) * ratio, (1 + spread) * ratio, 3)

        monkeypatch.setattr(scaling, "compared", compared)
        return scaling.rows({number: number for number in times})

    rows = found({1: 1.0, 2: 0.625, 4: 0.625})
    assert [row["speed"] for row in rows] == pytest.approx([1, 1.6, 1.6])
    assert [row["efficiency"] for row in rows] == pytest.approx([1, 0.8, 0.4])
    assert scaling.stops_at(rows) == "stops paying at 2"
    assert scaling.stops_at(rows[:2]) == "still pays at 2, the most that was tried"
    unclear = found({1: 1.0, 2: 0.9}, spread=0.2)
    assert scaling.stops_at(unclear) == "stops paying at 1 or not: inconclusive"
