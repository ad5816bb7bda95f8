"""Which links are kept: only what the intervals and the seeds allow."""

from dataclasses import replace

import pytest

from tfopt import Execution, LearningRate, Pipeline, Place, Prune, Quantize, chain
from tfopt.measure.advice import choose, recommend, told
from tfopt.measure.rehearsal import Rehearsed
from tfopt.measure.variant import Variant
from tfopt.report.bench.bench_report import Quality, VariantReport
from tfopt.report.bench.block import Block, BlockMemory
from tfopt.report.footprint import Comparison

FASTER = Comparison(0.5, 0.48, 0.52, 5)
SLOWER = Comparison(1.2, 1.1, 1.3, 5)
SAME = Comparison(1.0, 0.99, 1.01, 5)
UNCLEAR = Comparison(0.9, 0.7, 1.1, 5)
NOTHING = dict.fromkeys(BlockMemory.MAY_BE_NONE, "not asked")
BLOCK = Block(
    *(1.0, 1.0, 1.0, 1.0, (2.0, 2.1), (1, 1), (), 32, 32.0, 1),
    BlockMemory(None, None, None, None, None, NOTHING),
    *((), None, {"timeline": "not asked"}, "toy", None, 0),
)


def points(mean):
    return Quality("test accuracy", (0, 1), (0.9, 0.9), (0.9, 0.9), mean, mean - 1, mean + 1, 0.5)


def row(transform, *, previous=FASTER, reference=None, quality=None, status="measured"):
    measured = status == "measured"
    parts = {
        "against_reference": reference or (previous if measured else None),
        "against_previous": previous if measured else None,
        "steadiness": None,
        "split": None,
        "roofline": None,
        "quality": quality,
    }
    name = "baseline" if transform is None else f"+ {type(transform).__name__}"
    report = VariantReport(
        name=name,
        job="toy:job",
        arguments={},
        transform=None if transform is None else repr(transform),
        chain="chain()",
        exact=True,
        status=status,
        reason=None if measured else "no such GPU",
        changed=(),
        blocks=(BLOCK,) if measured else (),
        scaling=None,
        unavailable={part: "nobody asked" for part, found in parts.items() if found is None},
        **parts,
    )
    variant = Variant(name, "toy:job", changed=transform)
    return Rehearsed(variant, status, report.reason, (), "toy", 1.0), report


def walk(*rows, whole=None):
    return recommend(choose("prefixes", rows), whole)


def ablation(*rows, whole=None):
    return recommend(choose("ablation", rows), whole)


BASELINE = row(None)


def test_a_faster_link_is_kept_with_what_the_whole_brought():
    found = walk(BASELINE, row(Execution(), reference=Comparison(0.4, 0.39, 0.41, 5)))
    assert found.keep == "chain(Execution())"
    assert "0.400 of the time (0.390 to 0.410)" in found.brought
    assert found.dropped == ()


@pytest.mark.parametrize("comparison", [SLOWER, SAME, UNCLEAR])
def test_a_link_without_a_gain_is_dropped_by_its_verdict(comparison):
    found = walk(BASELINE, row(Execution(), previous=comparison))
    assert found.keep == "chain()"
    (reason,) = found.dropped
    assert reason.startswith("Execution: ")
    assert comparison.verdict in reason


def test_a_link_that_was_not_measured_keeps_its_reason():
    found = walk(BASELINE, row(Place(), status="no_effect"), row(Execution()))
    assert found.keep == "chain(Execution())"
    assert found.dropped == ("Place: no such GPU",)
    # What changes nothing leaves the whole as it was measured.
    assert "0.500 of the time" in found.brought


DROPPED_FIRST = (BASELINE, row(Pipeline(), previous=SLOWER, quality=points(0)), row(Execution()))


def test_nothing_is_claimed_of_a_chain_that_was_not_measured_as_a_whole():
    found = walk(*DROPPED_FIRST)
    assert found.keep == "chain(Execution())"
    assert "it was not measured as a whole" in found.brought
    _, whole = row(None, reference=Comparison(0.7, 0.69, 0.71, 5))
    found = walk(*DROPPED_FIRST, whole=whole)
    assert found.keep == "chain(Execution())"
    assert "0.700 of the time" in found.brought


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"reference": SLOWER}, "slower"),
        ({"reference": SAME}, "no difference"),
        ({"quality": points(-2.0)}, "loses 2.00 points"),
        ({"status": "failed"}, "together failed: no such GPU"),
    ],
)
def test_links_that_do_not_hold_together_are_not_recommended(asked, why):
    _, whole = row(None, **asked)
    found = walk(*DROPPED_FIRST, whole=whole)
    assert (found.keep, found.brought) == ("chain()", "nothing: the job as it is")
    assert found.dropped[-1].startswith("Execution: together")
    assert why in found.dropped[-1]


def test_a_whole_that_nobody_can_tell_is_kept_and_said_to_be_unclear():
    _, whole = row(None, reference=UNCLEAR)
    found = walk(*DROPPED_FIRST, whole=whole)
    assert found.keep == "chain(Execution())"
    assert "inconclusive" in found.brought


def test_other_weights_need_the_metric():
    assert "nobody asked" in walk(BASELINE, row(Pipeline())).dropped[0]
    lost = walk(BASELINE, row(Pipeline(), quality=points(-0.6)))
    assert "loses 0.60 points" in lost.dropped[0]
    kept = walk(BASELINE, row(Pipeline(), quality=points(-0.4)))
    assert kept.keep == "chain(Pipeline())"


