"""What a search tells: largest, fastest, spread, advice; as text, Markdown, JSON and a picture."""

import json
from dataclasses import replace

import pytest
from markdown_it import MarkdownIt

from tfopt import UserError
from tfopt.measure.batch_size.found import BatchSizes, Tried, rate_for
from tfopt.measure.batch_size.trial import Attempt


def trained(batch, *speeds):
    return Tried.of([Attempt(batch, "trained", None, 10.0 * batch, 5.0, each) for each in speeds])


FOUND = BatchSizes(
    job="my.train:job",
    chain="chain()",
    own_batch=32,
    replicas=1,
    accumulate=1,
    rebatched=False,
    device="CPU",
    limit_mib=900.0,
    tried=(
        trained(32, 100.0),
        trained(64, 250.0, 240.0, 260.0),
        trained(128, 200.0, 210.0, 220.0),
        Tried.of(
            [Attempt(192, "trained", None, 1.0, 1.0, 999.0), Attempt(192, "time", "too\nlate")]
        ),
        Tried.of([Attempt(256, "memory", "the process held | too much")]),
    ),
    stopped=None,
    rates=(rate_for("SGD", 0.1, tuned=32, batch=128),),
)


def test_what_failed_once_does_not_train():
    assert (FOUND.largest, FOUND.fastest) == (128, 64)
    assert [each.batch for each in FOUND.passed] == [32, 64, 128]
    assert (FOUND.tried[3].kind, FOUND.tried[3].reason) == ("time", "too\nlate")
    assert "192 does not" in FOUND.notes[0]


def test_a_difference_counts_beyond_the_spread_only():
    assert any("64, with 19% more examples a second than the largest" in n for n in FOUND.notes)
    noisy = replace(FOUND, tried=(trained(64, 250.0, 205.0, 260.0), *FOUND.tried[2:]))
    assert any("no difference is shown" in note for note in noisy.notes)
    once = replace(FOUND, tried=(trained(64, 250.0), *FOUND.tried[2:]))
    assert any("measured once" in note for note in once.notes)
    same = replace(FOUND, tried=(*FOUND.tried[:1], *FOUND.tried[3:]))
    assert "It is the fastest as well." in same.notes


def test_text_markdown_and_json_tell_the_same():
    text = str(FOUND)
    assert text.splitlines()[0] == "my.train:job, on the CPU within 900 MiB: batch sizes that train"
    assert "256  fails (memory)" in text
    assert "256 fails: the process held | too much." in text
    assert "Learning rate for 128: 0.4 by the linear rule for SGD" in text
    assert MarkdownIt("commonmark").enable("table").render(FOUND.to_markdown()).count("<tr>") == 6
    told = json.loads(FOUND.to_json())
    assert (told["largest"], told["fastest"]) == (128, 64)
    assert told["tried"][1]["least_per_s"] == 240.0
    assert told["tried"][4]["step_ms"] is None


def test_a_reason_is_told_in_a_line_and_once():
    reason = 'E: Graph execution error:\n\n  File "/lib/site-packages/a.py", line 3, in b\nmy limit'
    failed = [Tried.of([Attempt(size, "error", reason)]) for size in (192, 256)]
    told = str(replace(FOUND, tried=(*FOUND.tried[:3], *failed)))
    assert "192 and 256 fail by an error, not for want of memory: E: my limit." in told
    assert "site-packages" not in told
    assert told.count("my limit") == 1


def test_shares_are_told():
    shared = replace(FOUND, replicas=2, accumulate=4, stopped="The search ended early.")
    assert "Each of 2 replicas takes its share of a batch and a batch is trained in 4 micro-batches." in shared.notes  # fmt: skip
    assert "Pipeline(batch_size=...)" in replace(FOUND, rebatched=True).notes[-1]
    assert shared.notes[-1] == "The search ended early."


@pytest.mark.parametrize("kind", [".svg", ".png", ".pdf"])
def test_the_picture(tmp_path, kind):
    path = FOUND.plot(tmp_path / f"sizes{kind}")
    start = {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}[kind]
    assert path.read_bytes().startswith(start)


def test_a_picture_without_failures_and_with_a_limit_far_above_has_its_room(tmp_path):
    """matplotlib warns, which is an error here, where the axes collapse."""
    far = replace(FOUND, tried=FOUND.tried[:3], limit_mib=20_000.0)
    assert far.plot(tmp_path / "sizes.svg").exists()


def test_another_kind_of_picture_is_refused(tmp_path):
    with pytest.raises(UserError, match="written as a picture"):
        FOUND.plot(tmp_path / "sizes.gif")


@pytest.mark.parametrize(
    ("optimizer", "rate", "batch", "expected", "word"),
    [
        ("SGD", 0.1, 64, 0.2, "linear"),
        ("SGD", 0.1, 320, 1.0, "warm-up"),
        ("AdamW", 0.001, 128, 0.002, "sqrt"),
        ("Adam", None, 128, None, "the peak of its schedule times 2"),
        ("Lion", 0.1, 128, None, "no rule is known for Lion"),
        ("Lion", 0.1, 32, 0.1, "was chosen for this batch"),
    ],
)
def test_advice_on_the_learning_rate(optimizer, rate, batch, expected, word):
    advice = rate_for(optimizer, rate, tuned=32, batch=batch)
    assert advice.rate == (None if expected is None else pytest.approx(expected))
    assert word in advice.words
