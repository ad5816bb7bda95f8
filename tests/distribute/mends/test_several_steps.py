"""Several steps in one call under several replicas: the weights, logs and steps of one device."""

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt.distribute.mends.several_steps import probe

rng = np.random.default_rng(0)
x = rng.normal(size=(84, 6)).astype("float32")
y = x.sum(axis=1, keepdims=True)


class Told(keras.callbacks.Callback):
    def __init__(self):
        self.steps, self.losses = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(batch)
        self.losses.append(logs["loss"])


def trained(scope=None, each=3, unrolled=1, data=None, **settings):
    keras.utils.set_random_seed(0)
    with scope or contextlib.nullcontext():
        model = keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
        )
        model.compile(
            keras.optimizers.Adam(0.05),
            "mse",
            metrics=["mae"],
            jit_compile=False,
            steps_per_execution=each,
            **settings,
        )
    model.unrolled_steps_per_execution = unrolled
    told = Told()
    arguments = {"x": x, "y": y, "batch_size": 12} if data is None else {"x": data()}
    history = model.fit(
        **arguments,
        epochs=2,
        shuffle=False,
        verbose=0,
        callbacks=[told],
        validation_data=(x[:24], y[:24]),
        validation_batch_size=8,
    )
    return model, {
        "weights": model.get_weights(),
        "history": list(history.history.values()),
        "losses": told.losses,
        "steps": [told.steps, int(model.optimizer.iterations.numpy())],
        "evaluated": model.evaluate(x[:72], y[:72], batch_size=24, verbose=0),
        "predicted": model.predict(x, batch_size=24, verbose=0),
    }


def gap(one, other):
    def flat(values):
        return [np.asarray(v, "float64") for v in tf.nest.flatten(values)]

    pairs = {name: zip(flat(one[name]), flat(other[name]), strict=True) for name in one}
    return {name: max(float(np.abs(a - b).max()) for a, b in pairs[name]) for name in one}


def unmended():
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found = probe(strategy)
    try:
        trained(strategy.scope())
    except tf.errors.InvalidArgumentError as error:
        return found, str(error)


@pytest.mark.slow
def test_without_the_mend_the_first_execution_fails(alone):
    found, error = alone(unmended)
    assert found is True
    assert "placeholder" in error


def unknown_length():
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(12).filter(lambda *_: True)


def mended(cases, count):
    with tfopt.distribute(logical_cpus=count) as scope:
        assert probe(scope.strategy) is False
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of every end that it did not know
        for case in cases:
            several = trained(tfopt.distribute(logical_cpus=count), **case)[1]
            found.append((gap(trained(**case)[1], several), several["steps"][1]))
        model, _ = trained(tfopt.distribute(logical_cpus=count))
        model.train_on_batch(x[:12], y[:12])
    return found


@pytest.mark.parametrize(
    ("cases", "count"),
    [
        ([{"data": unknown_length, "each": 4, "unrolled": 3}], 2),
        pytest.param([{}, {"run_eagerly": True, "each": 8}], 2, marks=pytest.mark.slow),
        pytest.param([{"each": 16}], 4, marks=pytest.mark.slow),
    ],
)
def test_with_it_all_is_as_on_one_device(replicas, alone, cases, count):
    for gaps, steps in (replicas if count == 2 else alone)(mended, cases, count):
        assert gaps.pop("steps") == 0
        assert steps == 14
        # A step's logs are a mean over the replicas' own means so far.
        assert all(each < 2e-5 for each in gaps.values()), gaps
