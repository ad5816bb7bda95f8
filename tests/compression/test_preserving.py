"""Zeros and few values stay what they are under quantization-aware training, into the file."""

import math

import keras
import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from keras import layers

import tfopt

RNG = np.random.default_rng(0)
X = RNG.normal(size=(128, 8, 8, 3)).astype("float32")
Y = RNG.integers(0, 4, 128)


def net():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(24, "relu"),
            layers.Dense(4, "softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model


def kernels_in(content):
    """The kernels of a file, as int8 constants, by how many weights they have."""
    # No delegate, which would keep constants in a form of its own.
    interpreter = Interpreter(
        model_content=content,
        experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    interpreter.allocate_tensors()
    sizes = {math.prod(shape) for shape in ((3, 3, 3, 8), (288, 24), (24, 4))}
    return {
        size: interpreter.get_tensor(detail["index"])
        for detail in interpreter.get_tensor_details()
        if detail["dtype"] is np.int8 and (size := math.prod(detail["shape"])) in sizes
    }


@pytest.mark.parametrize("how", ["PQAT", "CQAT", "PCQAT"])
def test_what_was_held_is_held_into_the_file(how):
    model = net()
    model.fit(X, Y, verbose=0)
    if "P" in how:
        tfopt.prune(model, 0.75)
        model.fit(X, Y, verbose=0)
    if "C" in how:
        tfopt.strip(model)
        tfopt.cluster(model, 6)
    tfopt.quantize_aware(model)
    model.fit(X, Y, epochs=3, verbose=0)
    made = tfopt.quantize(model, representative=X)
    assert made.fully_integer
    assert made.parity.argmax_agreement >= 0.95
    kernels = kernels_in(made.content)
    assert len(kernels) == 3
    tfopt.strip(model)
    plain = [layer.kernel.numpy() for layer in model.layers if hasattr(layer, "kernel")]
    for values in [*kernels.values(), *plain]:
        if "C" in how:
            assert len(np.unique(values)) <= 6
        if "P" in how:
            assert np.mean(values == 0) >= 0.74


def test_clusters_of_each_channel_keep_a_scale_of_their_own():
    model = net()
    tfopt.cluster(model, 4, per_channel=True)
    tfopt.quantize_aware(model)
    model.fit(X, Y, epochs=2, verbose=0)
    made = tfopt.quantize(model, representative=X)
    values = kernels_in(made.content)[8 * 27]
    assert all(len(np.unique(channel)) <= 4 for channel in values)
    assert len(np.unique(values)) > 4
