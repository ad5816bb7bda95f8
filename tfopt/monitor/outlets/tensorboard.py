"""Write samples as TensorBoard scalars: one tag for each metric and device, at the training's step.

TensorBoard need not be installed; TensorFlow is loaded only by the class.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tfopt.monitor.readings import GPU_METRICS, HOST_METRICS, Sample, StepMark


class TensorBoardScalars:
    """A run in a log folder, open until it is closed."""

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf

        self._tf = tf
        self._writer = tf.summary.create_file_writer(str(folder))

    def write(self, step: int, sample: Sample, mark: StepMark) -> None:
        """Write the figures of one moment at once; leave out those that are None."""
        tf = self._tf
        values = [
            tf.compat.v1.Summary.Value(tag=tag, simple_value=value)
            for tag, value in (*_of_sample(sample), *_of_steps(mark))
        ]
        message = tf.compat.v1.Summary(value=values).SerializeToString()
        # A mirrored scope has one writer for all, and it writes from the host.
        with tf.device("CPU:0"), self._writer.as_default():
            tf.summary.experimental.write_raw_pb(message, step=step)
            self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def _of_sample(sample: Sample) -> Iterator[tuple[str, float]]:
    """Yield tag and value of each known metric, such as ``gpu0/power_w`` or ``host/rss_mib``."""
    for metric in HOST_METRICS:
        value = getattr(sample.host, metric.name)
        if value is not None:
            yield f"host/{metric.name}", value
    for place, gpu in enumerate(sample.gpus):
        for metric in GPU_METRICS:
            value = getattr(gpu, metric.name)
            if value is not None:
                yield f"gpu{place}/{metric.name}", value


def _of_steps(mark: StepMark) -> Iterator[tuple[str, float]]:
    if not mark.steps or not mark.seconds:
        return
    yield "training/step_ms", 1000 * mark.seconds / mark.steps
    if mark.examples is not None:
        yield "training/examples_per_s", mark.examples / mark.seconds
    if mark.input_wait_s is not None:
        yield "training/input_wait_percent", 100 * mark.input_wait_s / mark.seconds
