"""Trace some steps of a job with TensorFlow's profiler, for TensorBoard or XProf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tfopt.job.job import Job
from tfopt.job.transform import Chain
from tfopt.measure.children import Lost, carried_out
from tfopt.measure.display import Display
from tfopt.measure.targets import Target

_WARM_EXECUTIONS, _TRACED_EXECUTIONS = 3, 10


@dataclass(frozen=True)
class TraceSteps:
    """A task: train until the steps are warm, and leave a trace of some more in a folder."""

    folder: str

    def carry_out(self, job: Job, chain: Chain, pipe: Connection) -> None:
        """Train the job without its callbacks."""
        import keras
        import tensorflow as tf

        from tfopt.run import prepared

        folder, ended = self.folder, 0

        class Profiler(keras.callbacks.Callback):  # type: ignore[misc]
            def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
                nonlocal ended
                ended += 1
                if ended == _WARM_EXECUTIONS:
                    tf.profiler.experimental.start(folder)
                if ended == _WARM_EXECUTIONS + _TRACED_EXECUTIONS:
                    tf.profiler.experimental.stop()
                    self.model.stop_training = True

        with prepared(job.with_(callbacks=()), chain, endless=True) as ready:
            most = _WARM_EXECUTIONS + _TRACED_EXECUTIONS  # an epoch has one at least
            ready.train(callbacks=[Profiler()], epochs=most, validate=False)


def trace(targets: Mapping[str, Target], folder: Path, display: Display) -> tuple[str, ...]:
    """Leave a trace of each target in a folder of its name; return what failed, in words."""
    failed = []
    for name, target in targets.items():
        display.doing(f"tracing some steps: {name}")
        try:
            carried_out(target, TraceSteps(str(folder.resolve() / name)))
        except Lost as lost:
            failed.append(f"The steps of {name} could not be traced: {lost}")
    return tuple(failed)
