"""Measure one variant in this process: a job goes in, figures come out."""

from __future__ import annotations

import gzip
import re
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.data.fit_data import describe_data
from tfopt.job.job import Job
from tfopt.job.parts import Artefact
from tfopt.measure.memory import peak_gpu_mib, peak_host_mib
from tfopt.report.training import Figures
from tfopt.run import Outcome, Prepared, prepared

if TYPE_CHECKING:
    from tfopt.measure.clock import StepClock

Progress = Callable[[int, int], None]

# Keras puts a head's name before the metric's, and a number behind it where two have one name.
_ACCURACY = re.compile(r"(.+_)?acc(uracy)?(_\d+)?")


@dataclass(frozen=True)
class Measured:
    """The figures of a variant, and what was trained."""

    figures: Figures
    data: str
    outcome: Outcome


def timed_training(job: Job, *, output: Path | None, progress: Progress) -> Measured:
    """Run the job under the clock."""
    with prepared(job) as ready:
        # Told before the training, which frees its input.
        data = describe_data(ready.data)
        outcome, clock = _train(ready, progress)
        if output is not None:
            outcome.save(output)
        return Measured(_figures(ready, outcome, clock), data, outcome)


def _train(ready: Prepared, progress: Progress) -> tuple[Outcome, StepClock]:
    from tfopt.measure.clock import StepClock

    def accuracy(epoch: int) -> float | None:
        # After the last epoch the finished model is evaluated in any case.
        last = epoch == ready.job.epochs - 1
        if last or ready.data.test is None:
            return None
        return _rounded(worst_accuracy(ready.evaluate()), 5)

    clock = StepClock(ready.facts.steps_per_epoch, accuracy, progress)
    return ready.fit(callbacks=[clock]), clock


def _figures(ready: Prepared, outcome: Outcome, clock: StepClock) -> Figures:
    unavailable: dict[str, str] = {}
    accuracy = _rounded(worst_accuracy(outcome.evaluation or {}), 5)
    if accuracy is None:
        unavailable["test_accuracy"] = (
            "the job has no test data" if outcome.evaluation is None else "no accuracy metric"
        )
    kib, gzip_kib = _model_kib(outcome, unavailable)
    artefact = outcome.artefacts[-1] if outcome.artefacts else None
    if clock.first_step_s is None:
        unavailable["first_step_s"] = "no step was run"
    return Figures(
        seed=ready.job.seed,
        train_s=clock.epochs[-1].train_s,
        first_step_s=_rounded(clock.first_step_s),
        peak_host_mib=peak_host_mib(unavailable),
        peak_gpu_mib=peak_gpu_mib(unavailable),
        test_accuracy=accuracy,
        model_kib=kib,
        model_gzip_kib=gzip_kib,
        **_artefact_figures(artefact, unavailable),
        epochs=(*clock.epochs[:-1], replace(clock.epochs[-1], test_accuracy=accuracy)),
        unavailable=unavailable,
    )


def _artefact_figures(artefact: Artefact | None, unavailable: dict[str, str]) -> dict[str, Any]:
    if artefact is None:
        reason = "no transform makes a file"
        unavailable.update(artefact=reason, artefact_kib=reason, artefact_accuracy=reason)
        return {"artefact": None, "artefact_kib": None, "artefact_accuracy": None}
    accuracy = artefact.metrics.get("test_accuracy")
    if accuracy is None:
        unavailable["artefact_accuracy"] = "the job has no test data with class labels"
    return {
        "artefact": artefact.filename,
        "artefact_kib": round(len(artefact.content) / 1024, 1),
        "artefact_accuracy": _rounded(accuracy, 5),
    }


def is_accuracy(name: str) -> bool:
    """Return whether a metric is an accuracy, by the name that Keras gives it."""
    return _ACCURACY.fullmatch(name.lower()) is not None


def worst_accuracy(metrics: Mapping[str, float]) -> float | None:
    """Return the least of what Keras names an accuracy and is a share; None where nothing is.

    Of several heads the worst: what another one gains must not hide what it lost.
    """
    found = [
        float(value) for name, value in metrics.items() if is_accuracy(name) and 0 <= value <= 1
    ]
    return min(found, default=None)


def _model_kib(outcome: Outcome, unavailable: dict[str, str]) -> tuple[float | None, float | None]:
    """Return the size of the saved model without optimizer state, as it is and gzipped."""
    from tfopt.errors import UserError
    from tfopt.job.rebuild import rebuild

    try:
        bare = rebuild(outcome.model)
    except UserError as error:
        unavailable["model_kib"] = unavailable["model_gzip_kib"] = error.what
        return None, None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        bare.save(path)
        content = path.read_bytes()
    return round(len(content) / 1024, 1), round(len(gzip.compress(content)) / 1024, 1)


def _rounded(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(float(value), digits)
