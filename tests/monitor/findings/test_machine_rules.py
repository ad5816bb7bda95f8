"""Memory, clocks, sharing and the board: with the near misses."""

from dataclasses import replace

import pytest
from traces import BRAKE, HEAT, IDLE, POWER, SET, GpuProcess, marks, not_judged, rules, trace

from tfopt.monitor.findings.gpu_rules import low_clocks, throttled
from tfopt.monitor.findings.host_rules import host_memory
from tfopt.monitor.findings.sharing_rules import another_process, out_of_balance


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
    found = host_memory(trace(host=host))
    assert [each.severity for each in found] == ([severity] if severity else [])


def held(reason, clock, *, since=20):
    return {
        "clock_reasons": lambda t: (reason,) if t >= since else (),
        "sm_clock_mhz": lambda t: clock if t >= since else 1400,
        "temperature_c": lambda t: 88 if t >= since else 70,
    }


def test_throttled_says_by_what_since_when_and_what_it_cost():
    (found,) = throttled(trace(gpu=held(HEAT, 1050)))
    assert (found.rule, found.severity) == ("throttled_by_heat", "serious")
    assert "first 20 s after the start" in found.message
    evidence = {e.name: round(e.value) for e in found.evidence}
    assert evidence["clock lost"] == 25
    assert evidence["temperature"] == 88
    assert evidence["slowdown at"] == 90


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
    assert rules(throttled(trace(gpu=held(reason, clock)))) == expected


def test_throttled_all_the_time_is_compared_with_the_highest_clock():
    (found,) = throttled(trace(gpu=held(HEAT, 705, since=0)))
    assert "50 % of the highest clock" in found.message
    (unknown,) = throttled(trace(gpu=held(HEAT, None, since=0)))
    assert "which cost" not in unknown.message
    assert "the cost is not known" in unknown.sure


def test_a_board_at_its_power_limit_all_the_time_is_as_it_is_meant_to_run():
    # As H100s compute: always at the limit, well below the highest clock.
    (found,) = throttled(trace(gpu={**held(POWER, 1100, since=0), "power_w": 395}))
    assert (found.severity, "22 % of the highest clock" in found.message) == ("hint", True)
    assert found.action.startswith("nothing need be done")
    (slower,) = throttled(trace(gpu=held(POWER, 1100)))
    assert slower.action.startswith("raise the limit")


def test_throttled_for_a_moment_is_how_a_gpu_regulates_itself():
    assert throttled(trace(gpu=held(HEAT, 1000, since=59))) == []
    assert len(not_judged(throttled(trace(gpu={"clock_reasons": None})))) == 1
    both = trace(gpu={"clock_reasons": (HEAT, POWER)})
    assert set(rules(throttled(both))) == {"throttled_by_heat", "throttled_by_power"}


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
    found = low_clocks(trace(gpu=gpu))
    assert [each.severity for each in found] == ([severity] if severity else [])
    if severity == "warning":
        assert "ApplicationsClocksSetting" in found[0].message


def processes(*mib):
    return tuple(GpuProcess(100 + n, f"job{n}", each) for n, each in enumerate(mib))


def test_another_process_on_the_gpu():
    (found,) = another_process(trace(gpu={"processes": processes(19000, 8000)}))
    assert "job0 (100), job1 (101)" in found.message
    assert rules(another_process(trace(gpu={"processes": processes(19000, None)})))
    for alone in (processes(19000), processes(19000, 10), ()):
        assert another_process(trace(gpu={"processes": alone})) == []
    passing = {"processes": lambda t: processes(19000, 300) if t < 5 else processes(19000)}
    assert another_process(trace(gpu=passing)) == []
    assert not_judged(another_process(trace(gpu={"processes": None})))


def test_the_same_processes_on_several_gpus_are_one_finding():
    shared = {"processes": processes(19000, 8000)}
    other = {"processes": processes(500, 600, 700)}
    (found,) = another_process(trace(gpu=[shared] * 8))
    assert "GPUs 0, 1, 2, 3, 4, 5, 6, 7 are each shared by 2 processes" in found.message
    assert found.transform is None  # there is nowhere to go
    assert next(e.value for e in found.evidence if e.name == "memory of 100") == 8 * 19000
    first, second = another_process(trace(gpu=[shared, shared, other, {}]))
    assert (first.gpu, second.gpu) == (0, 2)
    assert first.transform == "tfopt.Place(gpus=(3,))"


def divided(*gpus, whole=True):
    """A GPU in two parts (MIG), of which each sees its own process; without ``whole`` the parts."""
    recording = trace(gpu=[{"utilisation_percent": None, **each} for each in gpus])
    parts = [replace(gpu, part_of="GPU-0" if whole else "GPU-x") for gpu in recording.gpus]
    if whole:
        parts[0] = recording.gpus[0]
    return replace(recording, gpus=tuple(parts))


def test_processes_in_parts_of_one_gpu_are_not_in_each_other_s_way():
    own = [{"processes": processes(2000)}, {"processes": (GpuProcess(101, "job1", 2000),)}]
    assert another_process(divided({"processes": processes(2000, 2000)}, *own)) == []
    both = divided(
        {"processes": processes(2000, 2000)}, own[0], {"processes": processes(9, 70, 80)}
    )
    assert [each.gpu for each in another_process(both)] == [2]


@pytest.mark.parametrize("whole", [True, False])
def test_what_parts_share_is_found_once_for_their_board(whole):
    (found,) = throttled(divided(held(HEAT, 1050), held(HEAT, 1050), whole=whole))
    assert found.rule == "throttled_by_heat"


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        ([{}, {}], {}),
        ([{}], {}),
        ([{}, {"utilisation_percent": 70}], {"out_of_balance": "warning"}),
        ([{}, {"utilisation_percent": 80}], {}),
        ([{}, {"utilisation_percent": 1}], {"gpu_unused": "serious"}),
        ([{"utilisation_percent": 2}, {"utilisation_percent": 1}], {}),
        (
            [{}, {"utilisation_percent": 1}, {"utilisation_percent": 60}],
            {"gpu_unused": "serious", "out_of_balance": "warning"},
        ),
    ],
)
def test_replicas_out_of_balance(gpus, found):
    assert rules(out_of_balance(trace(gpu=gpus, steps=marks()))) == found


def test_gpus_of_others_and_of_two_models():
    # Without a training's marks, the busy one may be somebody else's.
    found = out_of_balance(trace(gpu=[{}, {"utilisation_percent": 1}]))
    assert rules(found) == {"gpu_unused": "hint"}
    found = out_of_balance(trace(gpu=[{}, {}], names=["A100", "V100"]))
    assert rules(found) == {"out_of_balance": "warning"}