def test_a_link_is_not_blamed_for_what_was_lost_before_it():
    found = walk(
        BASELINE,
        row(Pipeline(), quality=points(-2.0)),
        row(LearningRate(), quality=points(-0.9), previous=FASTER),
    )
    assert found.keep == "chain(LearningRate())"
    assert [reason.split(":")[0] for reason in found.dropped] == ["Pipeline"]


def test_small_losses_add_up_and_only_the_last_drop_is_blamed():
    found = walk(
        BASELINE,
        row(Pipeline(), quality=points(-0.3)),
        row(LearningRate(), quality=points(-0.45)),
        row(Prune(0.5), quality=points(-0.8)),
    )
    assert found.keep == "chain(Pipeline(), LearningRate())"
    assert found.dropped == ("Prune: it loses 0.35 points of test accuracy over 2 seeds",)


def test_a_row_without_figures_does_not_hide_what_was_lost_before_it():
    found = walk(
        BASELINE,
        row(Prune(0.9), quality=points(-2.0)),
        row(Place(), status="no_effect"),
        row(Pipeline(), quality=points(-2.01)),
    )
    assert [reason.split(":")[0] for reason in found.dropped] == ["Prune", "Place"]
    assert found.keep == "chain(Pipeline())"


def test_links_that_help_only_together_are_kept_together():
    found = walk(
        BASELINE,
        of((ALL[1],), ALL[1], {"previous": UNCLEAR, "quality": points(0.1)}),
        of(ALL[1::-1], ALL[0], {"previous": UNCLEAR, "reference": FASTER, "quality": points(0.1)}),
    )
    assert found.keep == "chain(Pipeline(), Execution())"
    assert found.brought.startswith(f"an example takes {told(FASTER)}")
    assert (found.dropped, found.undecided) == ((), ())


def test_what_cannot_be_told_yet_is_no_advice_against_it():
    found = walk(BASELINE, row(Execution(), previous=UNCLEAR))
    assert (found.keep, found.undecided) == ("chain()", ("Execution",))
    assert walk(BASELINE, row(Execution(), previous=SAME)).undecided == ()


def test_few_seeds_that_leave_it_open_are_said_to():
    found = walk(BASELINE, row(Pipeline(), quality=points(-0.1)))
    assert "-0.10 points of test accuracy (not certain over 2 seeds)" in found.brought
    assert "certain" not in walk(BASELINE, row(Pipeline(), quality=points(0.6))).brought


def test_a_link_for_size_is_kept_unless_it_loses_accuracy():
    kept = walk(BASELINE, row(Quantize(), previous=SAME, quality=points(0.1)))
    assert kept.keep == "chain(Quantize())"
    assert walk(BASELINE, row(Prune(0.5), quality=points(-1))).keep == "chain()"


def of(transforms, *rest):
    """The row of a chain in an ablation."""
    rehearsed, report = row(*rest[:1], **rest[1] if len(rest) > 1 else {})
    variant = replace(rehearsed.variant, chain=chain(*transforms))
    return replace(rehearsed, variant=variant), report


ALL = (Execution(), Pipeline(), Prune(0.5))
ABLATION = (
    of(ALL, None),
    of(ALL[1:], ALL[0], {"reference": SLOWER}),
    of((ALL[0], ALL[2]), ALL[1], {"reference": SAME}),
    of(ALL[:2], ALL[2], {"reference": FASTER}),
    of((), Place(), {"status": "failed"}),
)


def test_an_ablation_keeps_what_slows_the_rest_when_it_is_left_out():
    found = ablation(*ABLATION)
    # What is for size is not judged by time. Exactly this was measured: by leaving Pipeline out.
    assert found.keep == repr(chain(Execution(), Prune(0.5)))
    assert [reason.split(":")[0] for reason in found.dropped] == ["Pipeline", "Place"]
    assert found.brought == f"an example takes {told(SAME)}"


def test_an_ablation_keeps_what_it_cannot_tell():
    choice = choose("ablation", [ABLATION[0], of(ALL[1:], ALL[0], {"reference": UNCLEAR})])
    assert (choice.chain, choice.undecided) == (chain(Execution()), ("Execution",))


def test_an_ablation_never_keeps_what_ruins_the_model():
    """The whole chain is what everything is compared with, and may be the worst of all."""
    whole = of(ALL[1:], None, {"quality": points(-26.0)})
    links = (
        of(ALL[2:], ALL[1], {"reference": SLOWER, "quality": points(-26.0)}),
        of((ALL[1],), ALL[2], {"reference": SAME, "quality": points(-0.1)}),
    )
    choice = choose("ablation", (whole, *links))
    assert choice.chain == chain(ALL[1])
    assert choice.dropped == ("Prune: without it the rest has 25.90 points of test accuracy more",)
    assert choice.measured is links[1][1]
    assert recommend(choice, None).keep == repr(chain(ALL[1]))
    # Where no link is to blame alone, the chain as it was is no way out.
    both = [whole, *(of((), part, {"reference": SLOWER, "quality": points(-26)}) for part in ALL)]
    assert recommend(choose("ablation", both), None).keep == "chain()"


def test_what_can_only_be_left_out_alone_stays():
    first, second = ALL[:2]
    same = {"reference": SAME}
    choice = choose(
        "ablation",
        [of((first, second), None), of((second,), first, same), of((first,), second, same)],
    )
    assert choice.chain == chain()
    _, slow = row(None, reference=SLOWER)
    found = recommend(choice, slow)
    assert found.keep == repr(chain(first, second))
    assert found.brought == "each of its links earns its place"
    assert "together 1.200 of the time" in found.dropped[-1]


def test_two_jobs_leave_nothing_to_choose():
    assert choose("pair", [BASELINE, row(None)]) is None
