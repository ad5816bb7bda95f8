"""Marks of a training's steps, on a clock that the test turns."""

import pytest

from tfopt.monitor.step_marks import StepMarks


class Clock:
    def __init__(self, *, epoch_steps=10, sizes=(32, 8), per_call=1):
        self.now = self.waited = 0.0
        self.marks = []
        self.steps = StepMarks(self.marks.append, lambda: self.now, lambda: self.waited)
        self.steps.begin(sizes, epoch_steps)
        self.per_call = per_call

    def epoch(self, *, calls=10, seconds=0.5, wait=0.1, first=0):
        for call in range(first, calls):
            self.steps.begin_step(call * self.per_call)
            self.now += seconds
            self.waited += wait
            self.steps.end_step((call + 1) * self.per_call - 1)
        self.steps.pause()


def test_the_first_call_is_a_mark_of_its_own_and_then_one_a_second():
    clock = Clock()
    clock.epoch()
    marks = clock.marks
    assert [m.steps for m in marks] == [1, 2, 2, 2, 2, 1]
    assert [m.seconds for m in marks] == [0.5, 1, 1, 1, 1, 0.5]
    assert [m.input_wait_s for m in marks] == pytest.approx([0.1, 0.2, 0.2, 0.2, 0.2, 0.1])
    # The last batch of the epoch is a smaller one.
    assert [m.examples for m in marks] == [32, 64, 64, 64, 64, 8]


def test_what_comes_between_epochs_is_in_no_mark():
    clock = Clock()
    clock.epoch()
    clock.now += 100
    clock.waited += 50
    clock.epoch()
    assert sum(m.seconds for m in clock.marks) == 10
    assert sum(m.input_wait_s for m in clock.marks) == pytest.approx(2)
    assert sum(m.steps for m in clock.marks) == clock.steps.steps == 20


def test_several_steps_a_call_with_a_last_call_that_is_not_full():
    clock = Clock(per_call=4)
    clock.epoch(calls=3)
    assert [m.steps for m in clock.marks] == [4, 6]
    assert sum(m.examples for m in clock.marks) == 9 * 32 + 8
