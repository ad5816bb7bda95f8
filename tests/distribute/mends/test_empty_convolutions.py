"""Convolutions and poolings on a replica that has no images in a short last batch."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt

from .replicas import K, O, gaps, trained, without

x = np.random.default_rng(0).normal(size=(33, 8, 8, 3)).astype("float32")
y = x.mean((1, 2))


def built(layers, optimizer, **compiled):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers(), K.Flatten(), K.Dense(3)])
    model.compile(optimizer(), "mse", **{"jit_compile": False, **compiled})
    return model


def case(*layers):
    return ((lambda: [make() for make in layers], lambda: O.SGD(0.05)), {}, (x, y), {})


def conv():
    return K.Conv2D(4, 3, activation="relu")


def unmended():
    without("empty_convolutions")
    with tfopt.distribute(logical_cpus=2):
        model = built(lambda: [conv()], lambda: O.SGD(0.05))
    try:
        trained(model, (x, y))
    except tf.errors.InvalidArgumentError as error:
        return "Input" in str(error) or "shape" in str(error)


@pytest.mark.slow
def test_without_the_mend_a_convolution_fails(alone):
    assert alone(unmended)


def mended():
    cases = {
        "pooled": case(conv, lambda: K.MaxPooling2D(2), lambda: K.Conv2D(5, 2, padding="same")),
        "depthwise": case(conv, lambda: K.DepthwiseConv2D(3), lambda: K.AveragePooling2D(2)),
        "separable": case(lambda: K.SeparableConv2D(4, 3), lambda: K.Conv2DTranspose(4, 3)),
    }
    return gaps(cases, built=built)


def test_with_it_the_weights_are_those_of_one_device(replicas):
    for weights, told in replicas(mended).values():
        assert weights < 1e-6
        assert told < 1e-5
