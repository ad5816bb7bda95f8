"""Load labelled texts: of a folder, TFDS's IMDB reviews, or installed documentation.

Texts are arrays of ``str``, labels int64; ``name`` and ``note`` describe the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

from tfopt.data.sources.image_folder import class_folders
from tfopt.data.sources.tfds import prepared_parts
from tfopt.errors import UserError
from tfopt.job.parts import Data

TEXT_SOURCES = ("auto", "tfds", "embedded", "synthetic")
DOCUMENTED = ("numpy", "keras")
"""The packages whose documentation is the embedded data; tfopt requires both."""


def load_texts(source: str = "auto") -> Data:
    """Return labelled texts.

    Args:
        source: A folder with a sub-folder of .txt files for each class, or with ``train`` and
            ``test`` folders of that kind; "tfds" is ``imdb_reviews``, as ``tfds.load`` has prepared
            it; "embedded" are paragraphs of NumPy's and Keras's documentation, labelled by their
            package; "auto" is the first of these two that exists; "synthetic" is random words.
    """
    if source == "synthetic":
        return _data("synthetic texts", "drawn words, not real text", _drawn(3_000))
    if source not in TEXT_SOURCES:
        *folders, classes = class_folders(source)
        parts_of_folder = [_files(folder, classes) for folder in folders if folder is not None]
        return _data("texts of a folder", f"{len(classes)} classes in {source}", *parts_of_folder)
    parts, reason = prepared_parts(source, "imdb_reviews", "text")
    if parts is not None:
        reviews = (((text.decode(), y) for text, y in zip(*part, strict=True)) for part in parts)
        return _data("TFDS imdb_reviews", "reviews of films", *reviews)
    versions = " and ".join(f"{name} {_installed(name).version}" for name in DOCUMENTED)
    note = f"paragraphs of the docstrings of {versions} ({reason})"
    return _data("installed documentation", note, _documentation())


def _data(name: str, note: str, *parts: Iterable[tuple[str, int]]) -> Data:
    """Return the texts; without a test part, every fifth text becomes one."""
    import numpy as np

    rows, *tests = map(list, parts)
    tests = tests or [rows[4::5]]
    if len(parts) == 1:
        del rows[4::5]
    if not (rows and tests[0]):
        expected = "at least five files that end in .txt, or some in train and in test"
        raise UserError(f"There are too few {name}.", expected=expected, received=len(rows))
    columns = (zip(*part, strict=True) for part in (rows, tests[0]))
    train, test = ((np.array(x, object), np.array(y, np.int64)) for x, y in columns)
    note = f"{note}, {len(rows):,} to train and {len(tests[0]):,} to test"
    return Data(train=train, test=test, name=name, note=note)


def _files(folder: Path, classes: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    for label, name in enumerate(classes):
        for path in sorted((folder / name).glob("*.txt")):
            yield path.read_text("utf-8", "replace"), label


def _installed(package: str) -> Distribution:
    """Return what installed a package: keras may be of keras-nightly."""
    return distribution(packages_distributions()[package][0])


def _documentation() -> Iterable[tuple[str, int]]:
    """Return the paragraphs of prose in the packages' docstrings, without duplicates."""
    labels: dict[str, int] = {}
    for label, package in enumerate(DOCUMENTED):
        modules = (path for path in _installed(package).files or () if path.suffix == ".py")
        for path in (module for module in modules if "tests" not in module.parts):
            docstrings = re.findall(r'"""(.*?)"""', path.read_text("utf-8"), re.DOTALL)
            paragraphs = re.split(r"\n\s*\n", "\n\n".join(docstrings))
            # Shorter ones hardly show their package.
            long = [text for text in paragraphs if len(re.findall(r"[A-Za-z]{2,}", text)) >= 15]
            prose = (" ".join(text.split()) for text in long if ">>>" not in text)
            labels |= dict.fromkeys(prose, label)
    return labels.items()


def _drawn(count: int) -> Iterator[tuple[str, int]]:
    """Draw random words, some of which are frequent in one class: learnable, not real text."""
    import numpy as np

    random = np.random.default_rng(0)
    for label in random.integers(0, 2, count):
        words = random.integers(0, 200, 30)
        words[:6] = 200 + 20 * label + words[:6] % 20
        yield " ".join(f"w{word}" for word in words), label
