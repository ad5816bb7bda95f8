"""Why sizes failed, as a search tells it: a line for each reason, whatever TensorFlow wrote."""

import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt.measure.batch_size.found import Tried, failures, in_one_line
from tfopt.measure.batch_size.trial import Attempt
from tfopt.measure.worker import _told


def limited(labels, outputs):
    tf.debugging.assert_less(tf.shape(outputs)[0], 100, message="my own limit")
    return tf.reduce_mean(outputs)


def error_of_a_fit(batch):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", limited)
    x = np.zeros((batch, 2), "float32")
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        model.fit(x, x[:, :1], batch_size=batch, verbose=0)
    return _told(raised.value)


def failed(batch, kind, reason):
    return Tried.of([Attempt(batch, kind, reason)])


def test_an_error_inside_a_step_is_told_in_a_line_with_the_place_in_the_job():
    reasons = {batch: error_of_a_fit(batch) for batch in (104, 112)}
    # What is mended here: what TensorFlow tells is the whole way to the operation.
    assert reasons[104].count('File "') > 10
    line = in_one_line(reasons[104])
    assert line.startswith("InvalidArgumentError: assertion failed: [my own limit]")
    assert "[104]" in line
    place = inspect.getsourcelines(limited)[1] + 1
    assert line.endswith(f"(test_reasons.py, line {place}, in limited)")
    assert not [part for part in ('File "', "\n", "{{node", "[Op:") if part in line]
    # They differ by their numbers alone.
    (told,) = failures([failed(batch, "error", each) for batch, each in reasons.items()])
    assert told.startswith(
        "104 and 112 fail by an error, not for want of memory; of 104: InvalidArgumentError:"
    )


def test_equal_reasons_are_told_once_and_others_by_themselves():
    memory = "the process held 1,500 MiB, more than the 1,400 MiB it may"
    told = failures(
        [
            Tried.of([Attempt(8, "trained", None, 1.0, 1.0, 1.0)]),
            failed(16, "time", "not done within 75 s"),
            failed(24, "time", "not done within 75 s"),
            failed(32, "crash", "the process ended without a result: killed by SIGABRT"),
            failed(40, "memory", memory),
            failed(48, "memory", memory.replace("1,500", "1,812")),
            failed(56, "error", None),
        ]
    )
    assert told == [
        "16 and 24 fail: not done within 75 s.",
        "32 fails by a crash that tells nothing of memory: the process ended without a result: "
        "killed by SIGABRT.",
        f"40 and 48 fail; of 40: {memory}.",
        "56 fails by an error, not for want of memory: no reason was told.",
    ]


def test_a_long_reason_is_cut():
    assert len(in_one_line("ValueError: " + "x " * 1000)) == 400
    assert in_one_line("What.\n  expected: a\n  received: b") == "What. expected: a received: b"
