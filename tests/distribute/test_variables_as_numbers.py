"""What callbacks read of variables is what they read on one device."""

import keras
import numpy as np

import tfopt

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


def read_inside():
    with tfopt.distribute(logical_cpus=2, verify=False) as scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.25), "mse", metrics=["mae"], jit_compile=False)
        total = keras.metrics.Sum()
        scope.strategy.run(lambda: total.update_state(1.5))
        found = [float(model.optimizer.learning_rate), float(total.total)]
    logs = Logs()
    model.fit(x, x[:, :2], batch_size=16, verbose=0, callbacks=[logs])
    return found, logs.read


def test_they_are_read_as_on_one_device(replicas):
    found, read = replicas(read_inside)
    assert found == [0.25, 3.0]
    assert read == [0.25, "0.250", 0.25, 1, 1, 0.25, "0.250", 0.25, 2, 2]
