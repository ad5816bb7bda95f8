"""What a search found, as text, Markdown, JSON and a picture; why sizes failed, a line a reason."""

import inspect
import json
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from markdown_it import MarkdownIt

from tfopt import UserError
from tfopt.measure.batch_size.found import BatchSizes, Tried, failures, in_one_line, rate_for
from tfopt.measure.batch_size.trial import Attempt
from tfopt.measure.worker import _message


def trained(batch, *speeds):
    return Tried.of([Attempt(batch, "trained", None, 10.0 * batch, 5.0, each) for each in speeds])


def failed(batch, kind, reason):
    return Tried.of([Attempt(batch, kind, reason)])


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
        failed(256, "memory", "the process held | too much"),
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


def test_text_markdown_and_json_say_the_same():
    text = str(FOUND)
    assert text.splitlines()[0] == "my.train:job, on the CPU within 900 MiB: batch sizes that train"
    assert "256  fails (memory)" in text
    assert "256 fails: the process held | too much." in text
    assert "Learning rate for 128: 0.4 by the linear rule for SGD" in text
    assert MarkdownIt("commonmark").enable("table").render(FOUND.to_markdown()).count("<tr>") == 6
    content = json.loads(FOUND.to_json())
    assert (content["largest"], content["fastest"]) == (128, 64)
    assert content["tried"][1]["least_per_s"] == 240.0
    assert content["tried"][4]["step_ms"] is None


def test_shares_of_a_batch_are_explained():
    shared = replace(FOUND, replicas=2, accumulate=4, stopped="The search ended early.")
    assert "Each of 2 replicas takes its share of a batch and a batch is trained in 4 micro-batches." in shared.notes  # fmt: skip
    assert "Pipeline(batch_size=...)" in replace(FOUND, rebatched=True).notes[-1]
    assert shared.notes[-1] == "The search ended early."


@pytest.mark.parametrize(
    ("kind", "start"), [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".pdf", b"%PDF")]
)
def test_the_picture(tmp_path, kind, start):
    assert FOUND.plot(tmp_path / f"sizes{kind}").read_bytes().startswith(start)
    # Without failures and with a limit far above: matplotlib warns, an error here, without room.
    far = replace(FOUND, tried=FOUND.tried[:3], limit_mib=20_000.0)
    assert far.plot(tmp_path / f"far{kind}").exists()
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


def limited(labels, outputs):
    tf.debugging.assert_less(tf.shape(outputs)[0], 100, message="my own limit")
    return tf.reduce_mean(outputs)


def error_of_a_fit(batch):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", limited)
    x = np.zeros((batch, 2), "float32")
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        model.fit(x, x[:, :1], batch_size=batch, verbose=0)
    return _message(raised.value)


def test_an_error_inside_a_step_is_one_line_with_the_place_in_the_job():
    reasons = {batch: error_of_a_fit(batch) for batch in (104, 112)}
    # What is shortened here: TensorFlow gives the whole way to the operation.
    assert reasons[104].count('File "') > 10
    line = in_one_line(reasons[104])
    assert line.startswith("InvalidArgumentError: assertion failed: [my own limit]")
    assert "[104]" in line
    place = inspect.getsourcelines(limited)[1] + 1
    assert line.endswith(f"(test_found.py, line {place}, in limited)")
    assert not [part for part in ('File "', "\n", "{{node", "[Op:") if part in line]
    # They differ by their numbers alone.
    (sentence,) = failures([failed(batch, "error", each) for batch, each in reasons.items()])
    assert sentence.startswith(
        "104 and 112 fail by an error, not for want of memory; of 104: InvalidArgumentError:"
    )


def test_equal_reasons_are_one_sentence():
    memory = "the process held 1,500 MiB, more than the 1,400 MiB it may"
    tried = [
        trained(8, 1.0),
        failed(16, "time", "not done within 75 s"),
        failed(24, "time", "not done within 75 s"),
        failed(32, "crash", "the process ended without a result: killed by SIGABRT"),
        failed(40, "memory", memory),
        failed(48, "memory", memory.replace("1,500", "1,812")),
        failed(56, "error", None),
    ]
    assert failures(tried) == [
        "16 and 24 fail: not done within 75 s.",
        "32 fails by a crash that says nothing of memory: the process ended without a result: "
        "killed by SIGABRT.",
        f"40 and 48 fail; of 40: {memory}.",
        "56 fails by an error, not for want of memory: no reason was given.",
    ]


def test_a_long_reason_is_cut():
    assert len(in_one_line("ValueError: " + "x " * 1000)) == 400
    assert in_one_line("What.\n  expected: a\n  received: b") == "What. expected: a received: b"
