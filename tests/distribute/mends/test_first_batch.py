"""No batch of the data is lost to building the model, and an uneven first one builds it."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt

from .replicas import K, O, built, dense, largest, without, x, y


class Sees(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense, self.seen = K.Dense(1), []

    def call(self, x):
        return self.dense(keras.ops.reshape(x, (-1, 1)))

    def train_step(self, data):
        tf.py_function(self.note, [data[0]], [])
        return super().train_step(data)

    def note(self, x):
        self.seen += [int(n) for n in np.ravel(x)]


def batches(count=10):
    for n in range(count):
        yield np.full((4, 1), n, "float32"), np.zeros((4, 1), "float32")


def endless():
    while True:
        yield from batches()


class Numbered(keras.utils.PyDataset):
    def __len__(self):
        return 10

    def __getitem__(self, n):
        return list(batches())[n]


def fitted(model, x, epochs=1, **settings):
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: model.seen.clear(),
        on_epoch_end=lambda epoch, logs: seen.append(list(model.seen)),
    )
    model.fit(x, epochs=epochs, verbose=0, callbacks=[note], **settings)
    return seen


def seeing():
    with tfopt.distribute(logical_cpus=2):
        model = Sees()
        model.compile(O.SGD(0.0), "mse", jit_compile=False)
    return model


def seen():
    warnings.filterwarnings("ignore", "Your input ran out of data")
    model = seeing()
    return {
        "generator": fitted(model, batches()),
        "endless": fitted(model, endless(), epochs=2, steps_per_epoch=10),
        "threads": fitted(model, Numbered(workers=2), epochs=3, shuffle=False),
    }


def uneven():
    with tfopt.distribute(logical_cpus=2):
        return built(dense, O.SGD)


EACH_ONCE = sorted(4 * list(range(10)))


def unmended():
    without("first_batch")
    found = seen()
    try:
        uneven().fit(x[:7], y[:7], batch_size=8, verbose=0)
    except tf.errors.OpError as error:
        return found, str(error)


@pytest.mark.slow
def test_without_the_mend_batches_are_lost_and_an_uneven_first_one_fails(alone):
    found, failed = alone(unmended)
    assert all(sorted(found[name][0]) != EACH_ONCE for name in ("generator", "endless"))
    assert found["threads"][0][::4] != list(range(10))
    assert "AddN" in failed


def mended():
    found = seen()
    several, alone = uneven(), built(dense, O.SGD)
    for model in (several, alone):
        model.evaluate(x[:3], y[:3], verbose=0)
        model.fit(x[:7], y[:7], batch_size=8, epochs=2, verbose=0, validation_data=(x[:5], y[:5]))
        model.fit(((x[n : n + 7], y[n : n + 7]) for n in range(0, 60, 7)), verbose=0)
    found["gap"] = largest(several.get_weights(), alone.get_weights())
    # Of data that do not say their rank one part is read, and each is still seen.
    kinds, shapes = (tf.float32, tf.float32), (None, (None, 1))
    shapeless = tf.data.Dataset.from_generator(batches, output_types=kinds, output_shapes=shapes)
    found["shapeless"] = fitted(seeing(), shapeless)
    return found


def test_with_it_each_is_seen_once_and_an_uneven_first_one_trains_as_on_one_device(replicas):
    found = replicas(mended)
    assert found.pop("gap") < 1e-6
    assert [len(each) for each in found.values()] == [1, 2, 3, 1]
    assert all(sorted(epoch) == EACH_ONCE for epochs in found.values() for epoch in epochs)
    in_order = [epoch[::4] for epoch in found["threads"]]
    assert in_order == 3 * [list(range(10))]
