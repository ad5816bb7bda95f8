"""Several threads that quantize: each file is the one that its model gives alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
from keras import layers

import tfopt

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 20, (64, 6)).astype("int32")


def reader(seed):
    """A recurrent model with masks, whose zeros LiteRT has in integers as constants only."""
    keras.utils.set_random_seed(seed)
    tokens = keras.Input((6,), dtype="int32")
    spread = keras.initializers.RandomNormal(stddev=1.0)
    words = layers.Embedding(20, 8, spread, mask_zero=True)(tokens)
    return keras.Model(tokens, layers.Dense(3)(layers.LSTM(8)(words)))


def at_once(*works):
    """What each gives, begun together in a thread of its own."""
    together = threading.Barrier(len(works))

    def begun(work):
        together.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as threads:
        return [each.result() for each in [threads.submit(begun, work) for work in works]]


def test_each_file_is_the_one_that_its_model_gives_alone_and_the_models_are_as_they_were():
    one, other = (reader(seed) for seed in range(2))
    works = [
        lambda m=model, k=kind: tfopt.quantize(m, precision=k, calibration=TOKENS).content
        for model, kind in ((one, "int8"), (other, "int8"), (one, "dynamic"))
    ]
    before = [{**vars(layer)} for layer in one.layers]
    alone = [work() for work in works]
    assert at_once(*works) == alone
    for layer, own in zip(one.layers, before, strict=True):
        assert vars(layer).keys() == own.keys()
        assert all(vars(layer)[name] is value for name, value in own.items())
