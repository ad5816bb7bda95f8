"""Write samples as TensorBoard scalars, with a tag for each metric and device.

TensorBoard need not be installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfopt.monitor.readings import GPU_METRICS, HOST_METRICS, Sample, StepMark


def write_scalars(writer: Any, step: int, sample: Sample, mark: StepMark) -> None:
    """Write the figures of a sample that are known."""
    import tensorflow as tf

    values = [
        tf.compat.v1.Summary.Value(tag=tag, simple_value=value)
        for tag, value in _figures(sample, mark)
        if value is not None
    ]
    message = tf.compat.v1.Summary(value=values).SerializeToString()
    # In a mirrored scope the writer is on the host.
    with tf.device("CPU:0"), writer.as_default():
        tf.summary.experimental.write_raw_pb(message, step=step)  # scalar() needs TensorBoard
        writer.flush()


def _figures(sample: Sample, mark: StepMark) -> Iterator[tuple[str, float | None]]:
    """Yield tag and value of each metric, such as ``gpu0/power_w`` or ``host/rss_mib``."""
    for metric in HOST_METRICS:
        yield f"host/{metric.name}", getattr(sample.host, metric.name)
    for place, gpu in enumerate(sample.gpus):
        for metric in GPU_METRICS:
            yield f"gpu{place}/{metric.name}", getattr(gpu, metric.name)
    if mark.steps and mark.seconds:
        yield "training/step_ms", 1000 * mark.seconds / mark.steps
        if mark.examples is not None:
            yield "training/examples_per_s", mark.examples / mark.seconds
        if mark.input_wait_s is not None:
            yield "training/input_wait_percent", 100 * mark.input_wait_s / mark.seconds
