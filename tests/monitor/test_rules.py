"""Each rule, with its near misses."""

from dataclasses import replace

import pytest
from traces import BRAKE, HEAT, IDLE, POWER, SET, GpuProcess, marks, not_judged, rules, trace

from tfopt.monitor import findings as module


def found_by(rule, recording):
    return list(getattr(module, rule)(recording))


@pytest.mark.parametrize(
    ("wait", "severity"), [(0.09, None), (0.11, "warning"), (0.19, "warning"), (0.21, "serious")]
)
def test_starved_by_the_share_of_the_step_that_waits(wait, severity):
    found = found_by(
        "starved_by_input", trace(gpu={"utilisation_percent": 60}, steps=marks(wait=wait))
    )
    assert rules(found) == ({"starved_by_input": severity} if severity else {})
    if found:
        input_wait, *others = found[0].evidence
        assert input_wait.startswith(f"input wait {100 * wait:.0f}")
        assert input_wait.endswith("% of the step")
        assert others == ["step 100 ms", "GPU 0 utilisation 60 %"]


def test_a_wait_while_the_gpu_has_work_queued_or_the_step_compiles_costs_nothing():
    assert (
        found_by("starved_by_input", trace(gpu={"utilisation_percent": 98}, steps=marks(wait=0.5)))
        == []
    )
    uneven = trace(gpu=[{}, {"utilisation_percent": 50}], steps=marks(wait=0.5))
    assert rules(found_by("starved_by_input", uneven)) == {"starved_by_input": "serious"}
    first, *rest = marks()
    compiling = replace(first, seconds=60.0, input_wait_s=55.0)
    assert found_by("starved_by_input", trace(steps=[compiling, *rest])) == []


@pytest.mark.parametrize(
    "steps", [(), marks(3), marks(steps=None), marks(wait=None), marks(9, steps=1)]
)
def test_starved_says_what_it_lacks(steps):
    (found,) = found_by("starved_by_input", trace(steps=steps))
    assert (found.rule, found.severity) == ("starved_by_input", "not judged")


def test_starved_needs_the_wait_of_most_steps_only():
    steps = [m if n % 3 else replace(m, input_wait_s=None) for n, m in enumerate(marks(wait=0.4))]
    assert rules(found_by("starved_by_input", trace(steps=steps))) == {
        "starved_by_input": "serious"
    }


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ({"cpu_throttled_s": lambda t: 7 + t / 10}, {"cpu_held_back": "warning"}),
        ({"cpu_throttled_s": lambda t: 7 + t / 30}, {}),
        ({}, {}),
    ],
)
def test_cpu_held_back(host, found):
    assert rules(found_by("cpu_held_back", trace(host=host))) == found


@pytest.mark.parametrize(
    ("host", "severity"),
    [
        ({"memory_used_mib": 57000}, None),
        ({"memory_used_mib": 58000}, "warning"),
        ({"memory_used_mib": 63000}, "serious"),
        # In a container the machine's memory says nothing.
        ({"memory_used_mib": 63000, "memory_limit_mib": 8000, "memory_in_limit_mib": 3000}, None),
        ({"memory_limit_mib": 8000, "memory_in_limit_mib": 7900}, "serious"),
        ({"memory_used_mib": None}, "not judged"),
    ],
)
def test_host_memory_near_the_machines_end_or_the_containers(host, severity):
    found = found_by("host_memory", trace(host=host))
    assert [each.severity for each in found] == ([severity] if severity else [])


def held(reason, clock, *, since=20):
    return {
        "clock_reasons": lambda t: (reason,) if t >= since else (),
        "sm_clock_mhz": lambda t: clock if t >= since else 1400,
        "temperature_c": lambda t: 88 if t >= since else 70,
    }


def test_throttled_says_by_what_since_when_and_what_it_cost():
    (found,) = found_by("throttled", trace(gpu=held(HEAT, 1050)))
    assert (found.rule, found.severity) == ("throttled_by_heat", "serious")
    assert "first 20 s after the start" in found.message
    figures = {"clock lost 25 % of the clock before", "temperature 88 °C", "slowdown at 90 °C"}
    assert figures <= set(found.evidence)


