"""Each rule with its near misses, and all of them together."""

from dataclasses import replace

import pytest
from traces import (
    BRAKE,
    HEALTHY,
    HEAT,
    IDLE,
    POWER,
    SET,
    GpuProcess,
    marks,
    not_judged,
    rules,
    trace,
)

import tfopt
from tfopt.monitor.findings import SEVERITIES, findings


def processes(*mib):
    return tuple(GpuProcess(100 + n, f"job{n}", each) for n, each in enumerate(mib))


def found_by(rule, recording):
    return [each for each in findings(recording) if each.rule.startswith(rule)]


def lacking(recording):
    """What could not be judged, in words; the marks of a training are no subject here."""
    return " ".join(each.message for each in not_judged(findings(recording)))


def test_a_healthy_training_has_no_findings():
    assert findings(trace(gpu=[{}, {}], steps=marks(wait=0.01, examples=320))) == []


def test_the_most_serious_come_first_and_what_was_not_judged_last():
    braked = {
        "clock_reasons": lambda t: (BRAKE,) if t > 30 else (),
        "sm_clock_mhz": lambda t: 700 if t > 30 else 1400,
        "processes": processes(900, 900),
    }
    idle = {"utilisation_percent": 0, "clock_reasons": None}
    found = findings(trace(gpu=[braked, idle]))
    order = [SEVERITIES.index(each.severity) for each in found]
    assert order == sorted(order)
    assert [each.severity for each in found] == ["serious", "warning", "hint", "not judged"]
    # One finding for all that could not be judged, and each with its reason.
    assert str(found[-1]).startswith("not judged: ")
    assert str(found[-1]).count("judged") == 1
    assert "clock_reasons was known in none of 61 samples" in found[-1].message
    assert "tfopt.Monitor marks them" in found[-1].message


def test_every_finding_has_evidence_and_what_to_do():
    limit = {"memory_limit_mib": 9900, "memory_in_limit_mib": 9100}
    gpu = {"clock_reasons": (HEAT, POWER, BRAKE), "utilisation_percent": 60}
    gpu |= {"processes": processes(900, 900)}
    recording = trace(gpu=[gpu, {"utilisation_percent": 0}], host=limit, steps=marks(wait=0.5))
    found = findings(recording)
    for each in found:
        assert each.message.endswith(".")
        assert each.evidence, each.rule
        assert each.action, each.rule
        if each.transform is not None:
            made = eval(each.transform, {"tfopt": tfopt})
            assert isinstance(made, tfopt.job.Transform), each.transform
    assert len({each.rule for each in found}) == 6


@pytest.mark.parametrize(
    ("recording", "why"),
    [
        (trace(2, gpu={"device_mib": lambda t: t}), "3 samples over 2.0 s"),
        (trace(0, gpu={}), "1 samples over 0.0 s"),
    ],
)
def test_few_samples_are_too_few_and_said_to_be(recording, why):
    (found,) = findings(recording)
    assert (found.rule, found.severity) == ("too_few_samples", "not judged")
    assert why in found.message


def test_gaps_in_the_samples_change_no_verdict_and_too_little_is_no_ground_for_one():
    def now_and_then(value):
        return lambda t: None if t % 3 == 1 else value

    gappy = {name: now_and_then(value) for name, value in HEALTHY.items() if not callable(value)}
    assert rules(findings(trace(120, gpu=gappy))) == {}
    found = findings(trace(120, gpu={**gappy, "clock_reasons": now_and_then((HEAT,))}))
    assert rules(found) == {"throttled_by_heat": "serious"}
    seldom = {name: (lambda t: 99999 if t in (3, 9, 30) else None) for name in HEALTHY}
    seldom |= {"clock_reasons": lambda t: (HEAT,) if t == 3 else None, "processes": None}
    assert rules(findings(trace(gpu=[seldom, seldom], host={"memory_used_mib": None}))) == {}


def test_what_was_sampled_before_the_first_step_does_not_count():
    gpu = {"processes": lambda t: processes(900, 900) if t < 200 else processes(900)}
    late = [m for m in marks(300) if m.ended_s > 200]
    assert rules(findings(trace(300, gpu=gpu, steps=late))) == {}
    assert rules(findings(trace(300, gpu=gpu))) == {"another_process": "warning"}


