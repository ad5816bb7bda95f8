"""Several threads that quantize: each file is the one that its model gives alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfopt
from tfopt.compress.integers.unrolled import unrolled_soundly

RNG = np.random.default_rng(0)
TOKENS = RNG.integers(0, 20, (64, 6)).astype("int32")
ROWS = RNG.normal(size=(64, 8)).astype("float32")


def reader(seed, *, unroll=False):
    """A recurrent model with masks, whose zeros LiteRT has in integers as constants only."""
    keras.utils.set_random_seed(seed)
    tokens = keras.Input((6,), dtype="int32")
    words = layers.Embedding(20, 8, mask_zero=True)(tokens)
    return keras.Model(tokens, layers.Dense(3)(layers.LSTM(8, unroll=unroll)(words)))


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
    alone = [tfopt.quantize(model, representative=TOKENS) for model in models]
    works = [lambda m=model: tfopt.quantize(m, representative=TOKENS) for model in models]
    for one, made in zip(alone, at_once(*works), strict=True):
        assert made.fully_integer
        assert made.content == one.content


def test_one_model_in_several_threads_is_afterwards_as_it_was():
    model = normalizer()
    before = [{**vars(layer)} for layer in model.layers]
    modes = ("int8", "float16", "dynamic")
    works = [lambda m=mode: tfopt.quantize(model, mode=m, representative=ROWS) for mode in modes]
    at_once(*works)
    for layer, own in zip(model.layers, before, strict=True):
        assert vars(layer).keys() == own.keys()
        assert all(vars(layer)[name] is value for name, value in own.items())


def test_a_loop_that_another_thread_trains_keeps_its_zeros():
    """Where a mask begins with a hidden step, the loop carries zeros from step to step."""
    model, other = reader(0, unroll=True), reader(1)
    hidden = np.where(np.arange(6) < 2, 0, TOKENS)
    wanted = other(hidden).numpy()
    with unrolled_soundly(model), ThreadPoolExecutor(1) as thread:
        found = thread.submit(lambda: tf.function(other)(hidden).numpy()).result()
    # Eager and compiled, rounding apart.
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
