"""Keeps samples and marks of a training that may last for weeks, in memory that does not grow.

Guarantees: of the last samples every one is there; where there are many, the older half is thinned
to every second one, again and again. Of marks two become one, so that their sums stay whole.
Nothing here waits for a lock: what is kept may be looked at while it grows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tfopt.monitor.readings import Sample, StepMark

# A sample of one GPU and a few cores is about 2 KiB: some 40 MiB.
MOST = 20_000


class Kept:
    """Samples and marks, in the order of their times."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._samples: list[Sample] = []
        self._steps: list[StepMark] = []

    def add(self, sample: Sample) -> None:
        """Keeps a sample."""
        if len(self._samples) >= self._most:
            old = self._most // 2
            # One assignment: who looks meanwhile sees the list of before or of after.
            self._samples = self._samples[:old:2] + self._samples[old:]
        self._samples.append(sample)

    def mark(self, mark: StepMark) -> None:
        """Keeps a mark."""
        if len(self._steps) >= self._most:
            old = self._most // 2 // 2 * 2
            pairs = zip(self._steps[:old:2], self._steps[1:old:2], strict=True)
            self._steps = [_one(*pair) for pair in pairs] + self._steps[old:]
        self._steps.append(mark)

    def samples(self, begun_s: float, ended_s: float) -> tuple[Sample, ...]:
        """Those between two moments, these included."""
        samples = self._samples
        first = bisect_left(samples, begun_s, key=lambda each: each.at_s)
        return tuple(samples[first : bisect_right(samples, ended_s, key=lambda each: each.at_s)])

    def steps(self, begun_s: float, ended_s: float) -> tuple[StepMark, ...]:
        """Those that ended between two moments, these included."""
        steps = self._steps
        first = bisect_left(steps, begun_s, key=lambda each: each.ended_s)
        return tuple(steps[first : bisect_right(steps, ended_s, key=lambda each: each.ended_s)])

    def newest(self) -> Sample | None:
        """The last sample, if there is one."""
        samples = self._samples
        return samples[-1] if samples else None


def _one(first: StepMark, second: StepMark) -> StepMark:
    """Both as one; what either does not tell, their sum does not."""

    def both(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a + b

    def counted(a: int | None, b: int | None) -> int | None:
        return None if a is None or b is None else a + b

    return StepMark(
        second.ended_s,
        steps=counted(first.steps, second.steps),
        seconds=both(first.seconds, second.seconds),
        examples=counted(first.examples, second.examples),
        input_wait_s=both(first.input_wait_s, second.input_wait_s),
    )
