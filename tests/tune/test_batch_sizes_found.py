"""What a search found, as text and JSON; why sizes failed, a line each."""

import json
from dataclasses import replace

from sizes_jobs import facts

from tfopt.report.statistics import Comparison
from tfopt.tune.batch_size import BatchSizes, Tried, rate_for

FOUND = BatchSizes(
    job="my.train:job",
    chain="chain()",
    facts=facts(optimizer="SGD", rate=0.1),
    limit_mib=900.0,
    tried=(
        Tried(32, None, 300.0, 100.0),
        Tried(64, None, 400.0, 250.0, 2),
        Tried(128, None, 500.0, 600.0, 2),
        Tried(192, "too late"),
        Tried(256, "the process held too much."),
    ),
    comparison=Comparison(0.83, 0.8, 0.87, 2),
)


def test_a_difference_counts_where_its_interval_allows():
    def speed(**changes):
        return replace(FOUND, **changes).notes[3]

    assert speed() == (
        "The fastest is 64, with 256 examples/s: 1.2 times as fast (1.1 to 1.2) as the largest."
    )
    assert speed(comparison=Comparison(0.9, 0.8, 1.01, 2)).endswith(
        "no difference from the largest is certain."
    )
    once = replace(
        FOUND, comparison=None, tried=tuple(replace(t, processes=0) for t in FOUND.tried)
    )
    assert once.fastest == 32
    assert "measured once" in once.notes[3]
    same = replace(FOUND, tried=FOUND.tried[1:2], facts=facts(rebatch=True), stopped="Too late.")
    assert "It is the fastest as well." in same.notes
    assert any("Pipeline(batch_size=...)" in note for note in same.notes)
    assert same.notes[-1] == "Too late."


def test_text_and_json_say_the_same():
    text = str(FOUND)
    assert text.splitlines()[0] == "my.train:job, on the CPU within 900 MiB: batch sizes that train"
    cells = [line.split() for line in text.splitlines()]
    assert ["128", "trains", "500", "600.00", "213.3", "3"] in cells
    assert "256  fails" in text
    assert "The largest batch tried that trains is 128; 192 does not." in text
    assert "192 failed: too late.\n256 failed: the process held too much." in text
    assert "Learning rate for 128: 0.4 by the linear rule for SGD" in text
    content = json.loads(FOUND.to_json())
    assert (content["largest"], content["fastest"]) == (128, 64)
    assert content["notes"] == list(FOUND.notes)
    assert content["tried"][1]["examples_per_s"] == 256
    assert content["tried"][4]["examples_per_s"] is None


def test_advice_on_the_learning_rate():
    for optimizer, rate, words in (
        ("SGD", 0.1, "0.4 by the linear rule"),
        ("AdamW", 0.001, "0.002 by the sqrt rule"),
        ("Adam", None, "the peak of its schedule times 2"),
        ("Ftrl", 0.1, "no rule is known for Ftrl"),
    ):
        assert rate_for(optimizer, rate, tuned=32, batch=128).startswith(words)
