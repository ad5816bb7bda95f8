"""Which links are kept: only what the intervals and the seeds allow."""

import pytest

from tfopt import Execution, LearningRate, Pipeline, Place, Prune, Quantize, chain
from tfopt.bench.recommend import recommend_ablation, recommend_prefix
from tfopt.bench.rehearsal import Rehearsed
from tfopt.bench.variant import Variant
from tfopt.report.bench.block import Block
from tfopt.report.bench.comparison import Comparison
from tfopt.report.bench.memory import BlockMemory
from tfopt.report.bench.quality import Quality
from tfopt.report.bench.variant import VariantReport

FASTER = Comparison(0.5, 0.48, 0.52, 5)
SLOWER = Comparison(1.2, 1.1, 1.3, 5)
SAME = Comparison(1.0, 0.99, 1.01, 5)
UNCLEAR = Comparison(0.9, 0.7, 1.1, 5)
NOTHING = dict.fromkeys(BlockMemory.MAY_BE_NONE, "not asked")
BLOCK = Block(
    *(1.0, 1.0, 1.0, 1.0, (2.0, 2.1), (), 32, 1),
    BlockMemory(None, None, None, None, None, NOTHING),
    *((), None, {"timeline": "not asked"}, "toy", None),
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


BASELINE = row(None)


def test_a_faster_link_is_kept_with_what_the_whole_brought():
    found = recommend_prefix([BASELINE, row(Execution(), reference=Comparison(0.4, 0.39, 0.41, 5))])
    assert found.keep == "chain(Execution())"
    assert "0.400 of the time (0.390 to 0.410)" in found.brought
    assert found.dropped == ()


@pytest.mark.parametrize("comparison", [SLOWER, SAME, UNCLEAR])
def test_a_link_without_a_gain_is_dropped_by_its_verdict(comparison):
    found = recommend_prefix([BASELINE, row(Execution(), previous=comparison)])
    assert found.keep == "chain()"
    (reason,) = found.dropped
    assert reason.startswith("Execution: ")
    assert comparison.verdict in reason


def test_a_link_that_was_not_measured_keeps_its_reason():
    found = recommend_prefix([BASELINE, row(Place(), status="no_effect"), row(Execution())])
    assert found.keep == "chain(Execution())"
    assert found.dropped == ("Place: no such GPU",)
    # What changes nothing leaves the whole as it was measured.
    assert "0.500 of the time" in found.brought


def test_nothing_is_claimed_of_a_chain_that_was_not_measured_as_a_whole():
    found = recommend_prefix(
        [BASELINE, row(Pipeline(), previous=SLOWER, quality=points(0)), row(Execution())]
    )
    assert found.keep == "chain(Execution())"
    assert "measure this chain as a whole" in found.brought


def test_other_weights_need_the_metric():
    assert "nobody asked" in recommend_prefix([BASELINE, row(Pipeline())]).dropped[0]
    lost = recommend_prefix([BASELINE, row(Pipeline(), quality=points(-0.6))])
    assert "loses 0.60 points" in lost.dropped[0]
    kept = recommend_prefix([BASELINE, row(Pipeline(), quality=points(-0.4))])
    assert kept.keep == "chain(Pipeline())"


def test_a_link_is_not_blamed_for_what_was_lost_before_it():
    found = recommend_prefix(
        [
            BASELINE,
            row(Pipeline(), quality=points(-2.0)),
            row(LearningRate(), quality=points(-0.9), previous=FASTER),
        ]
    )
    assert found.keep == "chain(LearningRate())"
    assert [reason.split(":")[0] for reason in found.dropped] == ["Pipeline"]


def test_a_link_for_size_is_kept_unless_it_loses_accuracy():
    kept = recommend_prefix([BASELINE, row(Quantize(), previous=SAME, quality=points(0.1))])
    assert kept.keep == "chain(Quantize())"
    assert recommend_prefix([BASELINE, row(Prune(0.5), quality=points(-1))]).keep == "chain()"


def test_an_ablation_keeps_what_slows_the_rest_when_it_is_left_out():
    found = recommend_ablation(
        [
            BASELINE,
            row(Execution(), reference=SLOWER),
            row(Pipeline(), reference=SAME),
            row(Prune(0.5), reference=FASTER),
            row(Place(), status="failed"),
        ]
    )
    assert found.keep == repr(chain(Execution(), Prune(0.5)))
    assert [reason.split(":")[0] for reason in found.dropped] == ["Pipeline", "Place"]
