"""MNIST: the embedded file, TFDS's own when it is prepared, and what is said when it is not."""

from pathlib import Path

import numpy as np
import pytest

from tfopt.data import mnist
from tfopt.data.mnist import load_mnist
from tfopt.errors import UserError

EMBEDDED = Path(mnist.__file__).with_name("mnist_10k.npz")


def test_the_embedded_digits_are_the_real_ones():
    data = load_mnist("embedded")
    (x, y), (x_test, y_test) = data.train, data.test
    assert (x.shape, x_test.shape) == ((10_000, 28, 28, 1), (10_000, 28, 28, 1))
    assert (x.dtype, y.dtype) == (np.float32, np.int64)
    assert (x.min(), x.max()) == (0.0, 1.0)
    # The first labels, and the class counts, of MNIST as everyone has it.
    assert y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert y_test[:10].tolist() == [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]
    assert np.bincount(y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    assert "10,000" in data.note
    assert EMBEDDED.stat().st_size < 3_400_000
    licence = EMBEDDED.with_name("mnist_10k.LICENSE.md").read_text(encoding="utf-8")
    assert "Attribution-Share Alike 3.0" in licence


def test_without_tfds_auto_takes_the_embedded_digits_and_says_why(tfds, monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "empty"))
    data = load_mnist("auto")
    assert data.name == "embedded MNIST"
    assert "once tfds.load('mnist') has prepared it" in data.note
    with pytest.raises(UserError, match="not prepared") as caught:
        load_mnist("tfds")
    assert "tfds.load('mnist') once, with a network" in caught.value.fix
    assert not (tmp_path / "empty").exists()


def test_what_tfds_has_prepared_is_taken(tfds, tmp_path, monkeypatch):
    builder = tfds.builder("mnist", data_dir=tmp_path)

    def examples(count):
        for i in range(count):
            yield i, {"image": np.full((28, 28, 1), i, np.uint8), "label": i % 10}

    builder._split_generators = lambda manager: {"train": examples(20), "test": examples(8)}
    builder.download_and_prepare()
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert load_mnist("tfds").name == "TFDS mnist"
    data = load_mnist("auto")
    assert data.name == "TFDS mnist"
    assert (len(data.train[1]), len(data.test[1])) == (20, 8)
    assert data.train[0].shape == (20, 28, 28, 1)
    # Every pixel of example i is i.
    assert sorted(np.round(data.train[0][:, 0, 0, 0] * 255).astype(int)) == list(range(20))


def test_synthetic_data_is_never_called_real_and_an_unknown_source_lists_the_known():
    one, two = load_mnist("synthetic"), load_mnist("synthetic")
    assert "not real data" in one.note
    np.testing.assert_array_equal(one.train[0], two.train[0])
    assert one.train[0].shape[1:] == (28, 28, 1)
    assert set(np.unique(one.train[1])) == set(range(10))
    with pytest.raises(UserError, match="embedded"):
        load_mnist("imagenet")
