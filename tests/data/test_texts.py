"""Texts: those installed here, folders of classes, and mistakes in them."""

import keras
import numpy as np
import pytest

from tfopt.data.sources.image_folder import class_folders
from tfopt.data.texts import load_texts
from tfopt.errors import UserError


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
    assert "once tfds.load('imdb_reviews') has prepared it" in data.note
    with pytest.raises(UserError, match=r"is not prepared|does not work here"):
        load_texts("tfds")


def folder(root, count=5):
    for label in ("ham", "spam"):
        (root / label).mkdir(parents=True)
        for number in range(count):
            (root / label / f"{number}.txt").write_text(f"{label} {number} é", "utf-8")
    return root


def test_a_folder_of_text_files_with_and_without_its_own_test_part(tmp_path):
    data = load_texts(str(folder(tmp_path / "whole")))
    assert (len(data.train[1]), data.test[1].tolist()) == (8, [0, 1])
    assert [*data.test[0]] == ["ham 4 é", "spam 4 é"]
    assert "8 to train and 2 to test" in data.note
    folder(tmp_path / "parts/train", 3), folder(tmp_path / "parts/test", 2)
    data = load_texts(str(tmp_path / "parts"))
    assert (len(data.train[1]), len(data.test[1])) == (6, 4)
    assert class_folders(tmp_path / "parts").classes == ("ham", "spam")
    with pytest.raises(UserError, match="too few texts"):
        load_texts(str(folder(tmp_path / "empty", 0)))


@pytest.mark.parametrize(
    ("folders", "what"),
    [
        ([], "has fewer than two classes"),
        (["one", ".cache"], "has fewer than two classes"),
        (["train/a", "train/b", "test/a", "test/c"], "two classes(.|\n)*a, b and a, c"),
    ],
)
def test_a_folder_without_classes_is_refused(tmp_path, folders, what):
    for name in folders:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(UserError, match=what):
        load_texts(str(tmp_path))


def test_synthetic_texts_are_never_called_real():
    one, two = load_texts("synthetic"), load_texts("synthetic")
    assert "not real text" in one.note
    assert [*one.train[0]] == [*two.train[0]]
    assert set(one.train[1]) == {0, 1}
