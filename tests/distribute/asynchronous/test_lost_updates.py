"""Assignments that add up: for one worker alone nothing changes. ``asynchronous`` tests several."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, optimizers

from tfopt.distribute.asynchronous.lost_updates import adding_updates


def adds(function):
    operations = [op.type for op in function.get_concrete_function().graph.get_operations()]
    return operations.count("AssignAddVariableOp"), operations.count("AssignVariableOp")


WAYS = {  # what is assigned to a variable of this dtype, and whether it adds up over workers
    "a count": ("int32", lambda ops, v: v + 1, True),
    "a pointer": ("int32", lambda ops, v: (v + 1) % 3, False),
    "a pointer in a choice": ("int32", lambda ops, v: ops.where(v > 1, 0, v + 1), False),
    "an average": ("float32", lambda ops, v: 0.9 * v + 0.1 * 3, True),
    "an average in a branch": (
        "float32",
        lambda ops, v: ops.cond(v > 1, lambda: 0.9 * v, lambda: v * 1),
        True,
    ),
    "a maximum": ("float32", lambda ops, v: ops.maximum(v, 3.0), False),
    "a flag": ("bool", lambda ops, v: ops.logical_or(v, True), False),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_put_and_not_added_is_assigned(way):
    dtype, value, added = WAYS[way]
    variable = keras.Variable(2, dtype=dtype, trainable=False)
    expected = np.asarray(value(keras.ops, variable))

    def step():
        with adding_updates([variable]):
            variable.assign(value(keras.ops, variable))

    plain = tf.function(lambda: variable.assign(value(keras.ops, variable)), autograph=False)
    traced = tf.function(step, autograph=False)
    assert adds(traced) == ((1, 0) if added else (0, 1))
    assert adds(plain) == (0, 1)  # outside of it
    traced()
    np.testing.assert_allclose(np.asarray(variable), expected, rtol=1e-6)


def test_one_worker_trains_the_weights_of_plain_training():
    x = np.random.default_rng(0).integers(0, 20, size=(64, 4)).astype("int32")
    y = np.random.default_rng(1).normal(size=(64, 1)).astype("float32")

    def built():
        keras.utils.set_random_seed(0)
        words = [keras.Input((4,), dtype="int32"), layers.Embedding(20, 4), layers.Flatten()]
        rest = [layers.BatchNormalization(), layers.Dropout(0.3, seed=1), layers.Dense(1)]
        model = keras.Sequential([*words, *rest])
        optimizer = optimizers.AdamW(0.01, use_ema=True, clipnorm=0.5)
        model.compile(optimizer, "mse", metrics=["mae"])
        model.evaluate(x, y, verbose=0)
        model.optimizer.build(model.trainable_variables)
        return model

    def trained(model, mended):
        variables = [
            *model.non_trainable_variables,
            *model.metrics_variables,
            *(each for each in model.optimizer.variables if each.name != "learning_rate"),
        ]

        def step(batch):
            if not mended:
                model.train_step(batch)
                return
            with adding_updates(variables):
                model.train_step(batch)

        model.reset_metrics()
        step = tf.function(step)
        for start in range(0, 64, 8):
            step((tf.constant(x[start : start + 8]), tf.constant(y[start : start + 8])))
        return [np.asarray(each) for each in (*model.trainable_variables, *variables)]

    plain, mended = trained(built(), False), trained(built(), True)
    assert float(np.max([np.abs(a - b).max() for a, b in zip(plain, mended, strict=True)])) < 1e-5
