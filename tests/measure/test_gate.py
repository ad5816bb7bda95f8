"""The gate's verdicts: one variant, several, two reports and one, with what cannot be judged."""

import math
from dataclasses import replace

import pytest
from bench_reports import blocks, report, single, variant

from tfopt import UserError
from tfopt.measure.comparability import NotComparable
from tfopt.measure.regression_gate import gate_one, gate_two, judge, parse_slowdown
from tfopt.measure.side_by_side import Named
from tfopt.report.footprint import Comparison


@pytest.mark.parametrize(
    ("text", "share"),
    [("3%", 0.03), ("0.03", 0.03), (" 2.5 % ", 0.025), ("0", 0)],
)
def test_a_limit_is_read(text, share):
    assert parse_slowdown(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["", "-3%", "3", "three", "nan", "9" * 400 + "%"])
def test_anything_else_is_one_clear_error(text):
    with pytest.raises(UserError, match="is not a share") as caught:
        parse_slowdown(text)
    assert '"3%"' in caught.value.expected


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
    assert judge(Comparison(math.sqrt(low * high), low, high, 5), 0.03) == outcome


def two(base, new, limit=0.03, **asked):
    return gate_two(Named("base.json", base), Named("new.json", new), limit, **asked)


def one(found, limit=0.03, **asked):
    return gate_one(Named("pair.json", found), limit, **asked)


def outcomes(gate):
    return {each.name: each.outcome for each in gate.judged}


def several(levels, seed=0, **changed):
    """A report of variants at these levels; None: it failed."""
    made = [
        variant(name, () if level is None else blocks(level, seed=seed + n))
        for n, (name, level) in enumerate(levels.items())
    ]
    return report(*made, **changed)


PLAIN, KEPT = {"baseline": 10}, {"baseline": 10, "kept chain": 6}
WITH_A, WITH_B, BROKEN = {**PLAIN, "+ A": 8}, {**PLAIN, "+ B": 6}, {**PLAIN, "+ A": None}
WALK = {**WITH_A, **WITH_B}


@pytest.mark.parametrize(
    ("base", "new", "variants", "expected"),
    [
        (WALK, {**WALK, "+ A": 8.5}, None, "baseline: pass; + A: regression; + B: pass"),
        (WALK, {**WALK, "+ A": 8.5}, ["+ A=+ B"], "+ A = + B: pass"),
        # One that does not run any more, or is gone, never passes.
        (WITH_A, BROKEN, None, "baseline: pass; + A: not comparable"),
        (WITH_A, WITH_B, None, "baseline: pass; + A: not comparable"),
        # One that runs now and did not before has nothing to be compared with, and has lost nothing.
        (BROKEN, WITH_A, None, "baseline: pass"),
        (BROKEN, WITH_A, ["+ A"], "+ A: not comparable"),
        # Whoever names the variants has narrowed what must be there.
        (WITH_A, WITH_B, ["baseline"], "baseline: pass"),
        # Which chain is kept, and whether it is a row, is left to the machine's noise.
        (KEPT, PLAIN, None, "baseline: pass"),
        (KEPT, {**PLAIN, "kept chain": 6.6}, None, "baseline: pass; kept chain: regression"),
        (KEPT, {**PLAIN, "kept chain": None}, None, "baseline: pass; kept chain: not comparable"),
    ],
)
def test_the_worst_of_several_variants_decides(base, new, variants, expected):
    gate = two(several(base), several(new, seed=5), variants=variants)
    assert "; ".join(f"{name}: {outcome}" for name, outcome in outcomes(gate).items()) == expected
    worst = ("not comparable", "regression", "pass")
    assert gate.outcome == next(outcome for outcome in worst if outcome in expected)


def test_what_was_not_judged_is_named_with_its_reason():
    base, new = several(WITH_A), several(WITH_B, seed=5)
    gate = two(base, new)
    assert gate.judged[1].why == "new.json: no such variant"
    assert "not judged: + B (base.json: no such variant)" in gate.told
    assert "ended without a result" in two(base, several(BROKEN, seed=5)).judged[1].why
    back = two(several(BROKEN), several(WITH_A, seed=5))
    assert any(note.startswith("not judged: + A") for note in back.told)
    kept = two(several(KEPT), several(PLAIN, seed=5))
    assert "not judged: kept chain (new.json: no such variant)" in kept.told
    with pytest.raises(UserError, match="no such variant in both") as caught:
        two(single(), single(seed=1), variants=["+ C"])
    assert "base.json has baseline" in caught.value.expected
    with pytest.raises(UserError, match="the same measurement"):
        two(single(), single())


def test_a_new_report_that_was_interrupted_never_passes():
    base, same, slower = single(), single(10.01, seed=1), single(10.5, seed=1)
    gate = two(base, replace(same, complete=False))
    assert gate.outcome == "inconclusive"
    assert gate.judged[0].notes == (
        "would pass, but new.json was interrupted: go on with --resume",
    )
    assert two(base, replace(slower, complete=False)).outcome == "regression"
    # What the base lacks makes the interval wider, and that is all.
    assert two(replace(base, complete=False), same).outcome == "pass"
    found = replace(pair(blocks(10), blocks(10.01, seed=1)), complete=False)
    assert one(found).outcome == "inconclusive"


