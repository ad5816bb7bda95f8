"""check_examples: each mistake is one clear error, before anything is trained."""

import numpy as np
import pytest
import tensorflow as tf
from in_batches import Batches

from tfopt.data.examples_checks import check_examples
from tfopt.data.fit_data import examples_of
from tfopt.errors import UserError

X = np.zeros((40, 3), "float32")
Y = np.arange(40) % 10
NAN = X.copy()
NAN[7, 1] = np.nan


def dataset(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(8)


BAD = {
    "no rows": ((X[:0], Y[:0]), "yields nothing"),
    "lengths": ((X, Y[:5]), "x has 40, y has 5"),
    "nan": ((NAN, Y), "example 7"),
    "nan inside": (({"a": X, "b": NAN}, Y), r"x\['b'\]"),
    "inf": ((X, Y, np.full(40, np.inf)), "sample_weight"),
    "nan in a dataset": (dataset(NAN, Y), "first batch, number 7"),
    "nan in a pydataset": (Batches(NAN, Y, size=8), "first batch, number 7"),
    "label high": ((X, Y + 1), "label 10 in example 9"),
    "label low": ((X, Y - 1), "label -1 in example 0"),
    "objects": ((np.array([{}] * 40, dtype=object), Y), "dtype object"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_examples_are_one_clear_error(name):
    part, words = BAD[name]
    with pytest.raises(UserError, match=rf"The (test )?data(.|\n)*{words}"):
        check_examples(examples_of(part), name="test", classes=10)


def test_arrays_are_looked_at_whole_and_of_what_yields_batches_the_first():
    nested = ({"a": X, "b": [X, X], "text": np.array(["a"] * 40)}, Y, np.ones(40))
    for part, looked_at in ((nested, 40), (X, 40), (dataset(X, Y), 8), (Batches(X, Y, size=8), 8)):
        assert check_examples(examples_of(part), name="train", classes=10) == looked_at
    assert check_examples(examples_of((X, Y + 1)), name="train", classes=None) == 40


def test_batches_of_different_structures_name_both():
    def batches():
        yield X, Y
        yield {"a": X, "b": X}, Y

    with pytest.raises(UserError, match=r"expected: x, y, as(.|\n)*x\['a'\], x\['b'\], y"):
        examples_of(batches).read()


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