@pytest.mark.parametrize(
    ("reason", "clock", "expected"),
    [
        (HEAT, 1380, {"throttled_by_heat": "warning"}),
        (POWER, 1380, {"throttled_by_power": "hint"}),
        (POWER, 1100, {"throttled_by_power": "warning"}),
        (BRAKE, 700, {"throttled_by_hardware": "serious"}),
        (IDLE, 300, {}),
        (SET, 900, {}),
    ],
)
def test_throttled_by_reason_and_cost(reason, clock, expected):
    assert rules(found_by("throttled", trace(gpu=held(reason, clock)))) == expected


def test_throttled_all_the_time_is_compared_with_the_highest_clock():
    (found,) = found_by("throttled", trace(gpu=held(HEAT, 705, since=0)))
    assert "50 % of the highest clock" in found.message
    (unknown,) = found_by("throttled", trace(gpu=held(HEAT, None, since=0)))
    assert "which cost" not in unknown.message


def test_a_board_at_its_power_limit_all_the_time_is_as_it_is_meant_to_run():
    # As H100s compute: always at the limit, well below the highest clock.
    (found,) = found_by("throttled", trace(gpu={**held(POWER, 1100, since=0), "power_w": 395}))
    assert (found.severity, "22 % of the highest clock" in found.message) == ("hint", True)
    assert found.action.startswith("nothing need be done")
    (slower,) = found_by("throttled", trace(gpu=held(POWER, 1100)))
    assert slower.action.startswith("raise the limit")


def test_throttled_for_a_moment_is_how_a_gpu_regulates_itself():
    assert found_by("throttled", trace(gpu=held(HEAT, 1000, since=59))) == []
    assert len(not_judged(found_by("throttled", trace(gpu={"clock_reasons": None})))) == 1
    both = trace(gpu={"clock_reasons": (HEAT, POWER)})
    assert set(rules(found_by("throttled", both))) == {"throttled_by_heat", "throttled_by_power"}


@pytest.mark.parametrize(
    ("gpu", "severity"),
    [
        ({"sm_clock_mhz": 900, "clock_reasons": (SET,)}, "warning"),
        ({"sm_clock_mhz": 1200}, None),
        # An idle GPU, and a throttled one, have low clocks for another reason.
        ({"sm_clock_mhz": 300, "utilisation_percent": 20}, None),
        ({"sm_clock_mhz": 900, "clock_reasons": (HEAT,)}, None),
        ({"max_sm_clock_mhz": None}, "not judged"),
        ({"utilisation_percent": None}, "not judged"),
    ],
)
def test_low_clocks(gpu, severity):
    found = found_by("low_clocks", trace(gpu=gpu))
    assert [each.severity for each in found] == ([severity] if severity else [])
    if severity == "warning":
        assert "ApplicationsClocksSetting" in found[0].message


def processes(*mib):
    return tuple(GpuProcess(100 + n, f"job{n}", each) for n, each in enumerate(mib))


def test_another_process_on_the_gpu():
    (found,) = found_by("another_process", trace(gpu={"processes": processes(19000, 8000)}))
    assert "job0 (100), job1 (101)" in found.message
    assert rules(found_by("another_process", trace(gpu={"processes": processes(19000, None)})))
    for alone in (processes(19000), processes(19000, 10), ()):
        assert found_by("another_process", trace(gpu={"processes": alone})) == []
    passing = {"processes": lambda t: processes(19000, 300) if t < 5 else processes(19000)}
    assert found_by("another_process", trace(gpu=passing)) == []
    assert not_judged(found_by("another_process", trace(gpu={"processes": None})))


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        ([{}, {}], {}),
        ([{}], {}),
        ([{}, {"utilisation_percent": 50}], {}),
        ([{}, {"utilisation_percent": 1}], {"gpu_unused": "serious"}),
        ([{"utilisation_percent": 2}, {"utilisation_percent": 1}], {}),
    ],
)
def test_a_gpu_that_does_nothing_beside_one_that_computes(gpus, found):
    assert rules(found_by("gpu_unused", trace(gpu=gpus, steps=marks()))) == found


def test_without_a_training_the_busy_gpu_may_be_somebody_else_s():
    found = found_by("gpu_unused", trace(gpu=[{}, {"utilisation_percent": 1}]))
    assert rules(found) == {"gpu_unused": "hint"}
