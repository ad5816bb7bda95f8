"""What is kept at epochs' ends, of this training alone."""

from contextlib import ExitStack

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import UserError
from tfopt.distribute.asynchronous.saved_progress import Progress
from tfopt.distribute.model_parts import optimizers_of


def built(activation="relu", **compiled):
    dense = keras.layers.Dense(3, activation, dtype="bfloat16")
    model = keras.Sequential([keras.Input((4,)), dense])
    model.second = [keras.optimizers.SGD(0.1, momentum=0.9)]
    model.compile(**{"optimizer": "adam", "loss": "mse"} | compiled)
    for optimizer in optimizers_of(model).values():
        optimizer.build(model.trainable_variables)
    return model


ELEMENTS = tf.TensorSpec((None, 4)), tf.TensorSpec((None, 3))


def variables(model):
    return [*model.variables, *model.optimizer.variables, *model.second[0].variables]


def test_every_optimizer_comes_back(tmp_path):
    model = built()
    with ExitStack() as stack:
        kept = Progress(tmp_path, stack)
        assert kept.restore(model, model, ELEMENTS) == 0
        for variable in variables(model):
            variable.assign(np.full(variable.shape, 3))
        kept.save(7, model)
    # A metric more trains no other model, and neither does the rate that a callback has set.
    again = built(metrics=["mae"])
    with ExitStack() as stack:
        assert Progress(tmp_path, stack).restore(again, again, ELEMENTS) == 7
    restored = [np.asarray(variable.numpy(), "float32") for variable in variables(again)[:2]]
    assert all((values == 3).all() for values in restored)
    assert int(again.second[0].iterations.numpy()) == 3


def test_what_another_training_has_kept_is_refused_before_anything_is_changed(tmp_path):
    model = built()
    with ExitStack() as stack:
        kept = Progress(tmp_path, stack)
        kept.restore(model, model, ELEMENTS)
        kept.save(1, model)
    for other, difference in (
        ({"activation": "tanh"}, "'tanh' here"),
        ({"optimizer": "adamw"}, "optimizer: class is 'Adam' in the checkpoint, 'AdamW' here"),
        ({"loss": "mae"}, "loss is 'mse' in the checkpoint, 'mae' here"),
    ):
        different = built(**other)
        before = different.get_weights()
        with ExitStack() as stack, pytest.raises(UserError, match=difference):
            Progress(tmp_path, stack).restore(different, different, ELEMENTS)
        np.testing.assert_array_equal(before[0], different.get_weights()[0])
