"""oneDNN's convolutions and poolings go wrong where there are no images.

What is wrong: on CPUs, TensorFlow 2.21 gives a convolution of no images the shape of what went in,
in place of what would have come out, so that what takes it fails ("must have same size", "input
depth"); the gradient of a max pooling ends the process. A replica has no images in a last batch of
fewer examples than replicas.

The mend: under a strategy of CPU devices they get one blank image where there is none, and what it
gives is dropped again. Guarantees: no value and no gradient is changed, and nothing is copied where
there are images; outside, and on GPUs, nothing is touched.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from tfopt.distribute.mends.replica_parts import step_here
from tfopt.distribute.mends.under_strategies import UnderStrategies

_FAILING = (
    *("conv", "depthwise_conv", "separable_conv", "conv_transpose", "max_pool"),
    *("average_pool", "adaptive_average_pool", "adaptive_max_pool"),
)
_mended = UnderStrategies()


def probe(strategy: Any) -> bool:
    """Whether this strategy's devices give no images the wrong size."""
    import tensorflow as tf

    if any("CPU" not in device for device in strategy.extended.worker_devices):
        return False

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def convolved(images: Any) -> Any:
        return tf.shape(tf.nn.conv2d(images, tf.ones([3, 3, 1, 2]), 1, "VALID"))

    given = tf.TensorSpec([None, 4, 4, 1])
    with tf.device("CPU:0"):
        shape = convolved.get_concrete_function(given)(tf.zeros([0, 4, 4, 1]))
    return bool(shape.numpy().tolist() != [0, 2, 2, 2])


def mend(strategy: Any) -> None:
    """Lets replicas without images go through Keras's convolutions under this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    from keras.src import backend

    for name in _FAILING:
        setattr(backend.nn, name, _of_one_at_least(getattr(backend.nn, name)))


def _of_one_at_least(plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def of_images(inputs: Any, *arguments: Any, **named: Any) -> Any:
        import tensorflow as tf

        if not _mended.on_a_replica() or not _may_be_none(inputs):
            return plain(inputs, *arguments, **named)
        shape = inputs.shape.as_list()
        there = tf.shape(inputs)[0] > 0
        blank = [1, *(1 if each is None else each for each in shape[1:])]
        some = tf.cond(there, lambda: inputs, lambda: tf.zeros(blank, inputs.dtype))
        some.set_shape(shape)
        found = plain(some, *arguments, **named)
        result = tf.cond(there, lambda: found, lambda: found[:0])
        result.set_shape(found.shape)
        return result

    return of_images


def _may_be_none(inputs: Any) -> bool:
    """XLA, which does not go through oneDNN, has each number of examples compiled for itself."""
    step = step_here()
    compiled = step is not None and step.model.jit_compile is True
    in_a_graph = hasattr(inputs, "graph") and inputs.shape.rank is not None
    return in_a_graph and not compiled and inputs.shape[0] is None
