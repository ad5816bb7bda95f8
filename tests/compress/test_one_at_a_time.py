"""Several threads that quantize: each file is the one that its model gives alone."""

import threading
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from keras import layers

import tfopt
from tfopt.compress.integers.functions import functions_of_litert
from tfopt.compress.integers.served_forms import served_forms
from tfopt.compress.integers.unrolled import unrolled_soundly
from tfopt.job.rebuild import blueprint

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


def gets_in_meanwhile(work):
    """Whether another thread is through with something before this one goes on."""
    done = threading.Event()
    other = threading.Thread(target=lambda: (work(), done.set()))
    other.start()
    return done.wait(0.5), other


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
    modes = ("int8", "float16", "keras_int8")
    works = [lambda m=mode: tfopt.quantize(model, mode=m, representative=ROWS) for mode in modes]
    at_once(*works)
    for layer, own in zip(model.layers, before, strict=True):
        assert vars(layer).keys() == own.keys()
        assert all(vars(layer)[name] is value for name, value in own.items())


@pytest.mark.parametrize(
    "context",
    [
        functions_of_litert,
        lambda: unrolled_soundly(reader(0, unroll=True)),
        lambda: served_forms(normalizer(), integers=True),
    ],
    ids=["functions", "unrolled", "served"],
)
def test_who_changes_something_for_a_while_is_alone(context):
    def enter():
        with context():
            pass

    with context():
        early, other = gets_in_meanwhile(enter)
        # The same thread goes on.
        enter()
    other.join()
    assert not early


def test_a_model_is_not_copied_in_the_forms_that_it_is_served_in():
    model = normalizer()
    with served_forms(model, integers=True):
        early, other = gets_in_meanwhile(lambda: blueprint(model))
    other.join()
    assert not early
