"""Train a job whole in a child process, for its accuracy: which score after how many steps.

The training is not timed, so that others can run beside it. The score on a part of the test part
is read ten times, at equal numbers of examples, so that batches of any size compare; at the end the
score on all of it comes beside.
"""

from __future__ import annotations

import gzip
import re
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.export.serving import ServingFile, served_by
from tfopt.job.job import Job
from tfopt.job.parts import Artefact
from tfopt.job.rebuild import rebuild
from tfopt.job.transform import Chain
from tfopt.keras_internals import last_step
from tfopt.report.training import Reading, Training
from tfopt.run import Outcome, Prepared, prepared

READINGS = 10
_BATCHES = 10  # for a reading, spread over the test part
# Keras puts a head's name before the metric's, and a number behind it where two have one name.
_ACCURACY = re.compile(r"(.+_)?acc(uracy)?(_\d+)?")


@dataclass(frozen=True)
class Trained:
    """A whole training, what each transform did, by its repr, and the file that serves it."""

    training: Training
    notes: dict[str, str]
    served: ServingFile | str | None = None


@dataclass(frozen=True)
class TrainWhole:
    """Train the job as a whole, read its scores, and leave its files.

    Attributes:
        readings: How often the score is read, the end included.
        output: A folder for the model and the files that transforms made.
        serving: Return the LiteRT file that would serve it too, or the reason why there is none.
    """

    readings: int = READINGS
    output: str | None = None
    serving: bool = False

    def __call__(self, job: Job, chain: Chain, pipe: Connection) -> Trained:
        """Train, and return what was read."""
        with prepared(job, chain) as ready:
            scores = _Scores(ready, self.readings)
            outcome = ready.fit(callbacks=[scores.callback()])
            if self.output is not None:
                outcome.save(self.output)
            served = served_by(outcome.model, outcome.artefacts) if self.serving else None
            notes = {repr(transform): effect.note for transform, effect in outcome.effects}
            return Trained(_training(ready, outcome, scores), notes, served)


class _Scores:
    """Reads the test accuracy at equal numbers of examples, and the share of ends of epochs."""

    def __init__(self, ready: Prepared, wanted: int) -> None:
        self.readings: list[Reading] = []
        self.steps = 0
        self._ready = ready
        self._wanted = wanted
        self._length = ready.facts.steps_per_epoch
        self._all = None if self._length is None else self._length * ready.job.epochs
        self._done = self._due = 0
        self._last = self._test_begun = time.perf_counter()
        self._within_s: list[float] = []
        self._between_s: list[float] = []

    @property
    def epoch_end_share(self) -> float:
        """Return the share of the time that ends of epochs take beyond an execution."""
        if not self._within_s or not self._between_s:
            return 0.0
        execution_s = statistics.median(self._within_s)
        ends_s = sum(max(seconds - execution_s, 0.0) for seconds in self._between_s)
        return round(ends_s / (sum(self._within_s) + sum(self._between_s)), 4)

    def callback(self) -> Any:
        """Return the callback for ``fit``."""
        import keras

        return keras.callbacks.LambdaCallback(
            on_epoch_end=self._epoch_ends,
            on_train_batch_end=self._execution_ends,
            on_test_begin=self._test_begins,
            on_test_end=self._test_ends,
        )

    def _execution_ends(self, batch: int, logs: object) -> None:
        now = time.perf_counter()
        reached = last_step(self._ready.model, batch) + 1
        reached = reached if self._length is None else min(reached, self._length)
        if self.steps:  # the first execution compiles; XLA also a smaller last batch
            inside = self._done and reached != self._length
            (self._within_s if inside else self._between_s).append(now - self._last)
        self.steps += reached - self._done
        self._done = reached
        self._last = now
        if self._all is not None and self.steps < self._all:
            due = self._wanted * self.steps // self._all
            if due > self._due:
                self._due = due
                self.read()

    def _epoch_ends(self, epoch: int, logs: object) -> None:
        self._done = 0
        if self._all is None and self._wanted > 1 and epoch < self._ready.job.epochs - 1:
            self.read()

    def _test_begins(self, logs: object = None) -> None:
        self._test_begun = time.perf_counter()

    def _test_ends(self, logs: object = None) -> None:
        # Validation at the end of an epoch is no part of the training, as reading is none.
        self._last += time.perf_counter() - self._test_begun

    def read(self) -> None:
        """Note the accuracy now, and leave the metrics of the epoch as they were."""
        if self._ready.data.test is None:
            return
        metrics, begun = self._ready.model.metrics, time.perf_counter()
        kept = [(variable, variable.numpy()) for metric in metrics for variable in metric.variables]
        accuracy = worst_accuracy(self._ready.evaluate(batches=_BATCHES))
        for variable, value in kept:
            variable.assign(value)
        if accuracy is not None:
            examples = self.steps * (self._ready.facts.batch_size or 1)
            self.readings.append(Reading(self.steps, examples, round(accuracy, 5)))
        self._last += time.perf_counter() - begun


def _training(ready: Prepared, outcome: Outcome, scores: _Scores) -> Training:
    unavailable: dict[str, str] = {}
    accuracy = worst_accuracy(outcome.evaluation or {})
    if accuracy is None:
        no_test = outcome.evaluation is None
        unavailable["test_accuracy"] = (
            "the job has no test data" if no_test else "no accuracy metric"
        )
    else:
        accuracy = round(accuracy, 5)
        scores.read()
    kib, gzip_kib = _model_kib(outcome, unavailable)
    return Training(
        seed=ready.job.seed,
        steps=scores.steps,
        epochs=ready.job.epochs,
        epoch_end_share=scores.epoch_end_share,
        readings=tuple(scores.readings),
        test_accuracy=accuracy,
        model_kib=kib,
        model_gzip_kib=gzip_kib,
        **_artefact_figures(outcome.artefacts, unavailable),
        unavailable=unavailable,
    )


NO_FILE = dict.fromkeys(
    ("artefact", "artefact_kib", "artefact_accuracy"), "no transform makes a file"
)


def _artefact_figures(
    artefacts: tuple[Artefact, ...], unavailable: dict[str, str]
) -> dict[str, Any]:
    if not artefacts:
        unavailable.update(NO_FILE)
        return dict.fromkeys(NO_FILE)
    artefact = artefacts[-1]
    accuracy = artefact.metrics.get("test_accuracy")
    if accuracy is None:
        unavailable["artefact_accuracy"] = "the job has no test data with class labels"
    return {
        "artefact": artefact.filename,
        "artefact_kib": round(len(artefact.content) / 1024, 1),
        "artefact_accuracy": None if accuracy is None else round(float(accuracy), 5),
    }


def _model_kib(outcome: Outcome, unavailable: dict[str, str]) -> tuple[float | None, float | None]:
    """Return the size of the saved model without optimizer state, as it is and gzipped."""
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
