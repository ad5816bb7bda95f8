"""Starved, host-bound, compute-bound, memory-bound, and the host's cores: with the near misses."""

import pytest
from traces import HEAT, marks, not_judged, rules, trace

from tfopt.monitor.findings.bottleneck_rules import (
    compute_bound,
    host_bound,
    memory_bound,
    starved_by_input,
)
from tfopt.monitor.findings.cpu_rules import cpu_bound, cpu_held_back


@pytest.mark.parametrize(
    ("wait", "severity"), [(0.09, None), (0.11, "warning"), (0.19, "warning"), (0.21, "serious")]
)
def test_starved_by_the_share_of_the_step_that_waits(wait, severity):
    found = starved_by_input(trace(gpu={"utilisation_percent": 60}, steps=marks(wait=wait)))
    assert rules(found) == ({"starved_by_input": severity} if severity else {})
    if found:
        told = {e.name: (e.value, e.unit) for e in found[0].evidence}
        assert told["input wait"] == (pytest.approx(100 * wait), "% of the step")
        assert told["step"] == (pytest.approx(100), "ms")
        assert told["GPU 0 utilisation"] == (60, "%")


def test_a_wait_while_the_gpu_has_work_queued_costs_nothing():
    assert starved_by_input(trace(gpu={"utilisation_percent": 98}, steps=marks(wait=0.5))) == []
    uneven = trace(gpu=[{}, {"utilisation_percent": 50}], steps=marks(wait=0.5))
    assert rules(starved_by_input(uneven)) == {"starved_by_input": "serious"}


def test_the_first_mark_which_compiles_is_left_out():
    first, *rest = marks()
    slow_start = [first.__class__(1, 10, 60.0, None, 55.0), *rest]
    assert starved_by_input(trace(steps=slow_start)) == []


def test_starved_says_what_it_lacks():
    for steps in ((), marks(3), marks(steps=None), marks(wait=None), marks(9, steps=1)):
        assert [each.rule for each in not_judged(starved_by_input(trace(steps=steps)))] == [
            "starved_by_input"
        ]
    half = [
        m if n % 3 else m.__class__(m.ended_s, m.steps, m.seconds)
        for n, m in enumerate(marks(wait=0.4))
    ]
    assert rules(starved_by_input(trace(steps=half))) == {"starved_by_input": "serious"}


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


def test_host_bound_by_the_busiest_core_where_the_process_is_not_told():
    def of(*cores):
        host = {"process_cpu_percent": None, "cpu_percent": cores}
        return rules(host_bound(trace(gpu=GAPS, host=host)))

    assert of(95, 10, 10, 10) == {"host_bound": "warning"}
    assert of(80, 10, 10, 10) == {}
    assert of(95, 90, 90, 90) == {}
    assert of(95) == {}


SMALL = {"utilisation_percent": 95, "power_w": 160, "memory_utilisation_percent": 20}


def test_host_bound_by_kernels_that_leave_the_gpu_cool():
    (found,) = host_bound(trace(gpu=SMALL))
    assert "leave most of it idle" in found.message
    for near_miss in (
        {"power_w": 210},
        {"memory_utilisation_percent": 60},
        {"clock_reasons": (HEAT,)},
        {"power_w": None},
    ):
        assert rules(host_bound(trace(gpu={**SMALL, **near_miss}))) == {}


def test_compute_bound_and_memory_bound():
    full = {"power_w": 300}
    assert rules(compute_bound(trace(gpu=full))) == {"compute_bound": "hint"}
    assert rules(compute_bound(trace(gpu={"power_w": 270}))) == {}
    assert rules(compute_bound(trace(gpu={**full, "utilisation_percent": 88}))) == {}
    assert rules(compute_bound(trace(gpu={**full, "memory_utilisation_percent": 75}))) == {}
    assert rules(compute_bound(trace(gpu={**full, "utilisation_percent": 94}))) == {
        "compute_bound": "hint"
    }
    starved = trace(gpu={**full, "utilisation_percent": 94}, steps=marks(wait=0.2))
    assert rules(compute_bound(starved)) == {}
    assert rules(memory_bound(trace(gpu={"memory_utilisation_percent": 75}))) == {
        "memory_bound": "hint"
    }
    assert rules(memory_bound(trace(gpu={"memory_utilisation_percent": 65}))) == {}
    lacking = {"memory_utilisation_percent": None}
    assert (
        len(not_judged(compute_bound(trace(gpu=lacking)) + memory_bound(trace(gpu=lacking)))) == 2
    )


def test_a_busy_gpu_is_judged_also_where_python_waits_ahead_of_it():
    """Its work is queued, so starved_by_input says nothing: somebody has to."""
    busy = {"utilisation_percent": 99, "power_w": 300}
    recording = trace(gpu=busy, steps=marks(wait=0.3))
    assert rules(starved_by_input(recording)) == {}
    assert rules(compute_bound(recording)) == {"compute_bound": "hint"}
    recording = trace(gpu={**busy, "memory_utilisation_percent": 80}, steps=marks(wait=0.3))
    assert rules(memory_bound(recording)) == {"memory_bound": "hint"}
    recording = trace(gpu={**busy, "power_w": 100}, steps=marks(wait=0.3))
    assert rules(host_bound(recording)) == {"host_bound": "warning"}


def test_of_several_gpus_each_has_its_own_verdict():
    found = compute_bound(trace(gpu=[{}, {"power_w": 300}, {}]))
    assert [each.gpu for each in found] == [1]


FULL = {"cpu_percent": (99, 95, 97, 93)}


def test_cpu_bound():
    assert rules(cpu_bound(trace(host=FULL))) == {"cpu_bound": "hint"}
    assert rules(cpu_bound(trace(gpu={"utilisation_percent": 60}, host=FULL))) == {
        "cpu_bound": "warning"
    }
    assert cpu_bound(trace(gpu={}, host=FULL)) == []
    assert cpu_bound(trace(host={"cpu_percent": (99, 95, 97, 60)})) == []


def test_cpu_bound_within_a_containers_quota():
    quota = {"cpu_limit_cores": 2, "process_cpu_percent": 195, "cpu_percent": (50, 50, 50, 45)}
    (found,) = cpu_bound(trace(host=quota))
    assert found.evidence[0].name == "CPU of the process, of 2 cores"
    assert cpu_bound(trace(host={**quota, "process_cpu_percent": 150})) == []


def test_cpu_held_back():
    assert rules(cpu_held_back(trace(host={"cpu_throttled_s": lambda t: 7 + t / 10}))) == {
        "cpu_held_back": "warning"
    }
    assert cpu_held_back(trace(host={"cpu_throttled_s": lambda t: 7 + t / 30})) == []
    assert cpu_held_back(trace()) == []
