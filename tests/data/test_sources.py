"""How much data of what shape a job has, told without reading it."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import Data
from tfopt.data.sources import describe_data

X, Y = np.zeros((50, 3), "float32"), np.zeros(50, "int64")


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        raise AssertionError("nothing is read")


def unread():
    raise AssertionError("nothing is read")


@pytest.mark.parametrize(
    ("train", "extent"),
    [
        ((X, Y), "50 examples of float32[3], int64[]"),
        (
            tf.data.Dataset.from_tensor_slices((X, Y)).batch(8),
            "7 batches of float32[?x3], int64[?]",
        ),
        (tf.data.Dataset.from_tensors(X).repeat(), "endless batches of float32[50x3]"),
        (Batches(), "7 batches"),
        (unread, "a generator"),
    ],
)
def test_two_data_sets_under_one_name_are_told_apart(train, extent):
    assert describe_data(Data(train=train, name="mine")) == f"mine ({extent})"
