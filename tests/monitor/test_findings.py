"""All rules together: what a healthy training gives, the order, and recordings with little in them."""

import ast
import pathlib

import pytest
from traces import BRAKE, HEALTHY, HEAT, POWER, GpuProcess, marks, not_judged, rules, trace

import tfopt
from tfopt.monitor import findings as module
from tfopt.monitor.findings import RULES, SEVERITIES, findings

SHARED = (GpuProcess(1, "a", 900), GpuProcess(2, "b", 900))


def test_a_healthy_training_has_no_findings():
    assert findings(trace(gpu=[{}, {}], steps=marks(wait=0.01, examples=320))) == []


def test_the_most_serious_come_first_and_what_was_not_judged_last():
    found = findings(
        trace(
            gpu=[
                {
                    "clock_reasons": lambda t: (BRAKE,) if t > 30 else (),
                    "sm_clock_mhz": lambda t: 700 if t > 30 else 1400,
                    "processes": SHARED,
                },
                {"utilisation_percent": 0, "max_sm_clock_mhz": None},
            ]
        )
    )
    order = [SEVERITIES.index(each.severity) for each in found]
    assert order == sorted(order)
    assert [each.severity for each in found] == ["serious", "warning", "hint", "not judged"]
    # One finding for all that could not be judged, and each with its reason.
    assert "max_sm_clock_mhz was known in none of 61 samples" in found[-1].message
    assert "tfopt.Monitor marks them" in found[-1].message


def test_every_finding_has_evidence_with_units_times_and_what_to_do():
    limit = {"memory_limit_mib": 9900, "memory_in_limit_mib": 9100}
    recordings = [
        trace(gpu={"clock_reasons": (HEAT,), "utilisation_percent": 60}, steps=marks(wait=0.5)),
        trace(gpu={"clock_reasons": (POWER,)}),
        trace(gpu={"clock_reasons": (BRAKE,)}),
        trace(gpu={"sm_clock_mhz": 900}),
        trace(gpu=[{}, {"utilisation_percent": 0}]),
        trace(gpu={"processes": SHARED}),
        trace(host={"memory_used_mib": 63000, "cpu_percent": (99, 98, 97, 99)}),
        trace(host={"cpu_throttled_s": lambda t: t / 2, **limit}),
    ]
    found = [each for recording in recordings for each in findings(recording)]
    judged = [each for each in found if each.severity != "not judged"]
    for each in judged:
        assert each.message.endswith(".")
        assert each.evidence, each.rule
        assert each.action, each.rule
        if each.transform is not None:
            made = eval(each.transform, {"tfopt": tfopt})
            assert isinstance(made, tfopt.job.Transform), each.transform
    assert len({each.rule for each in judged}) >= 9


@pytest.mark.parametrize(
    ("recording", "why"),
    [
        (trace(2, gpu={"device_mib": lambda t: t}), "3 samples over 2.0 s"),
        (trace(0.5, every=0.01), "51 samples over 0.5 s"),
        (trace(0, gpu={}), "1 samples over 0.0 s"),
    ],
)
def test_few_samples_are_too_few_and_said_to_be(recording, why):
    (found,) = findings(recording)
    assert (found.rule, found.severity) == ("too_few_samples", "not judged")
    assert why in found.message


def test_without_a_gpu_the_rules_about_the_host_still_work():
    found = findings(trace(host={"memory_used_mib": 63500}, steps=marks(wait=0.3)))
    assert rules(found) == {"starved_by_input": "serious", "host_memory": "serious"}
    assert "the rules about GPUs: NVML: Driver Not Loaded" in found[-1].message


def test_a_gpu_that_fell_off_the_bus_is_not_judged_and_the_other_one_is():
    gone = dict.fromkeys(HEALTHY)
    missing = {"utilisation_percent": "NVML: GPU is lost"}
    found = findings(trace(gpu=[gone, {"sm_clock_mhz": 900}], missing=missing))
    assert {each.gpu for each in found if each.rule == "low_clocks"} == {1}
    assert "(NVML: GPU is lost)" in not_judged(found)[0].message


def test_gaps_in_the_samples_change_no_verdict():
    def now_and_then(value):
        return lambda t: None if t % 3 == 1 else value

    gappy = {name: now_and_then(value) for name, value in HEALTHY.items() if not callable(value)}
    assert rules(findings(trace(120, gpu=gappy))) == {}
    found = findings(trace(120, gpu={**gappy, "sm_clock_mhz": now_and_then(900)}))
    assert rules(found) == {"low_clocks": "warning"}


@pytest.mark.parametrize("rule", RULES)
def test_too_little_is_no_ground_for_a_verdict(rule):
    seldom = {name: (lambda t: 99999 if t in (3, 9, 30) else None) for name in HEALTHY}
    seldom |= {"clock_reasons": lambda t: (HEAT,) if t == 3 else None, "processes": None}
    nothing = dict.fromkeys(HEALTHY)
    for recording in (
        trace(0),
        trace(gpu=[nothing, nothing], host={"cpu_percent": None, "rss_mib": None}),
        trace(gpu=[seldom, seldom]),
    ):
        assert rules(list(rule(recording))) == {}


def test_what_was_sampled_before_the_first_step_does_not_count():
    gpu = {"processes": lambda t: SHARED if t < 200 else SHARED[:1]}
    late = [m for m in marks(300) if m.ended_s > 200]
    assert rules(findings(trace(300, gpu=gpu, steps=late))) == {}
    assert rules(findings(trace(300, gpu=gpu))) == {"another_process": "warning"}


def test_numbers_are_written_as_people_read_them():
    written = [module._figure("step", value, "ms") for value in (0.123, 4.56, 83.4, 12345.6, 0)]
    assert written == ["step 0.12 ms", "step 4.6 ms", "step 83 ms", "step 12346 ms", "step 0.00 ms"]


def test_every_threshold_has_its_reason_in_a_comment():
    path = pathlib.Path(module.__file__)
    lines = path.read_text().splitlines()
    for node in ast.parse("\n".join(lines)).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            above = next(
                line
                for line in reversed(lines[: node.lineno - 1])
                if not line.split(" = ")[0].isupper()
            )
            assert above.startswith("#"), node.lineno
