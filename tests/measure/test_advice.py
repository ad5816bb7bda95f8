"""Which transforms are kept and why: by the rows of a walk, and by the intervals of a bench."""

import dataclasses

import pytest
from bench_reports import NOT_ASKED, blocks, training_figures, variant

from tfopt import Execution, KeepHostMemory, LearningRate, Pipeline, Place, Prune, Quantize, chain
from tfopt.measure.advice import (
    Step,
    against_the_whole,
    choose,
    describe_gain,
    in_words,
    judge,
    leaves_training,
    pays_only_together,
    recommend,
    undisturbed_s,
)
from tfopt.measure.rehearsal import Rehearsed
from tfopt.measure.variant import Variant
from tfopt.report.bench.bench_report import Quality
from tfopt.report.footprint import Comparison

SPEED, EXACT, BATCH = Execution(steps_per_execution=2), KeepHostMemory(), Pipeline(batch_size=64)
RATE, SIZE = LearningRate(0.1), Prune(0.8)
FILE = {"artefact": "m.tflite", "artefact_kib": 60.0, "artefact_accuracy": 0.96}
UNKNOWN = {"accuracy": None}


def figures(*given, gzip_kib=200.0, **changed):
    return training_figures(*given, model_gzip_kib=gzip_kib, **changed)


BASE = figures()


def verdicts(*steps):
    """Judge transforms whose rows follow each other, from the baseline on."""
    before, made = BASE, []
    for transform, after in steps:
        made.append(Step(transform, before, figures(**after)))
        before = made[-1].after
    return judge(made, 0.0)


@pytest.mark.parametrize(
    ("transform", "before", "after", "noise", "keep", "words"),
    [
        (SPEED, {}, {"train_s": 5.0}, 0.02, True, "x0.50"),
        (SPEED, {}, {"train_s": 9.9}, 0.0, False, "x0.99"),
        (SPEED, {}, {"train_s": 8.0}, 0.25, True, "within the noise of 25%"),
        (SPEED, {}, {"train_s": 8.0}, 0.15, True, "x0.80"),
        (SPEED, {}, {"train_s": 5.0, "accuracy": 0.95}, 0.0, False, "costs 1.0 points"),
        (SPEED, {}, {"train_s": 5.0, "accuracy": 0.9571}, 0.0, True, "x0.50"),
        (SPEED, {}, {"train_s": 5.0, "accuracy": None}, 0.0, True, "x0.50"),
        # Without an accuracy only what is exact is kept.
        (SIZE, UNKNOWN, {**UNKNOWN, "gzip_kib": 50.0}, 0.0, False, "accuracy metric"),
        (BATCH, UNKNOWN, {**UNKNOWN, "train_s": 5.0}, 0.0, False, "accuracy metric"),
        (EXACT, UNKNOWN, {**UNKNOWN, "train_s": 5.0}, 0.0, True, ""),
        (SIZE, {}, {"gzip_kib": 60.0, "train_s": 11}, 0.0, True, "200 KiB to 60 KiB"),
        (SIZE, {}, {"gzip_kib": 195.0}, 0.0, False, "hardly smaller"),
        (SIZE, {}, {"gzip_kib": None}, 0.0, False, "could not be measured"),
        (SIZE, {}, {"gzip_kib": 60.0, "accuracy": 0.9}, 0.0, False, "costs 6.0 points"),
        (Quantize("int8"), {}, {**FILE, "artefact_accuracy": 0.959}, 0.0, True, ""),
        (
            Quantize("int8"),
            {},
            {**FILE, "artefact_accuracy": 0.93},
            0.0,
            False,
            "m.tflite costs 3.0 points",
        ),
        # Judged by the model, not by the file that was made before.
        (SIZE, FILE, {**FILE, "gzip_kib": 50.0}, 0.0, True, "gzipped model: 200 KiB to 50 KiB"),
        (RATE, {}, {"accuracy": 0.97}, 0.0, True, "+1.00"),
        (RATE, {}, {"accuracy": 0.961}, 0.0, False, "within the tolerance"),
        (RATE, {}, {"accuracy": 0.95}, 0.0, False, "costs 1.0"),
    ],
)
def test_the_verdict_on_one_transform(transform, before, after, noise, keep, words):
    [verdict] = judge([Step(transform, figures(**before), figures(**after))], noise)
    assert (verdict.transform, verdict.keep) == (transform, keep)
    assert words in verdict.reason
    assert verdict.in_doubt == (noise == 0.25)


