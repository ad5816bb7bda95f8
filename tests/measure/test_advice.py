"""Which transforms are kept and why: by intervals over steps and whole trainings, and by seeds."""

from dataclasses import replace

import pytest
from bench_reports import NOT_ASKED, processes, training, variant

from tfopt import Execution, LearningRate, Pipeline, Place, Prune, Quantize, chain
from tfopt.measure.advice import choose, recommend
from tfopt.measure.targets import Target
from tfopt.report.bench_report import Quality
from tfopt.report.statistics import Comparison

FASTER = Comparison(0.5, 0.48, 0.52, 5)
SLOWER = Comparison(1.2, 1.1, 1.3, 5)
SAME = Comparison(1.0, 0.99, 1.01, 5)
UNCLEAR = Comparison(0.9, 0.7, 1.1, 5)
PROCESSES = processes(2.0, 1)


def points(mean):
    return Quality("test accuracy", (0, 1), (0.9, 0.9), (0.9, 0.9), mean, mean - 1, mean + 1, 0.5)


def row(
    transform, of=(), *, previous=FASTER, reference=None, quality=None, status="measured", **more
):
    """A row that adds a transform, or in an ablation leaves it out of the chain ``of``."""
    name = "baseline" if transform is None else f"+ {type(transform).__name__}"
    measured = status == "measured"
    report = variant(
        name,
        PROCESSES if measured else (),
        status=status,
        reason=None if measured else "no such GPU",
        transform=None if transform is None else repr(transform),
        against_reference=reference or (previous if measured else None),
        against_previous=previous if measured else None,
        quality=quality,
        **more,
    )
    named = Target(name, "toy:job", chain(*of), changed=(transform,) if transform else ())
    return named, report


def recommended(kind, rows, whole=None):
    return recommend(choose(kind, [*walked(rows)] if kind == "prefixes" else rows), whole)


def walked(rows):
    """The rows of a walk: each has the links before it in its chain."""
    links = []
    for named, report in rows:
        links += named.changed if report.status == "measured" else ()
        yield replace(named, chain=chain(*links)), report


ALL = (Execution(), Pipeline(), Prune(0.5))
LOSES_SPEED = (row(Pipeline(), previous=SLOWER, quality=points(0)), row(Execution()))
TOGETHER = (
    row(ALL[1], (ALL[1],), previous=UNCLEAR, quality=points(0.1)),
    row(ALL[0], ALL[1::-1], previous=UNCLEAR, reference=FASTER, quality=points(0.1)),
)
LITTLE_BY_LITTLE = (
    row(Pipeline(), quality=points(-0.3)),
    row(LearningRate(), quality=points(-0.45)),
    row(Prune(0.5), quality=points(-0.8)),
)


@pytest.mark.parametrize(
    ("rows", "keep", "dropped", "words"),
    [
        ([row(Execution())], ALL[:1], "", ""),
        ([row(Execution(), previous=SLOWER)], (), "Execution", SLOWER.verdict),
        ([row(Execution(), previous=SAME)], (), "Execution", SAME.verdict),
        ([row(Execution(), previous=UNCLEAR)], (), "Execution", UNCLEAR.verdict),
        # What changes nothing leaves the whole as it was measured.
        ([row(Place(), status="no_effect"), row(Execution())], ALL[:1], "Place", "no such GPU"),
        (LOSES_SPEED, ALL[:1], "Pipeline", SLOWER.verdict),
        # Other weights need the metric.
        ([row(Pipeline())], (), "Pipeline", NOT_ASKED),
        ([row(Pipeline(), quality=points(-0.6))], (), "Pipeline", "loses 0.60 points"),
        ([row(Pipeline(), quality=points(-0.4))], ALL[1:2], "", ""),
        # A link is not blamed for what was lost before it, whatever stands between.
        (
            [row(Pipeline(), quality=points(-2.0)), row(LearningRate(), quality=points(-0.9))],
            [LearningRate()],
            "Pipeline",
            "",
        ),
        # Small losses add up, and only the last drop is blamed.
        (
            LITTLE_BY_LITTLE,
            [Pipeline(), LearningRate()],
            "Prune",
            "Prune: it loses 0.35 points of test accuracy over 2 seeds",
        ),
        (TOGETHER, ALL[1::-1], "", ""),
        # For size, whatever the time, unless accuracy is lost.
        ([row(Quantize(), previous=SAME, quality=points(0.1))], [Quantize()], "", ""),
    ],
)
def test_what_a_walk_recommends(rows, keep, dropped, words):
    found = recommended("prefixes", [row(None), *rows])
    assert found.keep == repr(chain(*keep))
    assert " ".join(reason.split(":")[0] for reason in found.dropped) == dropped
    assert words in "; ".join([*found.dropped, ""])


@pytest.mark.parametrize(
    ("measured", "words"),
    [
        ({"reference": FASTER}, ""),
        ({"reference": SLOWER}, "Execution: together 1.2 times slower"),
        ({"quality": points(-2.0)}, "together 2.00 points of test accuracy are lost"),
        ({"status": "failed"}, "Execution: together failed: no such GPU"),
    ],
)
def test_what_is_kept_must_hold_when_it_is_measured_as_a_whole(measured, words):
    found = recommended("prefixes", [row(None), *LOSES_SPEED], row(None, **measured)[1])
    assert words in "; ".join(found.dropped)
    assert found.keep == repr(chain(*ALL[: measured == {"reference": FASTER}]))


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


FILE = {"artefact": "m.tflite", "artefact_kib": 60.0, "artefact_accuracy": 0.96}


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"model_gzip_kib": 100.0}, None),
        ({"model_gzip_kib": 190.0}, "gzipped model: 200 KiB to 190 KiB: hardly smaller"),
        (FILE, None),
        ({**FILE, "artefact_kib": 240.0}, "file: 250 KiB to 240 KiB: hardly smaller"),
    ],
)
def test_a_link_for_size_is_kept_by_what_it_saves(figures, words):
    smaller = (training(**figures),)
    rows = [
        row(None, trainings=(training(),)),
        row(Prune(0.5), previous=SLOWER, quality=points(0), trainings=smaller),
    ]
    choice = choose("prefixes", [*walked(rows)])
    assert choice.chain == (chain() if words else chain(Prune(0.5)))
    assert choice.dropped == ((f"Prune: {words}",) if words else ())
    # Whatever the time of the whole.
    assert (recommend(choice, None).keep == repr(chain(Prune(0.5)))) == (words is None)
