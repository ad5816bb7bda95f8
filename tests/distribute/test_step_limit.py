"""Which calls of a ``tf.function`` are steps, and since when; ``workers`` shows how they end."""

import time

import tensorflow as tf

from tfopt.distribute.step_limit import StepLimit


def test_calls_of_what_meets_other_workers_are_steps_from_the_first_one_on():
    limit, lasted = StepLimit(60), []
    meet = limit._watched(tf.no_op)

    def note():
        lasted.append(time.monotonic() - limit._earliest())

    @tf.function
    def inner():
        meet()
        tf.py_function(note, [], [])

    @tf.function
    def step():
        inner()

    @tf.function
    def other():
        tf.py_function(note, [], [])

    for _ in range(2):
        step()
        assert lasted.pop() > 0
        assert time.monotonic() - limit._earliest() < 1e-3
        other()
        assert lasted.pop() < 1e-3

    @tf.function
    def around():
        inner()

    # Also what was traced within another one, and what calls what was traced before.
    for function in (inner, around):
        function()
        assert lasted.pop() > 0
    assert "_call" not in vars(other)
    limit._earliest()
    assert limit._first_calls == []  # nor are frames kept
