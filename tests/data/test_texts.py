"""Texts: those installed here, TFDS's when prepared, folders, and mistakes in them."""

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest

from tfopt.data.texts import load_texts
from tfopt.errors import UserError

TINY_IMDB = """
    import sys
    import tensorflow_datasets as tfds

    builder = tfds.builder("imdb_reviews", data_dir=sys.argv[1])

    def splits(manager):
        return {"train": examples(6), "test": examples(4), "unsupervised": examples(1)}

    def examples(count):
        for i in range(count):
            yield i, {"text": f"review {i} \u00e9", "label": i % 2}

    builder._split_generators = lambda *_, **__: splits(None)
    builder.download_and_prepare()
"""


def test_the_installed_documentation_is_real_text_of_two_packages():
    data = load_texts("embedded")
    (x, y), (x_test, y_test) = data.train, data.test
    assert f"numpy {np.__version__} and keras {keras.__version__}" in data.note
    assert set(np.bincount(y) > 1_000) == set(np.bincount(y_test) > 300) == {True}
    # Paragraphs that have stood there for many years.
    assert any("evenly spaced" in text for text in x[y == 0])
    assert any("the layer" in text for text in x[y == 1])
    assert y.dtype == np.int64
    assert len({*x, *x_test}) == len(x) + len(x_test)


def test_without_tfds_auto_takes_what_is_installed_and_says_why(monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    data = load_texts("auto")
    assert data.name == "installed documentation"
    assert "'imdb_reviews' is not prepared" in data.note
    with pytest.raises(UserError, match="not prepared"):
        load_texts("tfds")


def test_a_prepared_tfds_is_taken(tmp_path, monkeypatch):
    code = textwrap.dedent(TINY_IMDB)
    command = [sys.executable, "-c", code, str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, timeout=240)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    data = load_texts("auto")
    assert data.name == "TFDS imdb_reviews"
    assert sorted(data.train[0]) == [f"review {i} é" for i in range(6)]
    assert sorted(data.test[1]) == [0, 0, 1, 1]


def folder(root, count=5):
    for label in ("ham", "spam"):
        (root / label).mkdir(parents=True)
        for number in range(count):
            (root / label / f"{number}.txt").write_text(f"{label} {number} é", "utf-8")
    return root


def test_a_folder_of_text_files(tmp_path):
    data = load_texts(str(folder(tmp_path)))
    assert (len(data.train[1]), data.test[1].tolist()) == (8, [0, 1])
    assert [*data.test[0]] == ["ham 4 é", "spam 4 é"]
    assert "2 classes" in data.note
    assert "8 to train and 2 to test" in data.note


def test_a_folder_with_its_own_test_part(tmp_path):
    folder(tmp_path / "train", 3), folder(tmp_path / "test", 2)
    data = load_texts(str(tmp_path))
    assert (len(data.train[1]), len(data.test[1])) == (6, 4)


def test_a_folder_without_texts_and_what_is_none_are_refused(tmp_path):
    with pytest.raises(UserError, match="too few texts"):
        load_texts(str(folder(tmp_path, 0)))
    with pytest.raises(UserError, match="does not hold two classes"):
        load_texts("imdb")


def test_synthetic_texts_are_never_called_real():
    one, two = load_texts("synthetic"), load_texts("synthetic")
    assert "not real text" in one.note
    assert [*one.train[0]] == [*two.train[0]]
    assert set(one.train[1]) == {0, 1}
