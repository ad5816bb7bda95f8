"""Hold one whole training: its accuracy after so many steps, and the sizes of what it leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfopt.report.strict import AboveZero, Count, FromZero, Share, require_reasons


@dataclass(frozen=True)
class Reading:
    """The accuracy on a part of the test set after so many steps, which saw so many examples."""

    steps: Count
    examples: AboveZero
    accuracy: Share


@dataclass(frozen=True)
class Training:
    """What was read of one whole training, which ran beside others and was not timed.

    Attributes:
        seed: Of weights and shuffling.
        steps: Of the whole training, in so many ``epochs``.
        epoch_end_share: The share of its time that the ends of epochs took.
        readings: About ten, at equal numbers of examples, on a part of the test set; empty without.
        test_accuracy: At its end, on all of it.
        model_kib: The saved model without optimizer state; ``model_gzip_kib`` gzipped.
        artefact: Name of the file a transform made for serving, with ``artefact_kib`` and
            ``artefact_accuracy``, the file's own test accuracy.
        unavailable: For each figure that is None, the reason.
    """

    seed: int
    steps: Count
    epochs: Count
    epoch_end_share: Share
    readings: tuple[Reading, ...]
    test_accuracy: Share | None
    model_kib: FromZero | None
    model_gzip_kib: FromZero | None
    artefact: str | None
    artefact_kib: FromZero | None
    artefact_accuracy: Share | None
    unavailable: Mapping[str, str]

    def __post_init__(self) -> None:
        assert self.epoch_end_share < 1, "steps take some of the time"
        require_reasons(self, self.unavailable)

    def steps_to(self, target: float) -> float | None:
        """Return the steps until this test accuracy, between two readings by a straight line."""
        before = None
        for reading in self.readings:
            if reading.accuracy >= target:
                if before is None:
                    return float(reading.steps)
                share = (target - before.accuracy) / (reading.accuracy - before.accuracy)
                return before.steps + share * (reading.steps - before.steps)
            before = reading
        return None


def lowest_final_accuracy(trainings: Sequence[Training]) -> float | None:
    """Return the accuracy that the last reading of each training has; None where one has none."""
    final = [training.readings[-1].accuracy for training in trainings if training.readings]
    return min(final) if final and len(final) == len(trainings) else None
