"""What cannot go on is refused or named in a warning, before anything is changed."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from trainings import Crash, X, Y, assert_same, compiled, dataset, fit, network, state, values

import tfopt
from tfopt import UserError
from tfopt.files import alone_in


@pytest.fixture(scope="module")
def broken_off(tmp_path_factory):
    """A folder of a training that broke off in its second epoch."""
    folder = tmp_path_factory.mktemp("broken") / "checkpoints"
    with pytest.raises(Crash):
        fit(lambda: (compiled(None, keras.layers.Dropout(0.1)), {"x": dataset()}), folder, breaks=7)
    return folder


def test_what_trains_no_other_model_is_not_refused(tmp_path):
    def make():
        inner = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])
        x = keras.Input((6,))
        h = keras.layers.Lambda(lambda value: value * 2)(inner(x))
        start = keras.initializers.RandomNormal(seed=int(np.random.default_rng().integers(1 << 30)))
        y = keras.layers.Dense(1, kernel_initializer=start, kernel_constraint="max_norm")(
            keras.layers.Dropout(0.1, seed=3)(h)
        )
        model = keras.Model(x, y)
        model.compile("sgd", [keras.losses.Huber()], loss_weights=[2.0], jit_compile=False)
        return model, {"x": dataset()}

    with pytest.raises(Crash):
        fit(make, tmp_path, breaks=2)
    assert len(fit(make, tmp_path)[1].epoch) == 3


def dropout(rate=0.1):
    return keras.layers.Dropout(rate)


def after_dense(units=8, **settings):
    """The model of the training that broke off, with another first layer."""
    dense = keras.layers.Dense(units, "tanh", **settings)
    model = keras.Sequential([keras.Input((6,)), dense, dropout(), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.02), "mse")
    return model


def of_mae():
    model = network(dropout())
    model.compile(keras.optimizers.Adam(0.02), "mae")
    return model


def same():
    return compiled(None, dropout())


ADAM, SGD = keras.optimizers.Adam, keras.optimizers.SGD


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (lambda: compiled(ADAM(0.5), dropout()), {}, "optimizer: learning_rate is 0.0199"),
        (
            lambda: compiled(SGD(0.02), dropout()),
            {},
            "class is 'Adam' in the checkpoint, 'SGD' here",
        ),
        (lambda: compiled(None, dropout(0.3)), {}, "rate is 0.1 in the checkpoint, 0.3 here"),
        (lambda: after_dense(9), {}, "units is 8 in the checkpoint, 9 here"),
        (of_mae, {}, "loss is 'mse' in the checkpoint, 'mae' here"),
        (lambda: after_dense(dtype="mixed_bfloat16"), {}, "policy is 'float32' in the checkpoint"),
        (same, {"batch": 4}, "data: batches is 5 in the checkpoint, 10 here"),
        (same, None, "data: kind is 'TFDataset' in the checkpoint, 'ArrayData' here"),
    ],
)
def test_another_training_is_refused_and_left_alone(model, data, message, broken_off):
    made = model()
    arrays = {"x": X, "y": Y, "shuffle": False}
    settings = arrays if data is None else {"x": dataset(**data)}
    before = values(made.weights)
    files = {path: path.read_bytes() for path in broken_off.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="belongs to another training") as caught:
        fit(lambda: (made, settings), broken_off)
    assert message in str(caught.value)
    assert_same(values(made.weights), before)
    assert files == {path: path.read_bytes() for path in broken_off.rglob("*") if path.is_file()}


def unchanged(x, y):
    return x, y


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: {"x": dataset(seed=None)}, "shuffle without a seed"),
        (lambda: {"x": X, "y": Y}, "shuffle=True without a seed"),
        (lambda: {"x": dataset().map(unchanged, 2, deterministic=False)}, "deterministic=False"),
    ],
)
def test_an_order_that_cannot_come_back_is_refused_with_the_fix(data, message, tmp_path):
    def make():
        tf.random.set_seed(None)
        return compiled(), data()

    with pytest.raises(UserError, match=message) as caught:
        fit(make, tmp_path / "checkpoints")
    assert "seed" in str(caught.value).split("fix:")[1]


def test_the_folder_is_free_again_after_an_error_also_under_another_name(tmp_path):
    def make():
        return compiled(), {"x": dataset()}

    (tmp_path / "link").symlink_to(tmp_path)
    # The error is held on to, and with it the frame of the fit in which it was raised.
    with pytest.raises(Crash) as caught:
        fit(make, tmp_path / "one", breaks=2)
    model, _ = fit(make, tmp_path / "link/one", epochs=1)
    assert int(model.optimizer.iterations.numpy()) == 5
    assert caught.value is not None


def test_other_trainings_callbacks_and_loops_are_refused(tmp_path):
    def make():
        return compiled(), {"x": dataset()}

    # A lock is of an open file, so that this process can hold it against itself.
    with alone_in(tmp_path), pytest.raises(UserError, match="or training writes to"):
        fit(make, tmp_path, epochs=1)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(UserError, match="BackupAndRestore, Resume"):
        fit(make, tmp_path, callbacks=[backup])
    callback = tfopt.resume(tmp_path)
    callback.set_model(compiled())
    with pytest.raises(UserError, match=r"works only in model\.fit\(\)"):
        callback.on_train_begin()
    (tmp_path / "file").write_text("")
    model, settings = make()
    before = state(model)
    with pytest.raises(UserError, match="cannot be written to"):
        fit(lambda: (model, settings), tmp_path / "file")
    assert_same(state(model)[: len(before)], before)


def test_wrong_settings_are_refused(tmp_path):
    wrong = {"every_steps": 2.5, "every_seconds": -1, "keep": 0}
    for name, value in wrong.items():
        with pytest.raises(UserError, match=name):
            tfopt.resume(tmp_path, **{name: value})
    for folder in (None, "", 3):
        with pytest.raises(UserError, match=r"Invalid resume\(folder\)"):
            tfopt.resume(folder)
