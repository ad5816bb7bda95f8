"""Read a folder of images with a sub-folder for each class, by Keras's reader."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tfopt.data.sources.images import Encoded, require_image_shape
from tfopt.data.sources.source import ReadOrder, Source
from tfopt.errors import UserError, first_line


@dataclass(frozen=True, repr=False)
class ImageFolder(Source):
    """Images as ``keras.utils.image_dataset_from_directory`` reads them, with integer labels.

    Attributes:
        path: The folder; each sub-folder is a class, numbered in the order of their names.
        size: Height and width to resize every image to.
        channels: 1, 3 or 4.

    Example:
        data = tfopt.pipeline(ImageFolder("flowers", size=(224, 224)), batch_size=64)
    """

    path: str
    size: tuple[int, int] = (224, 224)
    channels: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require_image_shape("ImageFolder", (*self.size, self.channels))

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes, in the order of their indices."""
        return class_folders(self.path).classes

    def count_examples(self) -> int:
        return len(self.files())

    def files(self) -> list[str]:
        """Return the paths of the images, in the order of their classes."""
        return list(self._read(shuffle=False, seed=0).file_paths)

    def encoded_images(self) -> Iterator[Encoded]:
        for path in self.files():
            yield Encoded(path, Path(path).read_bytes(), self.channels)

    def batches(self, batch_size: int, reading: ReadOrder) -> Any:
        images = self._read(shuffle=reading.shuffle, seed=reading.seed)
        return images.batch(batch_size)

    def _read(self, *, shuffle: bool, seed: int) -> Any:
        """Return a dataset of single images; Keras shuffles their paths, not the images."""
        import keras

        try:
            return keras.utils.image_dataset_from_directory(
                str(class_folders(self.path).train),
                batch_size=None,
                image_size=self.size,
                color_mode={1: "grayscale", 3: "rgb", 4: "rgba"}[self.channels],
                shuffle=shuffle,
                seed=seed,
                verbose=False,
            )
        except ValueError as error:
            raise UserError(
                f"{self.path} holds no images.",
                expected="JPEG, PNG, GIF or BMP files in a sub-folder for each class",
                received=first_line(error),
            ) from error


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
