"""Rounds of blocks: random order from a seed, resumed where they stopped, reasons kept."""

import json
from dataclasses import replace

import pytest
from bench_reports import blocks, gpu
from fake_workers import FAST, Recorder

from tfopt import Pipeline, UserError, chain
from tfopt.measure.blocks import BlockStore, Span
from tfopt.measure.rounds import Budget, RoundsPlan, invalid_by_clock, rounds
from tfopt.measure.variant import Variant
from tfopt.report.footprint import Comparison

SPAN = Span(windows=5, window_ms=20.0, warm_up_s=0.05)
BASELINE = Variant("baseline", "nowhere:job")
QUICK = Variant("+ Execution", "nowhere:job", chain(FAST))


def plan(*variants, rounds=2, **settings):
    return RoundsPlan(variants, span=SPAN, budget=Budget(rounds, rounds), **settings)


def last(made, folder, recorder, *, resume=False):
    store = BlockStore(folder, made.to_dict())
    store.open(resume=resume)
    *_, found = rounds(made, store, recorder)
    return found


@pytest.fixture
def measured(workers, tmp_path):
    """Measure variants in the test's folder; ``measured.recorder`` listened to the last ones."""

    def measure(*variants, resume=False, **settings):
        measure.recorder = Recorder()
        return last(plan(*variants, **settings), tmp_path, measure.recorder, resume=resume)

    return measure


def test_rounds_go_on_until_the_interval_is_narrow(workers, tmp_path):
    budget = Budget(at_least=2, at_most=9, half_width=0.05)
    made = RoundsPlan((BASELINE, QUICK), span=SPAN, budget=budget)
    workers.noise = 0.02
    found = last(made, tmp_path, Recorder())
    assert 2 < len(found.blocks("baseline")) < 9
    assert found.compared("baseline", "+ Execution").half_width <= 0.05


def test_the_budget_goes_on_until_every_interval_is_narrow():
    budget = Budget(at_least=3, at_most=6, half_width=0.02)
    narrow, wide = Comparison(1.0, 0.99, 1.01, 3), Comparison(2.0, 1.8, 2.2, 3)
    assert budget.wants_more(2, [narrow])
    assert not budget.wants_more(3, [narrow, narrow])
    assert budget.wants_more(3, [narrow, wide])
    assert not budget.wants_more(6, [wide])


@pytest.mark.parametrize("rounds", [(0, 3), (1, 3), (9, 8)])
def test_a_budget_that_cannot_be_kept_is_refused(rounds):
    with pytest.raises(UserError, match="no room"):
        Budget(*rounds)


def test_a_variant_that_fails_keeps_its_earlier_blocks(measured, workers):
    def answer(asked):
        again = sum(each.chain == asked.chain for each in workers.asked) > 1
        return "the disk of the data is gone" if asked.chain.parts and again else None

    workers.answer = answer
    found = measured(BASELINE, QUICK)
    assert found.left_out == {"+ Execution": "the disk of the data is gone"}
    assert measured.recorder.reasons == found.left_out
    assert [len(found.blocks(name)) for name in ("baseline", "+ Execution")] == [2, 1]
    assert found.names == ["baseline"]


def test_a_variant_on_other_data_is_left_out(measured):
    found = measured(BASELINE, QUICK, data={"+ Execution": "the data of the rehearsal"})
    assert "got other data than before" in found.left_out["+ Execution"]


def test_a_block_that_the_machine_spoiled_is_measured_again_and_not_counted(measured, tmp_path):
    """The store's own format stands in for a GPU that throttles: none is there to heat."""
    measured(BASELINE, QUICK)
    for number, times in ((1, 1), (0, 3)):
        (path,) = tmp_path.glob(f"*-00{number}-01.json")
        content = json.loads(path.read_text())
        content[0]["invalid"] = "the GPU was too hot"
        path.write_text(json.dumps(content * times))
    found = measured(BASELINE, QUICK, resume=True)
    # One more try in the second round, none in the first, which had its three.
    assert [each[:2] for each in measured.recorder.did] == [("round 2 of 2", "+ Execution")]
    assert [len(tried) for tried in found.tries["+ Execution"]] == [3, 2]
    assert found.compared("baseline", "+ Execution") is None


