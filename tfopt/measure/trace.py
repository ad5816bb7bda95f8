"""Trace some steps of a job with TensorFlow's profiler, for TensorBoard or XProf."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from tfopt.job.job import Job
from tfopt.job.transform import Chain
from tfopt.measure.children import Lost, carried_out
from tfopt.measure.targets import Target
from tfopt.report.display import Display

_WARM_EXECUTIONS, _TRACED_EXECUTIONS = 3, 10


def trace_steps(folder: str, job: Job, chain: Chain, pipe: Connection) -> None:
    """Train without callbacks until the steps are warm; leave a trace of some more in a folder."""
    import keras
    import tensorflow as tf

    from tfopt.run import prepared

    ended, most = 0, _WARM_EXECUTIONS + _TRACED_EXECUTIONS

    def execution_ends(batch: int, logs: object) -> None:
        nonlocal ended
        ended += 1
        if ended == _WARM_EXECUTIONS:
            tf.profiler.experimental.start(folder)
        if ended == most:
            tf.profiler.experimental.stop()
            ready.model.stop_training = True

    with prepared(job.with_(callbacks=()), chain, endless=True) as ready:
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=execution_ends)
        ready.train(callbacks=[callback], epochs=most, validate=False)  # one an epoch at least


def trace(targets: Mapping[str, Target], folder: Path, display: Display) -> tuple[str, ...]:
    """Leave a trace of each target in a folder of its name; return what failed, in words."""
    failed = []
    for name, target in targets.items():
        display.doing(f"tracing some steps: {name}")
        try:
            carried_out(target, partial(trace_steps, str(folder.resolve() / name)))
        except Lost as lost:
            failed.append(f"The steps of {name} could not be traced: {lost}")
    return tuple(failed)
