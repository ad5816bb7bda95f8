"""Hold one whole training: its seconds, the accuracy after each epoch, sizes, peaks of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from tfopt.report.strict import ReportError, require_number, require_reasons

# None of these is ever truly 0: a 0 would be a figure that nobody measured.
_ABOVE_ZERO = {"above": 0.0}
_FROM_ZERO = {"least": 0.0}
_SHARE = {"least": 0.0, "most": 1.0}
_RANGES = {
    "train_s": _ABOVE_ZERO,
    "peak_host_mib": _ABOVE_ZERO,
    "first_step_s": _FROM_ZERO,
    "peak_gpu_mib": _FROM_ZERO,
    "model_kib": _FROM_ZERO,
    "model_gzip_kib": _FROM_ZERO,
    "artefact_kib": _FROM_ZERO,
    "test_accuracy": _SHARE,
    "artefact_accuracy": _SHARE,
}


@dataclass(frozen=True)
class Epoch:
    """Where the training stood after an epoch: seconds since its start, accuracy."""

    train_s: float
    test_accuracy: float | None

    def __post_init__(self) -> None:
        require_number("train_s", self.train_s, least=0)
        if self.test_accuracy is not None:
            require_number("test_accuracy", self.test_accuracy, least=0, most=1)


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
    train_s: float
    first_step_s: float | None
    peak_host_mib: float | None
    peak_gpu_mib: float | None
    test_accuracy: float | None
    model_kib: float | None
    model_gzip_kib: float | None
    artefact: str | None
    artefact_kib: float | None
    artefact_accuracy: float | None
    epochs: tuple[Epoch, ...]
    unavailable: Mapping[str, str]

    MAY_BE_NONE: ClassVar[tuple[str, ...]] = (*sorted(_RANGES.keys() - {"train_s"}), "artefact")

    def __post_init__(self) -> None:
        for name, limits in _RANGES.items():
            value = getattr(self, name)
            if value is not None or name not in self.MAY_BE_NONE:
                require_number(name, value, **limits)
        require_reasons(self, self.MAY_BE_NONE, self.unavailable)
        for number, (earlier, later) in enumerate(pairwise(self.epochs), start=1):
            require_number(f"epochs[{number}].train_s", later.train_s, least=earlier.train_s)
        if self.artefact is None and self.artefact_kib is not None:
            raise ReportError(
                "artefact", expected="the name of the file of artefact_kib", received="null"
            )

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
