"""Reports beside each other: what stops a comparison, what is said, and what a limit makes of it."""

import json
import math
from dataclasses import fields, replace

import pytest
from bench_reports import NOT_ASKED, PROVENANCE, gpu, processes, report, single, variant
from markdown_it import MarkdownIt

from tfopt import UserError
from tfopt.measure.compare import (
    NOT_IN_THE_INTERVAL,
    NotComparable,
    compare_one,
    compare_two,
    differences,
    judge,
    variant_differences,
    worst_of,
)
from tfopt.report.bench_report import Provenance
from tfopt.report.compared import view_of_both
from tfopt.report.markdown import as_markdown
from tfopt.report.statistics import Comparison
from tfopt.report.terminal import as_text

HOSTILE = "a\n# d\x1b[31m\u202e [bold]x[/bold]"


def two(first, second):
    return compare_two(("a.json", first), ("b.json", second))


def one(found):
    return compare_one(("pair.json", found))


def outcomes(found, limit=0.03):
    return "; ".join(f"{name}: {outcome}" for name, outcome in judge(found, limit).items())


# What differs

STOPPING = {
    "platform": "Linux aarch64",
    "cpu": "Intel Xeon",
    "cpu_flags": ("amx",),
    "cpu_count": 4,
    "cpu_limit": 1.5,
    "memory_gib": 15.6,
    "memory_limit_gib": 8.0,
    "gpus": ("NVIDIA H200",) * 2,
    "driver": "570.86",
    "cuda": "12.5",
    "packages": {**PROVENANCE.packages, "tensorflow": "2.22.0"},
    "variables": {"TF_ENABLE_ONEDNN_OPTS": "0"},
}


def found_in(first, second):
    return {difference.told: difference.blocks for difference in differences(first, second)}


def test_every_field_of_the_provenance_stops_a_comparison_or_is_noted():
    assert {*STOPPING, "git"} == {field.name for field in fields(Provenance)}
    for name, value in STOPPING.items():
        ((words, stops),) = found_in(single(), single(provenance={name: value})).items()
        assert stops, words
    assert words == "variable TF_ENABLE_ONEDNN_OPTS: 1 against 0"
    assert differences(single(), single(seed=1, created="2026-11-22T12:00:00+00:00")) == ()
    seen = differences(single(), single(provenance={"git": "9", "cuda": "12.5"}))
    assert [(each.told, each.blocks) for each in seen] == [
        ("CUDA: none against 12.5", True),
        ("git: 1a2b3c4 against 9", False),
    ]


COMMAND = "tfopt bench my_package.train:job"


def with_one(field, **changed):
    return {"provenance": {field: {**getattr(PROVENANCE, field), **changed}}}


@pytest.mark.parametrize(
    ("changed", "words", "stops"),
    [
        ({"data": "cifar10"}, "data: mnist: 10,000 digits against cifar10", True),
        ({"asked": {"turn_ms": 50.0}}, "length of a turn, ms: 100.0 against 50.0", True),
        ({"asked": {"quick": True}}, "measured: in full against quick", False),
        ({"command": "x\x1b[2J"}, f"command: {COMMAND} against x\ufffd[2J", False),
        ({"provenance": {"memory_gib": 23.4}}, "memory, GiB: 23.5 against 23.4", False),
        (with_one("packages", tfopt="0.2"), "tfopt: 0.1 against 0.2", False),
        (with_one("packages", numpy="2.4.6"), "numpy: none against 2.4.6", True),
        (
            with_one("variables", TF_CPP_VMODULE="1"),
            "variable TF_CPP_VMODULE: none against 1",
            False,
        ),
    ],
)
def test_what_was_measured_and_how(changed, words, stops):
    assert found_in(single(), single(**changed)) == {words: stops}


