"""Find the classes of a folder: a sub-folder each, or ``train`` and ``test`` of such."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tfopt.errors import UserError


class ClassFolders(NamedTuple):
    """Where the examples lie, and the names of their classes in the order of their numbers."""

    train: Path
    test: Path | None
    classes: tuple[str, ...]


def class_folders(folder: str | Path) -> ClassFolders:
    """Return the classes of a folder; ``test`` is None where no part of it is set aside."""
    root = Path(folder).expanduser()
    train, test = root / "train", root / "test"
    parts = [train, test] if train.is_dir() and test.is_dir() else [root]
    classes, *others = (
        sorted(each.name for each in part.glob("[!.]*") if each.is_dir()) for part in parts
    )
    if len(classes) < 2 or others not in ([], [classes]):
        raise UserError(
            f"{folder} does not hold two classes or more.",
            expected="a sub-folder for each class, the same in train and test where there are such",
            received=" and ".join(", ".join(names) or "none" for names in (classes, *others)),
        )
    return ClassFolders(parts[0], test if others else None, tuple(classes))
