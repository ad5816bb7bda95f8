"""What counts as a job's accuracy."""

import keras
import numpy as np
import pytest

from tfopt import Data, Job
from tfopt.measure.one_variant import timed_training, worst_accuracy


@pytest.mark.parametrize(
    ("metrics", "accuracy"),
    [
        ({"loss": 0.5, "accuracy": 0.9}, 0.9),
        ({"acc": 0.9}, 0.9),
        ({"sparse_categorical_accuracy": 0.8}, 0.8),
        ({"sparse_top_k_categorical_accuracy": 0.9, "sparse_categorical_accuracy": 0.7}, 0.7),
        ({"a_accuracy": 0.9, "b_acc": 0.4}, 0.4),
        ({"binary_accuracy_1": 0.6}, 0.6),
        ({"loss": 0.5}, None),
        # Errors: less of them is better.
        ({"accel_mae": 0.1}, None),
        ({"inaccuracy": 0.1}, None),
        ({"accuracy_loss": 0.1, "accumulated": 0.2, "b_accuracy": 0.7}, 0.7),
        # No share.
        ({"accuracy": 97.0}, None),
        ({"accuracy": float("nan")}, None),
    ],
)
def test_an_accuracy_is_known_by_its_name_and_the_worst_head_counts(metrics, accuracy):
    assert worst_accuracy(metrics) == accuracy


def test_of_two_heads_neither_hides_the_other():
    def build():
        entry = keras.Input((2,))
        heads = {
            name: keras.layers.Dense(2, activation="softmax", name=name)(entry)
            for name in ("easy", "failing")
        }
        return keras.Model(entry, heads)

    def compiled():
        each = dict.fromkeys(("easy", "failing"), "sparse_categorical_crossentropy")
        metrics = {"easy": ["accuracy"], "failing": ["accuracy"]}
        return {"optimizer": keras.optimizers.SGD(1.0), "loss": each, "metrics": metrics}

    x = np.random.default_rng(0).normal(size=(512, 2)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int64")
    # What this head is tested on is the opposite of what it was taught.
    train, test = ((x, {"easy": y, "failing": other}) for other in (y, 1 - y))
    job = Job(build=build, data=lambda: Data(train=train, test=test), compile=compiled, epochs=3)
    figures = timed_training(job, output=None, progress=lambda *_: None).figures
    assert figures.test_accuracy < 0.2
    assert figures.epochs[0].test_accuracy < 0.2
