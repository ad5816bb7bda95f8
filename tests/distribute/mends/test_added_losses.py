"""What layers add to the loss while several replicas take turns."""

import json

import pytest
from repairs.replicas import COMMON

CASES = """
    class Square(K.Layer):
        def call(self, x):
            self.add_loss(0.5 * keras.ops.mean(keras.ops.square(x)))
            return x

    class Sum(K.Layer):
        def call(self, x):
            self.add_loss(0.01 * keras.ops.sum(keras.ops.square(x)))
            return x

    def regular():
        return K.Dense(8, activity_regularizer=keras.regularizers.L2(0.1), kernel_regularizer="l2")

    def synchronized():
        return K.BatchNormalization(synchronized=True)

    def of(layers, loss="mse", **compiled):
        return ((layers, lambda: O.SGD(0.1), loss), compiled, even, {"validation_data": even})

    CASES = {
        "add_loss": of(lambda: dense(Square())),
        "activity regularizer": of(lambda: dense(regular())),
        "between exchanges": of(lambda: dense(Square(), synchronized(), Square())),
        "alone": of(lambda: dense(regular()), loss=None),
    }
"""


def test_without_the_mend_replicas_take_each_others_losses(fresh_python):
    printed = fresh_python(
        COMMON
        + CASES
        + """
    without("added_losses")
    try:
        gaps({"alone": CASES.pop("alone")}, 2)
    except AssertionError as error:
        print(json.dumps(str(error)))
    print(json.dumps(gaps(CASES, 2)))
    """
    )
    alone, found = map(json.loads, printed.splitlines())
    assert "different lengths" in alone
    assert all(weights > 1e-3 for weights, _ in found.values())


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_with_it_even_batches_train_as_on_one_device(fresh_python, count):
    printed = fresh_python(
        COMMON
        + CASES
        + f"""
    CASES["eager"] = of(lambda: dense(Square()), run_eagerly=True)
    found = gaps(CASES, {count})
    # Calls of no replica keep the list that Keras has.
    layer = Square()
    layer(x)
    layer(x)
    found["outside"] = [len(layer.losses) - 1, len(layer._losses) - 1]
    print(json.dumps(found))
    """
    )
    for weights, told in json.loads(printed).values():
        # BatchNormalization magnifies rounding, by how much depends on the processor: "between
        # exchanges" is 1.9e-6 off on an AMD EPYC, and 9.8e-8 in float64.
        assert weights < 5e-6
        assert told < 1e-6


UNEVEN = """
    uneven = (x[:69], y[:69])  # the last batch is one of five
    def of_uneven(layers):
        return ((layers, lambda: O.SGD(0.1), "mse"), {}, uneven, {"validation_data": uneven})
    CASES = {
        "summed": of_uneven(lambda: dense(Sum())),
        "mean": of_uneven(lambda: dense(Square())),
        "activity regularizer": of_uneven(lambda: dense(regular())),
    }
"""


def test_sums_and_uneven_batches_count_as_on_one_device(fresh_python):
    printed = fresh_python(COMMON + CASES + UNEVEN + "    print(json.dumps(gaps(CASES, 2)))\n")
    found = json.loads(printed)
    assert max(weights for weights, _ in found.values()) < 1e-5, found
    assert max(told for _, told in found.values()) < 1e-4, found


def test_without_the_mend_of_own_losses_they_do_not(fresh_python):
    printed = fresh_python(
        COMMON
        + CASES
        + UNEVEN
        + """
    without("own_losses")
    print(json.dumps(gaps(CASES, 2)))
    """
    )
    assert min(weights for weights, _ in json.loads(printed).values()) > 1e-4