@pytest.mark.parametrize(
    ("steps", "kept"),
    [
        # A loss for which a transform was dropped is not held against the next one.
        ([(RATE, {"accuracy": 0.94}), (SPEED, {"train_s": 5, "accuracy": 0.94})], [False, True]),
        # Small losses add up along what is kept.
        (
            [
                (BATCH, {"train_s": 8, "accuracy": 0.958}),
                (SIZE, {"train_s": 8, "accuracy": 0.956, "gzip_kib": 50}),
                (SPEED, {"train_s": 4, "accuracy": 0.956, "gzip_kib": 50}),
            ],
            [True, False, True],
        ),
        # A gain makes up for a later loss.
        ([(RATE, {"accuracy": 0.97}), (SIZE, {"accuracy": 0.962, "gzip_kib": 50})], [True, True]),
    ],
)
def test_the_verdicts_along_a_chain(steps, kept):
    found = verdicts(*steps)
    assert [verdict.keep for verdict in found] == kept
    if len(steps) == 3:
        assert "0.4 with what is kept before it" in found[1].reason


def test_a_disturbed_step_does_not_count_against_a_transform():
    disturbed = dataclasses.replace(BASE, train_s=20.0, windows_ms=(1.0, 1.0, 1.0, 1.0, 10.0))
    assert undisturbed_s(disturbed) == pytest.approx(1 + 19 / 2.8)
    assert undisturbed_s(BASE) == BASE.train_s
    # Nine quick steps and a slow one: the median step alone would recommend it.
    stalling = dataclasses.replace(BASE, train_s=13.0, windows_ms=(0.9,) * 9 + (6.0,))
    assert undisturbed_s(stalling) < BASE.train_s
    assert "x1.30" in against_the_whole((Pipeline(),), BASE, stalling)


@pytest.mark.parametrize(
    ("kept", "whole", "words"),
    [
        ((EXACT,), {"train_s": 5}, None),
        ((EXACT,), {"train_s": 12}, "x1.20"),
        ((EXACT, SIZE), {"train_s": 12}, None),
        ((SIZE,), {"accuracy": 0.955}, "0.5 points"),
        ((EXACT,), {"train_s": 10.2}, "x1.02"),
        ((RATE,), {"train_s": 12}, "bring nothing"),
        ((RATE,), {"train_s": 12, "accuracy": 0.97}, None),
    ],
)
def test_the_kept_chain_must_hold_as_a_whole(kept, whole, words):
    against = against_the_whole(kept, BASE, figures(**whole))
    assert (against is None) == (words is None)
    assert words is None or words in against


def test_transforms_that_pay_only_together_are_found():
    found = verdicts((EXACT, {"train_s": 10.1}), (BATCH, {"train_s": 6}))
    assert [verdict.keep for verdict in found] == [False, True]
    whole = figures(train_s=6)
    assert pays_only_together(found, whole=whole, kept=figures(train_s=12))
    assert not pays_only_together(found, whole=whole, kept=figures(train_s=6.1))
    lossy = verdicts((SIZE, {"accuracy": 0.9, "gzip_kib": 50}))
    assert not pays_only_together(lossy, whole=whole, kept=figures(train_s=12))


@pytest.mark.parametrize(
    ("kept", "after", "words", "no"),
    [
        (
            [EXACT, Quantize()],
            {**FILE, "train_s": 4.0, "accuracy": 0.97, "gzip_kib": 50},
            ["0.40", "10.0 s to 4.0 s", "96.00% to 97.00%", "200 to 50 KiB", "60 KiB at 96.00%"],
            "noise",
        ),
        (
            [EXACT],
            {"train_s": 9.0},
            [
                "0.90 of the baseline's time at equal epochs (10.0 s to 9.0 s)",
                "within the noise of 17%",
            ],
            "KiB at",
        ),
        # What acts after the training brought no time and cost none.
        ([Quantize()], {**FILE, "train_s": 35.7}, ["m.tflite of 60 KiB"], "time"),
    ],
)
def test_the_gain_in_words(kept, after, words, no):
    text = describe_gain(kept, BASE, figures(**after), noise=0.17)
    assert [part for part in words if part not in text] == []
    assert no not in text


def test_only_what_acts_after_the_training_leaves_it_as_it_is():
    assert leaves_training([Quantize()])
    assert not leaves_training([SIZE, Quantize()])


# By intervals and seeds.