def test_a_larger_batch_is_compared_by_the_example(measured):
    large = Variant("+ Pipeline", "nowhere:job", chain(Pipeline(batch_size=320)))
    found = measured(BASELINE, large)
    steps = [found.blocks(name)[0].step_ms for name in ("baseline", "+ Pipeline")]
    assert steps[1] / steps[0] == pytest.approx(9, rel=0.02)
    assert found.compared("baseline", "+ Pipeline").ratio == pytest.approx(0.9, rel=0.02)


def test_the_order_is_random_and_comes_from_the_seed():
    variants = [Variant(str(number), "nowhere:job") for number in range(5)]

    def orders(seed):
        made = plan(*variants, seed=seed)
        return [tuple(made.order(number)) for number in range(6)]

    assert orders(0) == orders(0) != orders(1)
    assert len(set(orders(0))) > 3
    assert all(sorted(order) == list(range(5)) for order in orders(0))


@pytest.mark.parametrize("done", [1, 2])
def test_a_stopped_measurement_goes_on_where_it_stopped(measured, workers, tmp_path, done):
    def answer(asked):
        if len(workers.asked) > done:
            raise KeyboardInterrupt

    workers.answer = answer
    with pytest.raises(KeyboardInterrupt):
        measured(BASELINE, QUICK)
    before = {path.name: path.read_text() for path in tmp_path.glob("*-00*.json")}
    assert len(before) == done
    workers.answer = lambda asked: None
    found = measured(BASELINE, QUICK, resume=True)
    assert [len(found.blocks(name)) for name in found.names] == [2, 2]
    assert len(measured.recorder.did) == 4 - done
    for name, content in before.items():
        assert (tmp_path / name).read_text() == content


# Blocks that were measured under another clock.


def clocked(*clocks, **changed):
    """A block with so many GPUs, each with this median SM clock."""
    gpus = [replace(gpu(), uuid=f"GPU-{n}", sm_clock_mhz=mhz) for n, mhz in enumerate(clocks)]
    return blocks(10, 1, gpus=tuple(gpus), **changed)[0]


def marked(found):
    return [number for number, block in enumerate(invalid_by_clock(found)) if block.invalid]


def test_a_block_under_another_clock_is_marked_and_says_by_how_much():
    found = [clocked(mhz) for mhz in (1500.0, 1410.0, 1500.0, 1500.0)]
    judged = invalid_by_clock(found)
    assert marked(found) == [1]
    assert all(word in judged[1].invalid for word in ("GPU 0", "1410 MHz", "1500 MHz", "3%"))
    assert replace(judged[1], invalid=None) == found[1]
    assert [judged[0], *judged[2:]] == [found[0], *found[2:]]


USUAL = [(1500.0, 900.0)] * 3


@pytest.mark.parametrize(
    ("clocks", "expected"),
    [
        # Three percent is the limit, upwards and downwards.
        *(([(mhz,), *[(1500.0,)] * 4], []) for mhz in (1545.0, 1455.0)),
        *(([(mhz,), *[(1500.0,)] * 4], [0]) for mhz in (1546.0, 1454.0)),
        # One GPU of several is enough, and each is compared with itself.
        (USUAL, []),
        ([*USUAL, (1500.0, 800.0)], [3]),
        # Without clocks nothing is marked.
        ([(), ()], []),
        ([(None,), (1500.0,), (1500.0,)], []),
        ([], []),
    ],
)
def test_which_clocks_are_others(clocks, expected):
    assert marked([clocked(*each) for each in clocks]) == expected


def test_an_invalid_block_keeps_its_reason_and_sways_no_other():
    hot = clocked(700.0, invalid="throttled")
    found = invalid_by_clock([hot, hot, hot, clocked(1500.0), clocked(1500.0)])
    assert [block.invalid for block in found] == ["throttled"] * 3 + [None] * 2
