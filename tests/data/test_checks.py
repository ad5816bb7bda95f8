"""check_examples: each mistake is one clear error, before anything is trained."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt.data.examples_checks import check_examples
from tfopt.data.fit_data import examples_of
from tfopt.errors import UserError

X = np.zeros((40, 3), "float32")
Y = np.arange(40) % 10
NAN = X.copy()
NAN[7, 1] = np.nan


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return -(-len(self.x) // 8)

    def __getitem__(self, i):
        return self.x[i * 8 : i * 8 + 8], self.y[i * 8 : i * 8 + 8]


def dataset(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


GOOD = {
    "arrays": (X, Y),
    "x alone": X,
    "weights": (X, Y, np.ones(40)),
    "tensors": (tf.constant(X), tf.constant(Y)),
    "nested": ({"a": X, "b": [X, X]}, Y),
    "text": (np.array(["a"] * 40), Y),
    "dataset": dataset(X, Y),
    "pydataset": Batches(X, Y),
    "generator": lambda: iter([(X, Y)]),
}


@pytest.mark.parametrize("name", GOOD)
def test_good_examples_pass_and_are_counted(name):
    # Of what yields batches the first one is looked at: of eight, or all in the generator's case.
    looked_at = 8 if name in ("dataset", "pydataset") else 40
    assert check_examples(examples_of(GOOD[name]), name="train", classes=10) == looked_at
    assert check_examples(examples_of((X, Y + 1)), name="train", classes=None) == 40


BAD = {
    "no rows": ((X[:0], Y[:0]), "yields nothing"),
    "lengths": ((X, Y[:5]), "x has 40, y has 5"),
    "nan": ((NAN, Y), "example 7"),
    "nan inside": (({"a": X, "b": NAN}, Y), r"x\['b'\]"),
    "inf": ((X, Y, np.full(40, np.inf)), "sample_weight"),
    "nan in a dataset": (dataset(NAN, Y), "first batch, number 7"),
    "nan in a pydataset": (Batches(NAN, Y), "first batch, number 7"),
    "label high": ((X, Y + 1), "label 10 in example 9"),
    "label low": ((X, Y - 1), "label -1 in example 0"),
    "objects": ((np.array([{}] * 40, dtype=object), Y), "dtype object"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_examples_are_one_clear_error(name):
    part, words = BAD[name]
    with pytest.raises(UserError, match=rf"The (test )?data(.|\n)*{words}"):
        check_examples(examples_of(part), name="test", classes=10)


def test_an_ignored_class_is_no_mistake():
    void, images = np.array([[[0, 9, 255]] * 2] * 40), np.zeros((40, 2, 3, 1), "float32")
    for part in ((images, void), dataset(images, void.astype("float32"))):
        assert check_examples(examples_of(part), name="train", classes=10, ignored=255)
        with pytest.raises(UserError, match="out of range"):
            check_examples(examples_of(part), name="train", classes=10)
        with pytest.raises(UserError, match="or 255, which the loss ignores"):
            check_examples(examples_of(part), name="train", classes=5, ignored=255)


def test_one_hot_labels_under_a_sparse_loss_name_the_loss_to_take():
    with pytest.raises(UserError, match="one-hot") as caught:
        check_examples(examples_of((X, np.eye(10)[Y])), name="train", classes=10)
    assert "categorical_crossentropy" in caught.value.fix