FASTER = Comparison(0.5, 0.48, 0.52, 5)
SLOWER = Comparison(1.2, 1.1, 1.3, 5)
SAME = Comparison(1.0, 0.99, 1.01, 5)
UNCLEAR = Comparison(0.9, 0.7, 1.1, 5)
BLOCKS = blocks(2.0, 1)


def points(mean):
    return Quality("test accuracy", (0, 1), (0.9, 0.9), (0.9, 0.9), mean, mean - 1, mean + 1, 0.5)


def row(transform, of=(), *, previous=FASTER, reference=None, quality=None, status="measured"):
    """A row that adds a transform, or in an ablation leaves it out of the chain ``of``."""
    name = "baseline" if transform is None else f"+ {type(transform).__name__}"
    measured = status == "measured"
    report = variant(
        name,
        BLOCKS if measured else (),
        status=status,
        reason=None if measured else "no such GPU",
        transform=None if transform is None else repr(transform),
        against_reference=reference or (previous if measured else None),
        against_previous=previous if measured else None,
        quality=quality,
    )
    named = Variant(name, "toy:job", chain(*of), changed=transform)
    return Rehearsed(named, status, report.reason, (), "toy", 1.0), report


def whole_row(**changed):
    return row(None, **changed)[1]


def recommended(kind, rows, whole=None):
    return recommend(choose(kind, rows), whole)


ALL = (Execution(), Pipeline(), Prune(0.5))
LOSES_SPEED = (row(Pipeline(), previous=SLOWER, quality=points(0)), row(Execution()))
TOGETHER = (
    row(ALL[1], (ALL[1],), previous=UNCLEAR, quality=points(0.1)),
    row(ALL[0], ALL[1::-1], previous=UNCLEAR, reference=FASTER, quality=points(0.1)),
)


@pytest.mark.parametrize(
    ("rows", "whole", "keep", "dropped", "words"),
    [
        (
            [row(Execution(), reference=Comparison(0.4, 0.39, 0.41, 5))],
            None,
            [Execution()],
            [],
            "2.50\N{MULTIPLICATION SIGN} (2.44\N{EN DASH}2.56) as fast",
        ),
        *(
            ([row(Execution(), previous=seen)], None, [], ["Execution"], seen.verdict)
            for seen in (SLOWER, SAME, UNCLEAR)
        ),
        # What changes nothing leaves the whole as it was measured.
        (
            [row(Place(), status="no_effect"), row(Execution())],
            None,
            [Execution()],
            ["Place"],
            "2.00\N{MULTIPLICATION SIGN}",
        ),
        (LOSES_SPEED, None, [Execution()], ["Pipeline"], "it was not measured as a whole"),
        (
            LOSES_SPEED,
            whole_row(reference=Comparison(0.7, 0.69, 0.71, 5)),
            [Execution()],
            ["Pipeline"],
            "1.43\N{MULTIPLICATION SIGN}",
        ),
        (LOSES_SPEED, whole_row(reference=UNCLEAR), [Execution()], ["Pipeline"], "inconclusive"),
        *(
            (LOSES_SPEED, whole_row(**seen), [], ["Pipeline", "Execution"], words)
            for seen, words in (
                ({"reference": SLOWER}, "Execution: together 0.833\N{MULTIPLICATION SIGN}"),
                ({"reference": SAME}, "no difference"),
                ({"quality": points(-2.0)}, "together loses 2.00 points"),
                ({"status": "failed"}, "Execution: together failed: no such GPU"),
            )
        ),
        # Other weights need the metric.
        ([row(Pipeline())], None, [], ["Pipeline"], NOT_ASKED),
        ([row(Pipeline(), quality=points(-0.6))], None, [], ["Pipeline"], "loses 0.60 points"),
        ([row(Pipeline(), quality=points(-0.4))], None, [Pipeline()], [], ""),
        # A link is not blamed for what was lost before it, whatever stands between.
        (
            [row(Pipeline(), quality=points(-2.0)), row(LearningRate(), quality=points(-0.9))],
            None,
            [LearningRate()],
            ["Pipeline"],
            "",
        ),
        (
            [
                row(Prune(0.9), quality=points(-2.0)),
                row(Place(), status="no_effect"),
                row(Pipeline(), quality=points(-2.01)),
            ],
            None,
            [Pipeline()],
            ["Prune", "Place"],
            "",
        ),
        # Small losses add up, and only the last drop is blamed.
        (
            [
                row(Pipeline(), quality=points(-0.3)),
                row(LearningRate(), quality=points(-0.45)),
                row(Prune(0.5), quality=points(-0.8)),
            ],
            None,
            [Pipeline(), LearningRate()],
            ["Prune"],
            "Prune: it loses 0.35 points of test accuracy over 2 seeds",
        ),
        (TOGETHER, None, [Pipeline(), Execution()], [], f"an example is {in_words(FASTER)}"),
        (
            [row(Pipeline(), quality=points(-0.1))],
            None,
            [Pipeline()],
            [],
            "-0.10 points of test accuracy (not certain over 2 seeds)",
        ),
        (
            [row(Pipeline(), quality=points(1.5))],
            None,
            [Pipeline()],
            [],
            "+1.50 points of test accuracy;",
        ),
        # For size, whatever the time, unless accuracy is lost.
        ([row(Quantize(), previous=SAME, quality=points(0.1))], None, [Quantize()], [], ""),
        ([row(Prune(0.5), quality=points(-1))], None, [], ["Prune"], ""),
    ],
)
def test_what_a_walk_recommends(rows, whole, keep, dropped, words):
    found = recommended("prefixes", [row(None), *rows], whole)
    assert found.keep == repr(chain(*keep))
    assert [reason.split(":")[0] for reason in found.dropped] == dropped
    assert words in "; ".join([found.brought, *found.dropped, ""])
    if whole is not None and not keep:
        assert found.brought == "nothing: the job as it is"


