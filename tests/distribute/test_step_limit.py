"""Which calls of a ``tf.function`` are steps, and since when; ``workers`` shows how they end."""

import time

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

from tfopt.distribute.step_limit import StepLimit


def test_calls_of_what_meets_other_workers_are_steps_from_the_first_one_on(monkeypatch):
    limit, lasted = StepLimit(60), []
    monkeypatch.setattr(Function, "__call__", limit._noted(Function.__call__))
    meet = limit._noted(lambda strategy: tf.no_op(), meets=True)
    strategy = tf.distribute.get_strategy()

    def note():
        lasted.append(time.monotonic() - limit._earliest())

    @tf.function
    def inner():
        meet(strategy)
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
    assert other not in limit._meeting
    assert limit._calls == {}