def test_what_a_variant_is_may_differ_and_what_it_ran_on_may_not():
    seen = variant_differences(
        variant("new", processes(10, 2, gpus=(gpu(),)), arguments={"slower": "0"}),
        variant("new", processes(10, 2, gpus=(gpu("NVIDIA T4"),), data="cifar10"), job="other:job"),
    )
    assert {difference.told: difference.blocks for difference in seen} == {
        "data: mnist: 10,000 digits against cifar10": True,
        "GPUs in use: NVIDIA H200 against NVIDIA T4": True,
        "job: my_package.train:job against other:job": False,
        "argument slower: 0 against none": False,
    }

    def by(batch, replicas):
        return variant("baseline", processes(10, 2, batch_size=batch, replicas=replicas))

    told = ["replicas: 1 against 4", "global batch: unknown against 96"]
    seen = variant_differences(by(None, 1), by(96, 4))
    assert [(each.told, each.blocks) for each in seen] == [(words, True) for words in told]
    assert variant_differences(by(None, 1), by(None, 1)) == ()


# Side by side


@pytest.fixture
def found():
    first = report(
        variant("baseline", processes(10, 6, first_step_s=1.0, host_peak_mib=900.0)),
        variant("+ A", processes(8, seed=1)),
        variant("+ old", processes(8, seed=2)),
    )
    second = report(
        variant("baseline", processes(10.5, 7, seed=3, first_step_s=2.0, gpu_peak_mib=512.0)),
        variant("+ A", ()),
        provenance={"git": "9f8e7d6"},
    )
    return two(first, second)


def test_figures_of_both_with_the_ratio_and_what_may_be_said(found):
    (line,) = found.lines
    assert line.first.step_ms == pytest.approx(10, rel=0.01)
    assert line.comparison.verdict == "slower"
    assert [(each.name, each.first, each.second) for each in found.left_out] == [
        ("+ A", "measured", "failed"),
        ("+ old", "measured", "absent"),
    ]
    assert "ended without a result" in found.left_out[0].told
    content = json.loads(found.to_json())
    assert content["schema"] == "tfopt.compare/4"
    assert content["lines"][0]["comparison"]["verdict"] == "slower"
    assert content["left_out"][1]["second"] == "absent"
    assert content["differences"] == [
        {"what": "git", "first": "1a2b3c4", "second": "9f8e7d6", "blocks": False}
    ]


def test_in_a_terminal_nothing_is_lost_and_markdown_has_one_row_a_variant(found):
    text = as_text(view_of_both(found), 40)
    assert max(map(len, text.splitlines())) <= 40
    words = " ".join(text.split())
    for part in ("10.5", "slower", "1.00 -> 2.00", "n/a -> 512 [1]", "6 -> 7"):
        assert part in words
    assert f"[1] {NOT_ASKED}" in words
    assert "git: 1a2b3c4 against 9f8e7d6" in words
    assert "+ old: b.json: no such variant" in words
    assert " ".join(NOT_IN_THE_INTERVAL.split()) in words
    tokens = MarkdownIt().enable("table").parse(as_markdown(view_of_both(found)))
    assert len([token for token in tokens if token.type == "tr_open"]) == 2
    assert "1.00 -&gt; 2.00" in as_markdown(view_of_both(found))


def test_texts_of_a_report_act_on_nobody():
    sides = [
        single(seed=seed, name=HOSTILE, title=HOSTILE, provenance={"git": f"{HOSTILE}{seed}"})
        for seed in (0, 1)
    ]
    found = two(*sides)
    text = as_text(view_of_both(found), 200)
    assert not {"\x1b", "\u202e"} & set(text)
    assert "[bold]x[/bold]" in text
    assert not {"\x1b", "\u202e"} & set("".join(judge(found, 0.03)))


# One report, whose processes took turns


def against(ratio, low, high):
    return {"against_reference": Comparison(ratio, low, high, 5)}


def test_each_variant_by_the_comparison_that_the_report_makes():
    walk = report(
        variant("baseline", processes(10)),
        variant("+ A", processes(10.5, seed=1), **against(1.05, 1.04, 1.06)),
        # By the example it is faster: two batches differ here on purpose.
        variant("+ B", processes(14, seed=2, batch_size=64), **against(0.7, 0.68, 0.72)),
        variant("+ C", processes(9, 1), unavailable={"against_reference": "one process"}),
        variant("+ D"),
        asked={"kind": "tune"},
    )
    found = one(walk)
    assert outcomes(found) == ("+ A: regression; + B: pass; + C: inconclusive; + D: not comparable")
    assert [each.told for each in found.lines[1].differences] == ["global batch: 32 against 64"]
    assert (found.lines[2].why_not, found.first.name) == ("one process", "its baseline")
    with pytest.raises(UserError, match="nothing beside its reference"):
        one(single())


