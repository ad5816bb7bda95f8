"""Which classes a folder of examples holds, and what is said of one that holds none."""

from pathlib import Path

import pytest

from tfopt.data.class_folders import class_folders
from tfopt.errors import UserError


def made(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).mkdir(parents=True)
    return root


def test_each_sub_folder_is_a_class(tmp_path):
    found = class_folders(made(tmp_path, "dog", "cat", ".cache"))
    assert found.classes == ("cat", "dog")
    assert (found.train, found.test) == (tmp_path, None)


def test_train_and_test_are_two_such_folders(tmp_path):
    found = class_folders(made(tmp_path, "train/b", "train/a", "test/a", "test/b"))
    assert found.classes == ("a", "b")
    assert (found.train, found.test) == (tmp_path / "train", tmp_path / "test")


@pytest.mark.parametrize(
    ("folders", "what"),
    [
        ([], "does not hold two classes"),
        (["one"], "does not hold two classes"),
        (["train/a", "train/b", "test/a", "test/c"], "two classes(.|\n)*a, b and a, c"),
    ],
)
def test_another_folder_is_refused(tmp_path, folders, what):
    with pytest.raises(UserError, match=what):
        class_folders(made(tmp_path, *folders))
    with pytest.raises(UserError, match="nowhere does not hold"):
        class_folders(tmp_path / "nowhere")
