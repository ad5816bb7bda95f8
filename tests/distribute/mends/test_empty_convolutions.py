"""Convolutions and poolings on a replica that has no images in a short last batch."""

import json

from repairs.replicas import COMMON

CASES = """
    x = np.random.default_rng(0).normal(size=(33, 8, 8, 3)).astype("float32")
    y = x.mean((1, 2))

    def built(layers, optimizer, **compiled):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8, 8, 3)), *layers(), K.Flatten(), K.Dense(3)])
        model.compile(optimizer(), "mse", **{"jit_compile": False, **compiled})
        return model

    def case(*layers):
        return ((lambda: [make() for make in layers], lambda: O.SGD(0.05)), {}, (x, y), {})

    conv = lambda: K.Conv2D(4, 3, activation="relu")
"""


def test_without_the_mend_a_convolution_fails(fresh_python):
    printed = fresh_python(
        COMMON
        + CASES
        + """
    without("empty_convolutions")
    with tfopt.distribute(logical_cpus=2):
        model = built(lambda: [conv()], lambda: O.SGD(0.05))
    try:
        trained(model, (x, y))
    except tf.errors.InvalidArgumentError as error:
        print(json.dumps("Input" in str(error) or "shape" in str(error)))
    """
    )
    assert json.loads(printed)


def test_with_it_the_weights_are_those_of_one_device(fresh_python):
    printed = fresh_python(
        COMMON
        + CASES
        + """
    CASES = {
        "pooled": case(conv, lambda: K.MaxPooling2D(2), lambda: K.Conv2D(5, 2, padding="same")),
        "depthwise": case(conv, lambda: K.DepthwiseConv2D(3), lambda: K.AveragePooling2D(2)),
        "separable": case(lambda: K.SeparableConv2D(4, 3), lambda: K.Conv2DTranspose(4, 3)),
    }
    print(json.dumps(gaps(CASES, 2)))
    """
    )
    for weights, told in json.loads(printed).values():
        assert weights < 1e-6
        assert told < 1e-5
