"""Several threads that quantize: each file is the one that its model gives alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
from keras import layers

import tfopt

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 20, (64, 6)).astype("int32")
ROWS = RNG.normal(size=(64, 8)).astype("float32")


def reader(seed):
    """A recurrent model with masks, whose zeros LiteRT has in integers as constants only."""
    keras.utils.set_random_seed(seed)
    tokens = keras.Input((6,), dtype="int32")
    spread = keras.initializers.RandomNormal(stddev=1.0)
    words = layers.Embedding(20, 8, spread, mask_zero=True)(tokens)
    return keras.Model(tokens, layers.Dense(3)(layers.LSTM(8)(words)))


def normalizer():
    keras.utils.set_random_seed(0)
    body = [layers.Dense(16, activation="elu"), layers.LayerNormalization(), layers.Dense(4)]
    return keras.Sequential([keras.Input((8,)), *body])


def at_once(*works):
    """What each gives, begun together in a thread of its own."""
    together = threading.Barrier(len(works))

    def begun(work):
        together.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as threads:
        return [each.result() for each in [threads.submit(begun, work) for work in works]]


def test_two_models_at_once_give_the_files_that_they_give_alone():
    models = [reader(seed) for seed in range(2)]
    alone = [tfopt.quantize(model, calibration=TOKENS) for model in models]
    works = [lambda m=model: tfopt.quantize(m, calibration=TOKENS) for model in models]
    for one, made in zip(alone, at_once(*works), strict=True):
        assert made.content == one.content


def test_one_model_in_several_threads_is_afterwards_as_it_was():
    model = normalizer()
    before = [{**vars(layer)} for layer in model.layers]
    kinds = ("int8", "float16", "dynamic")
    works = [lambda k=kind: tfopt.quantize(model, precision=k, calibration=ROWS) for kind in kinds]
    at_once(*works)
    for layer, own in zip(model.layers, before, strict=True):
        assert vars(layer).keys() == own.keys()
        assert all(vars(layer)[name] is value for name, value in own.items())
