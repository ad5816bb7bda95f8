"""What callbacks read of variables is what they read on one device."""

import keras
import numpy as np

import tfopt
from tfopt.distribute.mends.variables_as_numbers import mended

x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")


class Logs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.read = []

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        rate, step = optimizer.learning_rate, optimizer.iterations
        written = "%.3f" % rate  # noqa: UP031 -- as callbacks write it
        self.read += [float(rate), written, float(rate.value), int(step), int(step.value)]


def built():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(0.25), "mse", metrics=["mae"], jit_compile=False)
    return model


def read_of(model):
    logs = Logs()
    model.fit(x, x[:, :2], batch_size=16, verbose=0, callbacks=[logs])
    return logs.read


def told(value, *kinds):
    found = []
    for kind in kinds:
        try:
            found.append(str(kind(value)))
        except TypeError as error:
            found.append(str(error))
    return found


def read_inside():
    with tfopt.distribute(logical_cpus=2, verify=False) as scope:
        several = built()
        total = keras.metrics.Sum()
        found = {"in the scope": told(several.optimizer.learning_rate, float)}
    found["behind it"] = told(several.optimizer.learning_rate, float)
    scope.strategy.run(lambda: total.update_state(1.5))
    alone = built()
    with mended(scope.strategy):
        found["of all replicas"] = [float(total.total), float(total.result())]
        found["format"] = told(several.optimizer.learning_rate, bool, "{:.4f}".format)
        found["format alone"] = told(alone.optimizer.learning_rate, bool, "{:.4f}".format)
        found["read"] = [read_of(several), read_of(alone)]
    return found


def test_with_it_they_are_read_as_on_one_device(replicas):
    found = replicas(read_inside)
    assert found["in the scope"] == ["0.25"]
    assert "MirroredVariable" in found["behind it"][0]
    assert found["of all replicas"] == [3.0, 3.0]
    assert found["format"] == found["format alone"]
    several, alone = found["read"]
    assert several == alone
    assert several == [0.25, "0.250", 0.25, 1, 1, 0.25, "0.250", 0.25, 2, 2]