def test_another_machine_is_refused_and_forced_in_every_line():
    base, other = single(), single(10.5, seed=1, provenance={"cpu": "Intel", "git": "9"})
    with pytest.raises(NotComparable, match="not comparable") as caught:
        two(base, other)
    assert caught.value.received == "CPU: AMD EPYC against Intel"
    forced = two(base, other, force=True)
    assert forced.outcome == "regression"
    assert forced.forced_over == ("CPU",)
    assert [each.forced_over for each in forced.judged] == [("CPU",)]


def test_another_batch_of_a_variant_is_not_comparable_and_forced_by_the_example():
    base, new = single(), single(20, seed=1, in_block={"batch_size": 64})
    gate = two(base, new)
    assert gate.outcome == "not comparable"
    assert gate.judged[0].why == "not comparable: global batch: 32 against 64"
    forced = two(base, new, force=True)
    assert forced.outcome == "pass"
    assert forced.judged[0].comparison.ratio == pytest.approx(1, rel=0.01)
    assert forced.judged[0].notes == ("compared by the example, since the global batches differ",)
    assert forced.judged[0].forced_over == ("global batch",)
    # Where one side does not know its batch, by the step.
    forced = two(base, single(10.1, seed=1, in_block={"batch_size": None}), force=True)
    assert forced.judged[0].comparison.ratio == pytest.approx(1.01, rel=0.01)
    assert "by the step" in forced.judged[0].notes[0]


def test_one_valid_block_gives_no_interval():
    found = blocks(10.5, 3)
    new = report(variant("baseline", (found[0], *(replace(b, invalid="hot") for b in found[1:]))))
    gate = two(single(), new)
    assert gate.outcome == "inconclusive"
    assert gate.judged[0].why == "6 and 1 valid blocks: no interval"


def test_quick_interrupted_and_swapped_measurements_are_noted():
    again = variant("baseline", blocks(10, seed=1))
    quick = {"asked": {"quick": True}}
    old = report(again, complete=False, created="2026-11-20T12:00:00+00:00", **quick)
    gate = two(single(**quick), old)
    assert "base.json was measured quick: less than by default" in gate.told
    assert "new.json is not complete: it was interrupted" in gate.told
    assert "new.json is older than base.json: are they swapped?" in gate.told
    (interrupted,) = gate.judged[0].notes
    assert "was interrupted" in interrupted


def pair(reference, new, **asked):
    made = (variant("base", reference), variant("new", new))
    return report(*made, asked={"kind": "pair", **asked})


def drifting(level, seed):
    """One block a round, all blocks of a round on a machine that slow."""
    factors = (1, 1.3, 0.8, 1.1, 1.6, 1.2)
    return tuple(blocks(level * f, 1, seed=seed + n)[0] for n, f in enumerate(factors))


REFERENCE, SAME, SLOWER = drifting(10, 0), drifting(10.01, 20), drifting(10.5, 40)


def test_one_report_is_judged_by_pairs_of_its_rounds():
    assert outcomes(one(pair(REFERENCE, SAME))) == {"new": "pass"}
    assert outcomes(one(pair(REFERENCE, SLOWER))) == {"new": "regression"}
    # Measured at different times the same blocks say nothing.
    apart = report(variant("x", REFERENCE)), report(variant("x", SLOWER))
    assert two(*apart).outcome == "inconclusive"


def test_a_round_with_an_invalid_block_does_not_count_on_either_side():
    reference, slower = list(REFERENCE), list(SLOWER)
    reference[1] = replace(reference[1], invalid="the clock was held down by heat")
    slower[4] = replace(slower[4], invalid="another process used the GPU")
    # A last round that was cut short has no partner either.
    gate = one(pair(tuple(reference), tuple(slower[:5])))
    assert gate.outcome == "regression"
    assert gate.judged[0].comparison.rounds == 3
    assert gate.told == ("new: 2 rounds with a block that does not count",)
    few = one(pair(tuple(reference[:3]), tuple(slower[:2])))
    assert few.outcome == "inconclusive"
    assert few.judged[0].why == "1 round in which both blocks are valid: no interval"


def test_a_block_that_was_tried_again_is_paired_with_its_own_round():
    found = pair(REFERENCE, SLOWER)
    old, new = found.variants
    spoiled = replace(old.blocks[1], invalid="the clock was held down by heat")
    retried = replace(old, blocks=(old.blocks[0], spoiled, *old.blocks[1:]))
    gate = one(replace(found, variants=(retried, new)))
    assert gate.outcome == "regression"
    assert gate.judged[0].comparison.rounds == 6
    assert gate.told == ()


def test_a_report_of_another_kind_needs_the_variant():
    walk = several({"baseline": 10, "+ A": 10.5, "+ B": 10}, asked={"kind": "prefixes"})
    with pytest.raises(UserError, match="does not say what is gated") as caught:
        one(walk)
    assert "+ A, + B" in caught.value.received
    assert outcomes(one(walk, variants=["+ B"])) == {"+ B": "pass"}
    assert one(walk, variants=["+ B", "+ A"]).outcome == "regression"
    for name in ("+ C", "baseline"):
        with pytest.raises(UserError, match="no such variant beside its reference"):
            one(walk, variants=[name])


def test_a_pair_with_another_batch_or_without_figures_is_not_comparable():
    found = pair(blocks(10), blocks(20, batch_size=64))
    assert one(found).outcome == "not comparable"
    forced = one(found, force=True)
    assert forced.outcome == "pass"
    assert forced.judged[0].forced_over == ("global batch",)
    assert one(pair(blocks(10), ())).outcome == "not comparable"