def test_what_is_unclear_yet_is_no_advice_against_it():
    undecided = recommended("prefixes", [row(None), row(Execution(), previous=UNCLEAR)])
    assert undecided.undecided == ("Execution",)
    assert recommended("prefixes", [row(None), row(Execution(), previous=SAME)]).undecided == ()
    assert recommended("prefixes", [row(None), *TOGETHER]).undecided == ()
    without = row(ALL[0], ALL[1:], reference=UNCLEAR)
    choice = choose("ablation", [row(None, ALL), without])
    assert (choice.chain, choice.undecided) == (chain(Execution()), ("Execution",))


def test_an_ablation_keeps_what_slows_the_rest_when_it_is_left_out():
    found = recommended(
        "ablation",
        [
            row(None, ALL),
            row(ALL[0], ALL[1:], reference=SLOWER),
            row(ALL[1], (ALL[0], ALL[2]), reference=SAME),
            row(ALL[2], ALL[:2], reference=FASTER),
            row(Place(), status="failed"),
        ],
    )
    # What is for size is not judged by time. Exactly this was measured: by leaving Pipeline out.
    assert found.keep == repr(chain(Execution(), Prune(0.5)))
    assert [reason.split(":")[0] for reason in found.dropped] == ["Pipeline", "Place"]
    assert found.brought == f"an example is {in_words(SAME)}"


def test_an_ablation_never_keeps_what_ruins_the_model():
    """The whole chain is what everything is compared with, and may be the worst of all."""
    ruined = row(None, ALL[1:], quality=points(-26.0))
    links = (
        row(ALL[1], ALL[2:], reference=SLOWER, quality=points(-26.0)),
        row(ALL[2], (ALL[1],), reference=SAME, quality=points(-0.1)),
    )
    choice = choose("ablation", (ruined, *links))
    assert choice.chain == chain(ALL[1])
    assert choice.dropped == ("Prune: without it the rest has 25.90 points of test accuracy more",)
    assert choice.measured is links[1][1]
    assert recommend(choice, None).keep == repr(chain(ALL[1]))
    # Where no link is to blame alone, the chain as it was is no way out.
    both = [ruined, *(row(part, reference=SLOWER, quality=points(-26)) for part in ALL)]
    assert recommended("ablation", both).keep == "chain()"


def test_what_can_only_be_left_out_alone_stays():
    first, second = ALL[:2]
    rows = [
        row(None, (first, second)),
        row(first, (second,), reference=SAME),
        row(second, (first,), reference=SAME),
    ]
    assert choose("ablation", rows).chain == chain()
    found = recommended("ablation", rows, whole_row(reference=SLOWER))
    assert found.keep == repr(chain(first, second))
    assert found.brought == "each of its links earns its place"
    assert "together 0.833\N{MULTIPLICATION SIGN}" in found.dropped[-1]


def test_two_jobs_leave_nothing_to_choose():
    assert choose("pair", [row(None), row(None)]) is None
