"""Starved, host-bound, compute-bound, memory-bound, and the host's cores: with the near misses."""

from dataclasses import replace

import pytest
from traces import HEAT, marks, not_judged, rules, trace

from tfopt.monitor.findings.bottleneck_rules import (
    compute_bound,
    host_bound,
    memory_bound,
    starved_by_input,
)
from tfopt.monitor.findings.host_rules import cpu_bound, cpu_held_back


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


GAPS = {"utilisation_percent": 50, "power_w": 150}
ONE_CORE = {"process_cpu_percent": 105}


def test_host_bound_by_gaps_and_one_busy_core():
    (found,) = host_bound(trace(gpu=GAPS, host=ONE_CORE, steps=marks()))
    assert (found.rule, found.gpu) == ("host_bound", 0)
    assert found.transform == "tfopt.Execution(jit_compile=True)"  # 100 ms a step
    (found,) = host_bound(trace(gpu=GAPS, host=ONE_CORE, steps=marks(steps=50)))
    assert found.transform == "tfopt.Execution(steps_per_execution=16)"  # 20 ms


@pytest.mark.parametrize(
    ("gpu", "host", "wait"),
    [
        ({**GAPS, "utilisation_percent": 76, "memory_utilisation_percent": 55}, ONE_CORE, 0.0),
        ({**GAPS, "utilisation_percent": lambda t: 0 if t < 30 else 97}, ONE_CORE, 0.0),
        ({**GAPS, "utilisation_percent": 5}, ONE_CORE, 0.0),  # nothing trains
        (GAPS, {"process_cpu_percent": 60}, 0.0),  # the host rests too
        (GAPS, {"process_cpu_percent": 350}, 0.0),  # many threads: no single launching one
        (GAPS, ONE_CORE, 0.3),  # it waits for its input
        ({**GAPS, "power_w": 300}, ONE_CORE, 0.0),  # the kernels fill it
    ],
)
def test_host_bound_near_misses(gpu, host, wait):
    assert rules(host_bound(trace(gpu=gpu, host=host, steps=marks(wait=wait)))) == {}


@pytest.mark.parametrize(
    ("cores", "found"),
    [
        ((95, 10, 10, 10), {"host_bound": "warning"}),
        ((80, 10, 10, 10), {}),
        ((95, 90, 90, 90), {}),
        ((95,), {}),
    ],
)
def test_host_bound_by_the_busiest_core_where_the_process_is_not_known(cores, found):
    host = {"process_cpu_percent": None, "cpu_percent": cores}
    assert rules(host_bound(trace(gpu=GAPS, host=host))) == found


def test_host_bound_by_kernels_that_leave_the_gpu_cool():
    small = {"utilisation_percent": 95, "power_w": 160, "memory_utilisation_percent": 20}
    (found,) = host_bound(trace(gpu=small))
    assert "leave most of it idle" in found.message
    for near_miss in (
        {"power_w": 210},
        {"memory_utilisation_percent": 60},
        {"clock_reasons": (HEAT,)},
        {"power_w": None},
    ):
        assert rules(host_bound(trace(gpu={**small, **near_miss}))) == {}


COMPUTES = {"power_w": 300}
COMPUTE, MEMORY = {"compute_bound": "hint"}, {"memory_bound": "hint"}


@pytest.mark.parametrize(
    ("rule", "gpu", "wait", "found"),
    [
        (compute_bound, COMPUTES, 0.0, COMPUTE),
        (compute_bound, {"power_w": 270}, 0.0, {}),
        (compute_bound, {**COMPUTES, "utilisation_percent": 88}, 0.0, {}),
        (compute_bound, {**COMPUTES, "memory_utilisation_percent": 75}, 0.0, {}),
        (compute_bound, {**COMPUTES, "utilisation_percent": 94}, 0.0, COMPUTE),
        (compute_bound, {**COMPUTES, "utilisation_percent": 94}, 0.2, {}),
        (memory_bound, {"memory_utilisation_percent": 75}, 0.0, MEMORY),
        (memory_bound, {"memory_utilisation_percent": 65}, 0.0, {}),
        # Its work is queued, so that starved_by_input finds nothing: another rule has to.
        (compute_bound, {**COMPUTES, "utilisation_percent": 99}, 0.3, COMPUTE),
        (memory_bound, {"utilisation_percent": 99, "memory_utilisation_percent": 80}, 0.3, MEMORY),
        (host_bound, {"utilisation_percent": 99, "power_w": 100}, 0.3, {"host_bound": "warning"}),
    ],
)
def test_what_a_busy_gpu_is_bound_by(rule, gpu, wait, found):
    assert rules(rule(trace(gpu=gpu, steps=marks(wait=wait)))) == found


@pytest.mark.parametrize("rule", [compute_bound, memory_bound])
def test_what_a_busy_gpu_is_bound_by_is_not_judged_without_its_memory(rule):
    assert len(not_judged(rule(trace(gpu={"memory_utilisation_percent": None})))) == 1


def test_of_several_gpus_each_has_its_own_verdict():
    found = compute_bound(trace(gpu=[{}, COMPUTES, {}]))
    assert [each.gpu for each in found] == [1]


QUOTA = {"cpu_limit_cores": 2, "process_cpu_percent": 195, "cpu_percent": (50, 50, 50, 45)}
FULL = {"cpu_percent": (99, 95, 97, 93)}


@pytest.mark.parametrize(
    ("gpu", "host", "found"),
    [
        ((), FULL, {"cpu_bound": "hint"}),
        ({"utilisation_percent": 60}, FULL, {"cpu_bound": "warning"}),
        ({}, FULL, {}),
        ((), {"cpu_percent": (99, 95, 97, 60)}, {}),
        ((), QUOTA, {"cpu_bound": "hint"}),
        ((), {**QUOTA, "process_cpu_percent": 150}, {}),
    ],
)
def test_cpu_bound_by_all_cores_or_a_containers_quota(gpu, host, found):
    assert rules(cpu_bound(trace(gpu=gpu, host=host))) == found


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
