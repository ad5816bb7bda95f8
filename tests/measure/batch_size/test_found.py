"""What a search found, as text and JSON; why sizes failed, a line a reason."""

import json
from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf

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


def test_text_and_json_say_the_same():
    text = str(FOUND)
    assert text.splitlines()[0] == "my.train:job, on the CPU within 900 MiB: batch sizes that train"
    assert "256  fails (memory)" in text
    assert "256 failed: the process held | too much." in text
    assert "Learning rate for 128: 0.4 by the linear rule for SGD" in text
    content = json.loads(FOUND.to_json())
    assert (content["largest"], content["fastest"]) == (128, 64)
    assert content["tried"][1]["least_per_s"] == 240.0
    assert content["tried"][4]["step_ms"] is None


def test_batches_that_something_must_make_and_an_early_end_are_told():
    assert "Pipeline(batch_size=...)" in replace(FOUND, rebatched=True).notes[-1]
    assert replace(FOUND, stopped="It ended early.").notes[-1] == "It ended early."


@pytest.mark.parametrize(
    ("optimizer", "rate", "batch", "expected", "word"),
    [
        ("SGD", 0.1, 64, 0.2, "linear"),
        ("SGD", 0.1, 320, 1.0, "warm-up"),
        ("AdamW", 0.001, 128, 0.002, "sqrt"),
        ("Adam", None, 128, None, "the peak of its schedule times 2"),
        ("Ftrl", 0.1, 128, None, "no rule is known for Ftrl"),
        ("Ftrl", 0.1, 32, 0.1, "was chosen for this batch"),
    ],
)
def test_advice_on_the_learning_rate(optimizer, rate, batch, expected, word):
    advice = rate_for(optimizer, rate, tuned=32, batch=batch)
    assert advice.rate == (None if expected is None else pytest.approx(expected))
    assert word in advice.words


def limited(labels, outputs):
    tf.debugging.assert_less(tf.shape(outputs)[0], 100, message="my own limit")
    return tf.reduce_mean(outputs)


def test_an_error_inside_a_step_is_one_line():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", limited)
    x = np.zeros((104, 2), "float32")
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        model.fit(x, x[:, :1], batch_size=104, verbose=0)
    reason = _message(raised.value)
    # What is shortened here: TensorFlow gives the whole way to the operation.
    assert reason.count('File "') > 10
    line = in_one_line(reason)
    assert line.startswith("InvalidArgumentError: assertion failed: [my own limit]")
    assert "[104]" in line
    assert not [part for part in ('File "', "\n", "{{node", "[Op:") if part in line]


def test_a_way_to_fail_is_one_sentence():
    tried = [
        trained(8, 1.0),
        failed(16, "time", "not done within 75 s"),
        failed(24, "time", "not done within 75 s"),
        failed(32, "crash", "the process ended without a result: killed by SIGABRT"),
        failed(56, "error", None),
    ]
    assert failures(tried) == [
        "16, 24 failed; of 16: not done within 75 s.",
        "32 failed by a crash that says nothing of memory: the process ended without a result: "
        "killed by SIGABRT.",
        "56 failed by an error, not for want of memory: no reason was given.",
    ]


def test_a_long_reason_is_cut():
    assert len(in_one_line("ValueError: " + "x " * 1000)) == 400
    assert in_one_line("What.\n  expected: a\n  received: b") == "What. expected: a received: b"
