"""Find the classes of a folder: its sub-folders, or those of its ``train`` and ``test``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tfopt.errors import UserError


class ClassFolders(NamedTuple):
    """The folders of the examples, and the names of the classes in the order of their indices."""

    train: Path
    test: Path | None
    classes: tuple[str, ...]


def class_folders(folder: str | Path) -> ClassFolders:
    """Return the classes of a folder; ``test`` is None without a separate test part."""
    root = Path(folder).expanduser()
    train, test = root / "train", root / "test"
    parts = [train, test] if train.is_dir() and test.is_dir() else [root]
    classes, *others = (
        sorted(path.name for path in part.glob("[!.]*") if path.is_dir()) for part in parts
    )
    if len(classes) < 2 or others not in ([], [classes]):
        raise UserError(
            f"{folder} has fewer than two classes, or train and test differ in them.",
            expected="a sub-folder for each class, the same ones in train and test",
            received=" and ".join(", ".join(names) or "none" for names in (classes, *others)),
        )
    return ClassFolders(parts[0], test if others else None, tuple(classes))
