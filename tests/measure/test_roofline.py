"""The roofline: which roof binds, and what is said of a step above it."""

import pytest

from tfopt.measure.step_cost import StepCost, roofline
from tfopt.report.bench.bench_report import Ceilings

GIB_PER_GB = 1e9 / 1024**3
# The ridge is at 10 operations a byte.
MACHINE = Ceilings("cpu", "float32", 1000.0, 100.0 * GIB_PER_GB, "2026-01-01T00:00:00+00:00")


def a_cost(gflop, gb, dtype="float32", note=""):
    return StepCost(gflop, gflop / 2, gb * GIB_PER_GB, "by hand", dtype, note)


@pytest.mark.parametrize(
    ("gflop", "gb", "step_ms", "roof", "roof_gflops", "utilisation"),
    [
        # Far right of the ridge, at it, left of it.
        (100.0, 1.0, 200.0, "compute", 1000.0, 0.5),
        (10.0, 1.0, 20.0, "compute", 1000.0, 0.5),
        (1.0, 1.0, 20.0, "memory", 100.0, 0.05),
        (1e-6, 1.0, 20.0, "memory", 1e-4, 5e-8),
    ],
)
def test_the_lower_roof_binds(gflop, gb, step_ms, roof, roof_gflops, utilisation):
    told = roofline(a_cost(gflop, gb), step_ms, MACHINE, "resident step")
    assert told.roof == roof
    assert told.roof_gflops == pytest.approx(roof_gflops)
    assert told.gflops == pytest.approx(gflop / step_ms * 1000)
    assert told.utilisation == pytest.approx(utilisation)
    assert told.intensity == pytest.approx(gflop / gb)
    assert (told.basis, told.note) == ("resident step", "")


def test_a_speed_above_a_roof_is_told_and_kept():
    above_memory = roofline(a_cost(1.0, 1.0), 2.0, MACHINE, "fit")
    assert (above_memory.gflops, above_memory.roof) == (pytest.approx(500.0), "memory")
    assert "faster than memory alone allows" in above_memory.note
    above_all = roofline(a_cost(100.0, 1.0), 50.0, MACHINE, "fit")
    assert above_all.utilisation == pytest.approx(2.0)
    assert "faster than the largest product" in above_all.note


def test_notes_are_handed_on_and_a_foreign_ceiling_is_told():
    cost = a_cost(1.0, 1.0, dtype="bfloat16", note="not counted: X")
    told = roofline(cost, 100.0, MACHINE, "fit", ["measured with care"])
    assert told.note.startswith("not counted: X; measured with care; ")
    assert "in bfloat16, the ceiling is that of float32" in told.note
