"""Assignments that add up: for one worker alone nothing changes. ``asynchronous`` tests several."""

import numpy as np
import pytest

from tfopt.repairs.lost_updates import kept_updates, probe


def test_the_defect_is_there():
    assert probe() is True


def adds(function):
    operations = [op.type for op in function.get_concrete_function().graph.get_operations()]
    return operations.count("AssignAddVariableOp"), operations.count("AssignVariableOp")


def test_what_is_assigned_is_added_only_inside():
    import keras
    import tensorflow as tf

    count = keras.Variable(3, dtype="int64", trainable=False, name="count")
    last = keras.Variable(3.0, trainable=False, name="last")
    other = keras.Variable(3.0, trainable=False, name="other")

    def step():
        for variable in (count, last, other):
            variable.assign(variable + 1)

    def mended():
        with kept_updates([count, last], settled=[last]) as readings:
            readings.take([count, last])
            step()

    assert adds(tf.function(step)) == (0, 3)
    traced = tf.function(mended)
    assert adds(traced) == (1, 2)
    assert adds(tf.function(step)) == (0, 3)
    traced()
    assert [int(count.numpy()), float(last.numpy()), float(other.numpy())] == [4, 4.0, 4.0]


@pytest.mark.parametrize("name", ["momentum", "average", "centred", "product"])
def test_one_worker_trains_the_weights_of_plain_training(name):
    import keras
    import tensorflow as tf
    from keras import layers, optimizers

    x = np.random.default_rng(0).integers(0, 20, size=(64, 4)).astype("int32")
    y = np.random.default_rng(1).normal(size=(64, 1)).astype("float32")
    make = {
        "momentum": lambda: optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        "average": lambda: optimizers.AdamW(0.01, use_ema=True, clipnorm=0.5),
        "centred": lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True),
        "product": lambda: optimizers.Nadam(0.01),
    }[name]

    def built():
        keras.utils.set_random_seed(0)
        words = [keras.Input((4,), dtype="int32"), layers.Embedding(20, 4), layers.Flatten()]
        rest = [layers.BatchNormalization(), layers.Dropout(0.3, seed=1), layers.Dense(1)]
        model = keras.Sequential([*words, *rest])
        model.compile(make(), "mse", metrics=["mae"])
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
            with kept_updates(variables) as readings:
                readings.take(variables)
                model.train_step(batch)

        model.reset_metrics()
        step = tf.function(step)
        for start in range(0, 64, 8):
            step((tf.constant(x[start : start + 8]), tf.constant(y[start : start + 8])))
        return [np.asarray(each) for each in (*model.trainable_variables, *variables)]

    plain, mended = trained(built(), False), trained(built(), True)
    assert float(np.max([np.abs(a - b).max() for a, b in zip(plain, mended, strict=True)])) < 1e-5
