"""Texts: those installed here, TFDS's when prepared, folders and tables, and mistakes in them."""

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest

from tfopt.data.texts import load_texts, text_classes
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


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """An empty TFDS folder, and a proxy that refuses: no network, whatever this machine has."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "empty"))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")


@pytest.fixture(scope="module")
def installed():
    return load_texts("embedded")


def test_the_installed_documentation_is_real_text_of_two_packages(installed):
    (x, y), (_, y_test) = installed.train, installed.test
    assert f"keras {keras.__version__}" in installed.note
    assert f"numpy {np.__version__}" in installed.note
    assert set(np.bincount(y) > 1_000) == set(np.bincount(y_test) > 300) == {True}
    # A paragraph of a docstring that has stood there for many years.
    assert any("evenly spaced" in text for text in x[y == 0])
    assert any("layer" in text for text in x[y == 1])
    assert y.dtype == np.int64


def test_no_text_of_one_package_is_in_both_parts(installed):
    (x, y), (x_test, y_test) = installed.train, installed.test
    train = set(zip(x, y.tolist(), strict=True))
    assert len(train) == len(x)
    assert not train & {*zip(x_test, y_test.tolist(), strict=True)}


def test_without_tfds_auto_takes_what_is_installed_and_says_why(nowhere):
    data = load_texts("auto")
    assert data.name == "installed documentation"
    assert "ai.stanford.edu cannot be reached" in data.note
    with pytest.raises(UserError, match="cannot be reached") as caught:
        load_texts("tfds")
    assert "--data=embedded" in caught.value.fix


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
    assert text_classes(str(tmp_path)) == ("ham", "spam")
    assert (len(data.train[1]), data.test[1].tolist()) == (8, [0, 1])
    assert [*data.test[0]] == ["ham 4 é", "spam 4 é"]
    assert "8 to train and 2 to test" in data.note


def test_a_folder_with_its_own_test_part(tmp_path):
    folder(tmp_path / "train", 3), folder(tmp_path / "test", 2)
    data = load_texts(str(tmp_path))
    assert (len(data.train[1]), len(data.test[1])) == (6, 4)


@pytest.mark.parametrize(("ending", "mark"), [("csv", ","), ("tsv", "\t")])
def test_a_table(tmp_path, ending, mark):
    lines = [mark.join(("label", "id", "text"))]
    lines += [mark.join((f"c{i % 2}", str(i), f'"text {i}, {mark}of ""two"""')) for i in range(10)]
    path = tmp_path / f"mine.{ending}"
    path.write_text("\n".join(lines), "utf-8")
    data = load_texts(str(path))
    assert text_classes(str(path)) == ("c0", "c1")
    assert [*data.test[0]] == [f'text {i}, {mark}of "two"' for i in (8, 9)]
    assert data.train[1].tolist() == [0, 1] * 4


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("text,kind\na,b\n", "has not the columns"),
        ("", "has not the columns"),
        ("text,label\na,b\nc\n", "line 3: a value is missing"),
        ('text,label\n"a,b\n', "cannot be read"),
        ("text,label\na,b\nc,d\n", "too few texts"),
    ],
)
def test_a_table_with_a_mistake_is_refused(tmp_path, text, what):
    path = tmp_path / "mine.csv"
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match=what):
        load_texts(str(path))


def test_synthetic_texts_are_never_called_real():
    one, two = load_texts("synthetic"), load_texts("synthetic")
    assert "not real text" in one.note
    assert [*one.train[0]] == [*two.train[0]]
    assert set(one.train[1]) == {0, 1}


def test_what_is_neither_source_nor_file_is_refused():
    with pytest.raises(UserError, match="no such folder"):
        load_texts("imdb")
    with pytest.raises(UserError, match="cannot be read"):
        load_texts("nowhere.csv")
