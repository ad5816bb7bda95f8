"""What is kept at epochs' ends, of this training alone."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from tfopt import UserError


def built(activation="relu", dtype="float32", **compiled):
    import keras

    from tfopt.distribute.model_parts import optimizers_of

    dense = keras.layers.Dense(3, activation, dtype=dtype)
    model = keras.Sequential([keras.Input((4,)), dense])
    model.second = [keras.optimizers.SGD(0.1, momentum=0.9)]
    model.compile(**{"optimizer": "adam", "loss": "mse"} | compiled)
    for optimizer in optimizers_of(model).values():
        optimizer.build(model.trainable_variables)
    return model


def progress(folder, model):
    import tensorflow as tf

    from tfopt.distribute.asynchronous.saved_progress import Progress

    return Progress(folder, model, (tf.TensorSpec((None, 4)), tf.TensorSpec((None, 3))))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_optimizer_and_every_dtype_come_back(tmp_path, dtype):
    model = built(dtype=dtype)
    kept = progress(tmp_path, model)
    for variable in [*model.variables, *model.optimizer.variables, *model.second[0].variables]:
        variable.assign(np.full(variable.shape, 3))
    kept.save(7, model)
    again = built(dtype=dtype)
    kept = progress(tmp_path, again)
    assert kept.restore(again) == 7
    assert int(again.second[0].iterations.numpy()) == 3
    for old, new in (
        (model.variables, again.variables),
        (model.optimizer.variables, again.optimizer.variables),
        (model.second[0].variables, again.second[0].variables),
    ):
        for a, b in zip(old, new, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_what_another_training_has_kept_is_refused_before_anything_is_changed(tmp_path):
    import keras

    model = built()
    progress(tmp_path, model).save(1, model)
    for other, difference in (
        ({"activation": "tanh"}, "'tanh' here"),
        ({"optimizer": "adamw"}, "optimizer: class is 'Adam' in the checkpoint, 'AdamW' here"),
        ({"optimizer": keras.optimizers.Adam(0.5)}, "learning_rate"),
        ({"loss": "mae"}, "loss is 'mse' in the checkpoint, 'mae' here"),
        ({"dtype": "bfloat16"}, "policy"),
    ):
        different = built(**other)
        before = different.layers[0].kernel.numpy()
        with pytest.raises(UserError, match=difference):
            progress(tmp_path, different).restore(different)
        np.testing.assert_array_equal(before, different.layers[0].kernel.numpy())
    # A metric more trains no other model, and neither does the rate that a callback has set.
    same = built(metrics=["mae"])
    kept = progress(tmp_path, same)
    same.optimizer.learning_rate = 0.25
    assert kept.restore(same) == 1


def test_the_folder_is_one_trainings(tmp_path):
    from tfopt.distribute.asynchronous.saved_progress import open_folder

    with ExitStack() as held:
        assert open_folder(tmp_path / "mine", held) == tmp_path / "mine"
        with (
            ThreadPoolExecutor() as other,
            pytest.raises(UserError, match="Another training uses"),
        ):
            other.submit(open_folder, tmp_path / "mine", ExitStack()).result()
