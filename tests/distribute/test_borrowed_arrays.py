"""Arrays that Python code yields hold the same numbers after a training as before it."""

import warnings

import keras
import numpy as np

import tfopt
from tests.distribute.training import K, O, net


def aligned(count):
    there = np.zeros(count + 16, "float32")
    begin = -there.ctypes.data % 64 // 4
    return there[begin : begin + count, None]


inputs, targets = aligned(256), aligned(256)


def batches():
    for n in range(0, 256, 32):
        yield inputs[n : n + 32], targets[n : n + 32]


class Slices(keras.utils.PyDataset):
    def __len__(self):
        return 8

    def __getitem__(self, n):
        return list(batches())[n]


def overwritten(model):
    found = {}
    sources = {
        "generator": batches,
        "PyDataset": Slices,
    }
    for name, source in sources.items():
        inputs[:, 0] = targets[:, 0] = np.arange(256) / 256
        model.fit(source(), shuffle=False, verbose=0)
        found[name] = int((inputs[:, 0] != np.arange(256) / 256).sum())
        found[name] += int((targets[:, 0] != np.arange(256) / 256).sum())
    return found


def trained_both():
    warnings.filterwarnings("ignore", "Your input ran out of data")
    with tfopt.distribute(logical_cpus=2, verify=False):
        several = net(lambda: [K.Dense(1)], O.SGD, inputs=(1,))()
    found = overwritten(several)
    alone = net(lambda: [K.Dense(1)], O.SGD, inputs=(1,))()
    assert not any(overwritten(alone).values())
    return found


def test_they_are_as_before(replicas):
    assert not any(replicas(trained_both).values())
