"""Small computations that show a broken stack of drivers, CUDA, cuDNN and TensorFlow.

Each trial returns its error against float64 on the CPU. It may abort its process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from tfopt.job.job import Job
from tfopt.job.parts import Data
from tfopt.job.transform import Chain, Transform

if TYPE_CHECKING:
    import keras

_SIZE = 256


class Computation(NamedTuple):
    """A computation, and the packages to install if a GPU fails it.

    Attributes:
        error: Computes it, and returns the largest relative error (norms) of its results.
        allowed: The error of an intact stack: a few units in the last place of its inputs.
        packages: The requirements for pip, in quotes.
    """

    error: Callable[[], float]
    allowed: float
    packages: str


def _product_error(dtype: str, xla: bool = False) -> float:
    """Return the error of a product, optionally compiled by XLA."""
    import tensorflow as tf

    shapes = [(_SIZE, _SIZE), (_SIZE, _SIZE)]
    multiply = tf.function(tf.matmul, jit_compile=True) if xla else tf.matmul
    return _error(multiply, tf.matmul, _tensors(shapes, dtype))


def _convolution_error() -> float:
    """Return the error of a convolution with bias under XLA, forward and backward."""
    import tensorflow as tf

    def convolve(x: Any, kernel: Any, bias: Any, upstream: Any) -> list[Any]:
        def layer(x: Any, kernel: Any, bias: Any) -> Any:
            return tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias)

        return _with_gradients(layer, (x, kernel, bias), upstream)

    shapes = [(8, 12, 12, 4), (3, 3, 4, 16), (16,), (8, 12, 12, 16)]
    compiled = tf.function(convolve, jit_compile=True)
    return _error(compiled, convolve, _tensors(shapes, "float32"))


def _attention_error() -> float:
    """Return the error of cuDNN's fused attention, forward and backward."""
    import keras

    from tfopt.train.attention import dot_product_attention, refusal

    tensors = _tensors([(2, 128, 4, 64)] * 4, "bfloat16")
    reason = refusal(*tensors[:3])
    if reason is not None:
        raise RuntimeError(reason)

    def attend(by: Callable[..., Any], *inputs: Any) -> list[Any]:
        return _with_gradients(partial(by, is_causal=True), inputs[:3], inputs[3])

    fused = partial(attend, dot_product_attention)
    return _error(fused, partial(attend, keras.ops.dot_product_attention), tensors)


def _fit_error() -> float:
    """Return the error of two steps of ``fit`` in mixed_float16 against float32."""
    import numpy as np

    from tfopt.train.precision import MixedPrecision

    single, half = _moved_by_fit(Chain()), _moved_by_fit(MixedPrecision("mixed_float16"))
    return float(np.linalg.norm(half - single) / np.linalg.norm(single))


def _moved_by_fit(chain: Transform) -> Any:
    """Return the change of each weight in two steps of ``fit``."""
    import keras
    import numpy as np

    from tfopt.run import run

    def build() -> keras.Model:
        first, last = (
            keras.layers.Dense(units, kernel_initializer=keras.initializers.GlorotUniform(seed=0))
            for units in (64, 8)
        )
        return keras.Sequential([keras.Input((32,)), first, keras.layers.ReLU(), last])

    x, y = (tensor.numpy() for tensor in _tensors([(64, 32), (64, 8)], "float32"))
    job = Job(
        build,
        lambda: Data(train=(x, y)),
        lambda: {"loss": "mse", "optimizer": keras.optimizers.SGD(0.1)},
        batch_size=32,
    )
    pairs = zip(run(job, chain, verbose=0).model.get_weights(), build().get_weights(), strict=True)
    return np.concatenate([(after - before).ravel() for after, before in pairs])


def _tensors(shapes: Sequence[tuple[int, ...]], dtype: str) -> list[Any]:
    import numpy as np
    import tensorflow as tf

    random = np.random.default_rng(0)
    return [tf.constant(random.normal(size=shape), dtype) for shape in shapes]


def _with_gradients(compute: Callable[..., Any], inputs: Sequence[Any], upstream: Any) -> list[Any]:
    """Return the result for these tensors, and its gradients."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(inputs)
        result = compute(*inputs)
    return [result, *tape.gradient(result, inputs, output_gradients=upstream)]


def _error(compute: Callable[..., Any], exact: Callable[..., Any], inputs: Sequence[Any]) -> float:
    """Return the largest relative error of results against float64 on the CPU."""
    import numpy as np
    import tensorflow as tf

    results = tf.nest.flatten(compute(*inputs))
    with tf.device("CPU:0"):
        # Of the same inputs, rounded to the device's dtype.
        expected = tf.nest.flatten(exact(*(tf.cast(tensor, tf.float64) for tensor in inputs)))
    pairs = [
        (tf.cast(result, tf.float64).numpy(), reference.numpy())
        for result, reference in zip(results, expected, strict=True)
    ]
    # NaN propagates.
    return float(np.max([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in pairs]))


_CUBLAS = "'nvidia-cublas-cu12<13'"
# XLA's fused convolutions find no kernel in cuDNN 9.3 to 9.5 with TensorFlow 2.21; 9.24 has them
# (aws/deep-learning-containers#6417).
_CUDNN = "'nvidia-cudnn-cu12>=9.24,<10'"
# ptxas and libdevice.
_PTXAS = "'nvidia-cuda-nvcc-cu12<13'"

# float32 has 24 bits, TF32 and float16 11, bfloat16 8.
TRIALS = {
    "float32": Computation(partial(_product_error, "float32"), 1e-5, _CUBLAS),
    "tensorfloat32": Computation(partial(_product_error, "float32"), 2e-3, _CUBLAS),
    "float16": Computation(partial(_product_error, "float16"), 2e-3, _CUBLAS),
    "bfloat16": Computation(partial(_product_error, "bfloat16"), 2e-2, _CUBLAS),
    "XLA": Computation(partial(_product_error, "float32", xla=True), 1e-5, f"{_CUBLAS} {_PTXAS}"),
    "convolution with bias": Computation(_convolution_error, 5e-3, _CUDNN),
    "fused attention": Computation(_attention_error, 2e-2, _CUDNN),
    "fit in mixed_float16": Computation(_fit_error, 2e-2, "'tfopt[gpu]'"),
}
