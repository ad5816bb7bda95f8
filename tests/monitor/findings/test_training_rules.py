"""Starved by its input, or held back by a quota: with the near misses."""

from dataclasses import replace

import pytest
from traces import marks, rules, trace

from tfopt.monitor.findings.host_rules import cpu_held_back
from tfopt.monitor.findings.input_rules import starved_by_input


@pytest.mark.parametrize(
    ("wait", "severity"), [(0.09, None), (0.11, "warning"), (0.19, "warning"), (0.21, "serious")]
)
def test_starved_by_the_share_of_the_step_that_waits(wait, severity):
    found = starved_by_input(trace(gpu={"utilisation_percent": 60}, steps=marks(wait=wait)))
    assert rules(found) == ({"starved_by_input": severity} if severity else {})
    if found:
        evidence = {e.name: (e.value, e.unit) for e in found[0].evidence}
        assert evidence["input wait"] == (pytest.approx(100 * wait), "% of the step")
        assert evidence["step"] == (pytest.approx(100), "ms")
        assert evidence["GPU 0 utilisation"] == (60, "%")


def test_a_wait_while_the_gpu_has_work_queued_or_the_step_compiles_costs_nothing():
    assert starved_by_input(trace(gpu={"utilisation_percent": 98}, steps=marks(wait=0.5))) == []
    uneven = trace(gpu=[{}, {"utilisation_percent": 50}], steps=marks(wait=0.5))
    assert rules(starved_by_input(uneven)) == {"starved_by_input": "serious"}
    first, *rest = marks()
    compiling = replace(first, seconds=60.0, input_wait_s=55.0)
    assert starved_by_input(trace(steps=[compiling, *rest])) == []


@pytest.mark.parametrize(
    "steps", [(), marks(3), marks(steps=None), marks(wait=None), marks(9, steps=1)]
)
def test_starved_says_what_it_lacks(steps):
    (found,) = starved_by_input(trace(steps=steps))
    assert (found.rule, found.severity) == ("starved_by_input", "not judged")


def test_starved_needs_the_wait_of_most_steps_only():
    steps = [m if n % 3 else replace(m, input_wait_s=None) for n, m in enumerate(marks(wait=0.4))]
    assert rules(starved_by_input(trace(steps=steps))) == {"starved_by_input": "serious"}


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ({"cpu_throttled_s": lambda t: 7 + t / 10}, {"cpu_held_back": "warning"}),
        ({"cpu_throttled_s": lambda t: 7 + t / 30}, {}),
        ({}, {}),
    ],
)
def test_cpu_held_back(host, found):
    assert rules(cpu_held_back(trace(host=host))) == found