# The limit


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (1.031, 1.2, "regression"),
        (1.0, 1.029, "pass"),
        (0.5, 0.6, "pass"),
        (1.01, 1.03, "pass"),
        (1.03, 1.04, "inconclusive"),
        (0.9, 1.5, "inconclusive"),
    ],
)
def test_only_an_interval_that_excludes_the_limit_decides(low, high, outcome):
    new = variant("new", processes(10), **against(math.sqrt(low * high), low, high))
    assert outcomes(one(report(variant("base", processes(10)), new))) == f"new: {outcome}"


def several(levels, seed=0, **changed):
    """A report of variants at these levels; None: it failed."""
    made = [
        variant(name, () if level is None else processes(level, seed=seed + n))
        for n, (name, level) in enumerate(levels.items())
    ]
    return report(*made, **changed)


PLAIN, KEPT = {"baseline": 10}, {"baseline": 10, "kept chain": 6}
WITH_A, WITH_B, BROKEN = {**PLAIN, "+ A": 8}, {**PLAIN, "+ B": 6}, {**PLAIN, "+ A": None}
WALK = {**WITH_A, **WITH_B}


@pytest.mark.parametrize(
    ("base", "new", "expected"),
    [
        (WALK, {**WALK, "+ A": 8.5}, "baseline: pass; + A: regression; + B: pass"),
        # One that does not run any more, or is gone, never passes.
        (WITH_A, BROKEN, "baseline: pass; + A: not comparable"),
        (WITH_A, WITH_B, "baseline: pass; + A: not comparable"),
        # One that runs now and did not before has nothing to be compared with.
        (BROKEN, WITH_A, "baseline: pass"),
        # Which chain is kept, and whether it is a row, is left to the machine's noise.
        (KEPT, PLAIN, "baseline: pass"),
        (KEPT, {**PLAIN, "kept chain": 6.6}, "baseline: pass; kept chain: regression"),
        (KEPT, {**PLAIN, "kept chain": None}, "baseline: pass; kept chain: not comparable"),
    ],
)
def test_the_worst_of_several_variants_decides(base, new, expected):
    found = two(several(base), several(new, seed=5))
    assert outcomes(found) == expected
    worst = ("not comparable", "regression", "pass")
    assert worst_of(judge(found, 0.03).values()) == next(each for each in worst if each in expected)
    assert worst_of([]) == "not comparable"


def test_a_new_report_that_was_interrupted_never_passes():
    base, same, slower = single(), single(10.01, seed=1), single(10.5, seed=1)
    found = two(base, replace(same, complete=False))
    assert outcomes(found) == "baseline: inconclusive"
    assert "not complete" in as_text(view_of_both(found), 200)
    assert outcomes(two(base, replace(slower, complete=False))) == "baseline: regression"
    # What the base lacks makes the interval wider, and that is all.
    assert outcomes(two(replace(base, complete=False), same)) == "baseline: pass"


def test_what_is_not_comparable_has_its_reason_and_what_is_odd_is_noted():
    base, other = single(), single(10.5, seed=1, provenance={"cpu": "Intel", "git": "9"})
    with pytest.raises(NotComparable, match="not comparable") as caught:
        two(base, other)
    assert caught.value.received == "CPU: AMD EPYC against Intel"
    found = two(single(), single(20, seed=1, in_process={"batch_size": 64}))
    assert outcomes(found) == "baseline: not comparable"
    assert found.lines[0].why_not == "not comparable: global batch: 32 against 64"
    found = two(single(), report(variant("baseline", processes(10.5, 1, seed=1))))
    assert outcomes(found) == "baseline: inconclusive"
    assert found.lines[0].why_not == "5 and 1 processes: no interval"
    old = single(seed=1, asked={"quick": True}, created="2026-11-20T12:00:00+00:00")
    text = as_text(view_of_both(two(single(), old)), 200)
    assert "quick: less was measured than by default" in text
    assert "b.json is older than a.json: are they swapped?" in text
