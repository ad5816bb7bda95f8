"""Hold one whole training: its seconds, the accuracy after each epoch, sizes, peaks of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tfopt.report.strict import AboveZero, FromZero, Share, require_reasons


@dataclass(frozen=True)
class Epoch:
    """Where the training stood after an epoch: seconds since its start, accuracy."""

    train_s: FromZero
    test_accuracy: Share | None


@dataclass(frozen=True)
class Figures:
    """What was measured of one whole training.

    Attributes:
        seed: Of weights and shuffling.
        train_s: All epochs with the tracing in the first step, without evaluation.
        first_step_s: The first execution, tracing and compilation included.
        model_kib: The saved model without optimizer state; ``model_gzip_kib`` gzipped.
        artefact: Name of the file a transform made for serving, with ``artefact_kib`` and
            ``artefact_accuracy``, the file's own test accuracy.
        epochs: After each epoch, the training seconds until then and the test accuracy.
        unavailable: For each field that is None, the reason.
    """

    seed: int
    train_s: AboveZero
    first_step_s: FromZero | None
    peak_host_mib: AboveZero | None
    peak_gpu_mib: FromZero | None
    test_accuracy: Share | None
    model_kib: FromZero | None
    model_gzip_kib: FromZero | None
    artefact: str | None
    artefact_kib: FromZero | None
    artefact_accuracy: Share | None
    epochs: tuple[Epoch, ...]
    unavailable: Mapping[str, str]

    MAY_BE_NONE: ClassVar[tuple[str, ...]] = (
        "first_step_s",
        "peak_host_mib",
        "peak_gpu_mib",
        "test_accuracy",
        "model_kib",
        "model_gzip_kib",
        "artefact",
        "artefact_kib",
        "artefact_accuracy",
    )

    def __post_init__(self) -> None:
        require_reasons(self, self.MAY_BE_NONE, self.unavailable)

    def seconds_to(self, target: float) -> float | None:
        """Return the seconds until the first epoch that ends at this test accuracy, or above it."""
        for epoch in self.epochs:
            if epoch.test_accuracy is not None and epoch.test_accuracy >= target:
                return epoch.train_s
        return None


def lowest_final_accuracy(trainings: Sequence[Figures]) -> float | None:
    """Return the test accuracy that each of the trainings reaches; None where one has none."""
    final = [figures.test_accuracy for figures in trainings]
    known = [accuracy for accuracy in final if accuracy is not None]
    return min(known) if known and len(known) == len(final) else None
