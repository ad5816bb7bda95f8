"""MNIST: the embedded file, TFDS's own when it is prepared, and what is said when it is not."""

import gzip
import importlib
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from tfopt.data import mnist
from tfopt.data.mnist import load_mnist
from tfopt.errors import UserError

EMBEDDED = Path(mnist.__file__).with_name("mnist_10k.npz")

TINY_TFDS = """
    import numpy as np
    import tensorflow_datasets as tfds

    builder = tfds.builder("mnist", data_dir={folder!r})

    def splits(manager):
        return {{"train": examples(20), "test": examples(8)}}

    def examples(count):
        for i in range(count):
            yield i, {{"image": np.full((28, 28, 1), i, np.uint8), "label": i % 10}}

    builder._split_generators = splits
    builder.download_and_prepare()
"""


@pytest.fixture
def maker(monkeypatch):
    """The script that makes the embedded file."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    return importlib.import_module("benchmarks.make_embedded_mnist")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """TFDS's mnist, prepared by TFDS's own writer from a few examples."""
    folder = tmp_path_factory.mktemp("tfds")
    code = textwrap.dedent(TINY_TFDS.format(folder=str(folder)))
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=240)
    return folder


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


def test_the_embedded_file_is_small_and_has_its_licence_beside_it():
    assert EMBEDDED.stat().st_size < 3_400_000
    licence = EMBEDDED.with_name("mnist_10k.LICENSE.md").read_text(encoding="utf-8")
    assert "Attribution-Share Alike 3.0" in licence


def test_packing_gives_the_same_bytes_again(maker):
    with np.load(EMBEDDED) as parts:
        arrays = {name: parts[name] for name in sorted(parts)}
    small = {name: values[:50] for name, values in arrays.items()}
    assert maker.packed(small) == maker.packed(small)
    assert maker.select(arrays).keys() == arrays.keys()


def idx(path, values):
    header = bytes((0, 0, 8, values.ndim)) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(header + values.tobytes())
    return path


def test_idx_files_are_read_plain_and_gzipped(tmp_path, maker):
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = idx(tmp_path / "a", values)
    np.testing.assert_array_equal(maker.read_idx(path), values)
    packed_path = tmp_path / "a.gz"
    packed_path.write_bytes(gzip.compress(path.read_bytes()))
    np.testing.assert_array_equal(maker.read_idx(packed_path), values)


def test_a_cut_idx_file_or_a_wrong_folder_writes_nothing(tmp_path, capsys, maker):
    path = idx(tmp_path / "cut", np.zeros((5, 5), np.uint8))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="not a whole IDX file"):
        maker.read_idx(path)
    assert maker.main([str(tmp_path), str(tmp_path / "out.npz")]) == 2
    assert "does not hold MNIST" in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


def test_without_tfds_auto_takes_the_embedded_digits_and_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "empty"))
    data = load_mnist("auto")
    assert data.name == "embedded MNIST"
    assert "'mnist' is not prepared" in data.note
    with pytest.raises(UserError, match="not prepared") as caught:
        load_mnist("tfds")
    assert "tfds.load('mnist') once, with a network" in caught.value.fix
    assert not (tmp_path / "empty").exists()


@pytest.mark.parametrize("source", ["auto", "tfds"])
def test_a_prepared_tfds_is_taken(prepared, monkeypatch, source):
    monkeypatch.setenv("TFDS_DATA_DIR", str(prepared))
    data = load_mnist(source)
    assert data.name == "TFDS mnist"
    assert (len(data.train[1]), len(data.test[1])) == (20, 8)
    assert data.train[0].shape == (20, 28, 28, 1)
    # Every pixel of example i is i.
    assert sorted(np.round(data.train[0][:, 0, 0, 0] * 255).astype(int)) == list(range(20))


def test_synthetic_data_is_never_called_real():
    one, two = load_mnist("synthetic"), load_mnist("synthetic")
    assert "not real data" in one.note
    np.testing.assert_array_equal(one.train[0], two.train[0])
    assert one.train[0].shape[1:] == (28, 28, 1)
    assert set(np.unique(one.train[1])) == set(range(10))


def test_an_unknown_source_lists_the_known():
    with pytest.raises(UserError, match="embedded"):
        load_mnist("imagenet")
