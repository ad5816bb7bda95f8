"""Find the classes of a folder of examples: a sub-folder each, or ``train`` and ``test`` of them.

Nothing is read but names, so that a job can be described without loading TensorFlow.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tfopt.errors import UserError


@dataclass(frozen=True)
class ClassFolders:
    """Where the examples lie, and the names of their classes in the order of their numbers."""

    train: Path
    test: Path | None
    classes: tuple[str, ...]


def class_folders(folder: str | Path) -> ClassFolders:
    """Return the classes of a folder; ``test`` is None where no part of it is set aside.

    A folder that holds ``train`` and ``test`` is taken as two such folders, and their classes must
    be the same.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise UserError(
            "There is no such folder of examples.",
            expected="a folder with a sub-folder for each class",
            received=str(folder),
        )
    train, test = root / "train", root / "test"
    if not (train.is_dir() and test.is_dir()):
        return ClassFolders(root, None, _classes(root))
    classes = _classes(train)
    if _classes(test) != classes:
        raise UserError(
            f"{test} does not hold the classes of {train}.",
            expected=", ".join(classes),
            received=", ".join(_classes(test)),
            fix="remove sub-folders that are no classes, or rename them alike in both",
        )
    return ClassFolders(train, test, classes)


def _classes(folder: Path) -> tuple[str, ...]:
    names = tuple(
        sorted(each.name for each in folder.iterdir() if each.is_dir() and each.name[0] != ".")
    )
    if len(names) < 2:
        raise UserError(
            f"{folder} does not hold two classes.",
            expected="a sub-folder for each class, with its examples in it",
            received=", ".join(names) or "no sub-folder",
        )
    return names