@pytest.mark.parametrize(("wait", "severity"), [(0.09, None), (0.11, "warning"), (0.21, "serious")])
def test_starved_by_the_share_of_the_step_that_waits(wait, severity):
    recording = trace(gpu={"utilisation_percent": 60}, steps=marks(wait=wait))
    found = found_by("starved_by_input", recording)
    assert [each.severity for each in found] == ([severity] if severity else [])
    if found:
        input_wait, *others = found[0].evidence
        assert input_wait.startswith(f"input wait {100 * wait:.0f}")
        assert input_wait.endswith("% of the step")
        assert others == ["step 100 ms", "GPU 0 (NVIDIA Trace) utilisation 60 %"]


def test_a_wait_while_the_gpu_has_work_queued_or_the_step_compiles_costs_nothing():
    busy = trace(gpu={"utilisation_percent": 98}, steps=marks(wait=0.5))
    assert rules(findings(busy)) == {}
    uneven = trace(gpu=[{}, {"utilisation_percent": 50}], steps=marks(wait=0.5))
    assert rules(findings(uneven)) == {"starved_by_input": "serious"}
    first, *rest = marks()
    compiling = replace(first, seconds=60.0, input_wait_s=55.0)
    assert rules(findings(trace(steps=[compiling, *rest]))) == {}
    partly = [m if n % 3 else replace(m, input_wait_s=None) for n, m in enumerate(marks(wait=0.4))]
    assert rules(findings(trace(steps=partly))) == {"starved_by_input": "serious"}


@pytest.mark.parametrize("steps", [(), marks(steps=None), marks(wait=None), marks(9, steps=1)])
def test_starved_says_what_it_lacks(steps):
    assert "starved_by_input: " in lacking(trace(steps=steps))


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ({"memory_used_mib": 58000}, {"host_memory": "warning"}),
        ({"memory_used_mib": 63000}, {"host_memory": "serious"}),
        # In a container the machine's memory says nothing.
        ({"memory_used_mib": 63000, "memory_limit_mib": 8000, "memory_in_limit_mib": 3000}, {}),
        ({"memory_limit_mib": 8000, "memory_in_limit_mib": 7900}, {"host_memory": "serious"}),
    ],
)
def test_the_host(host, found):
    assert rules(findings(trace(host=host))) == found


def held(reason, since=20):
    return {
        "clock_reasons": lambda t: (reason,) if t >= since else (),
        "sm_clock_mhz": lambda t: 1050 if t >= since else 1400,
        "temperature_c": lambda t: 88 if t >= since else 70,
    }


def test_throttled_says_by_what_and_at_which_clock():
    (found,) = found_by("throttled", trace(gpu=held(HEAT)))
    assert "throttled by heat, detected by the driver (SwThermalSlowdown) in 67 %" in found.message
    shown = {
        "SM clock 1,050 MHz",
        "its highest 1,410 MHz",
        "temperature 88 °C",
        "slowdown at 90 °C",
    }
    assert shown <= set(found.evidence)


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        ((HEAT,), {"throttled_by_heat": "serious"}),
        # As H100s compute: always at the limit, well below the highest clock.
        ((POWER,), {"throttled_by_power": "hint"}),
        ((BRAKE,), {"throttled_by_hardware": "serious"}),
        ((IDLE,), {}),
        ((SET,), {}),
        ((HEAT, POWER), {"throttled_by_heat": "serious", "throttled_by_power": "hint"}),
    ],
)
def test_clocks_by_reason(reasons, expected):
    assert rules(findings(trace(gpu={"clock_reasons": reasons}))) == expected
    # For a moment: so a GPU regulates itself.
    assert rules(findings(trace(gpu=held(reasons[0], since=59)))) == {}


def test_another_process_on_the_gpu():
    shared = trace(gpu={"processes": processes(19000, 8000)})
    (found,) = found_by("another_process", shared)
    assert "job0 (100), job1 (101)" in found.message
    assert found_by("another_process", trace(gpu={"processes": processes(19000, None)}))
    passing = {"processes": lambda t: processes(19000, 300) if t < 5 else processes(19000)}
    alone = [{"processes": each} for each in (processes(19000), processes(19000, 10), ())]
    for gpu in (*alone, passing):
        assert found_by("another_process", trace(gpu=gpu)) == []
    assert "another_process: " in lacking(trace(gpu={"processes": None}))


@pytest.mark.parametrize(
    ("percents", "found"),
    [
        ((97, 50), {}),
        ((97, 1), {"gpu_unused": "serious"}),
        ((2, 1), {}),
    ],
)
def test_a_gpu_that_does_nothing_beside_one_that_computes(percents, found):
    gpus = [{"utilisation_percent": each} for each in percents]
    assert rules(findings(trace(gpu=gpus, steps=marks()))) == found
    # Without a training the busy GPU may be somebody else's.
    assert rules(findings(trace(gpu=gpus))) == dict.fromkeys(found, "hint")
