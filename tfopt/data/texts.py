"""Load labelled texts: IMDB reviews by TFDS, a folder or table of yours, or what is installed here.

Texts come as arrays of ``str``, labels as int64; ``name`` and ``note`` say what was taken, and why.
"""

from __future__ import annotations

import ast
import csv
import re
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tfopt.data.class_folders import class_folders
from tfopt.data.tfds_splits import NotToBeHadError, read_splits
from tfopt.errors import UserError
from tfopt.job.parts import Data

if TYPE_CHECKING:
    import numpy as np

TextSource = Literal["auto", "tfds", "embedded", "synthetic"]
TEXT_SOURCES = get_args(TextSource)
_HOST = "ai.stanford.edu"
_TABLES = {".csv": ",", ".tsv": "\t"}
_HELD_BACK = 5
"""One example of so many is kept for the test, where no test part comes with the data."""

DOCUMENTED = ("numpy", "keras")
"""The packages whose documentation is the embedded data; tfopt needs both anyway."""
_A_PARAGRAPH = 15
"""Fewer words say little about where they come from."""

Part = tuple[list[str], list[int]]


def text_classes(source: str) -> tuple[str, ...]:
    """Return the names of the classes; of a folder or table of yours they are read."""
    if source in TEXT_SOURCES:
        return ("first", "second") if source == "synthetic" else ("negative", "positive")
    if Path(source).suffix in _TABLES:
        return tuple(sorted({label for _, label in _rows(source)}))
    return class_folders(source).classes


def load_texts(source: str = "auto", *, timeout_s: float = 60.0) -> Data:
    """Return labelled texts.

    Args:
        source: A folder with a sub-folder of .txt files for each class (or ``train`` and ``test``
            folders of such, as IMDB's own archive has them); a .csv or .tsv file with the columns
            ``text`` and ``label``; "auto" takes TFDS's ``imdb_reviews`` where it is prepared or
            can be downloaded within the time-out, else the embedded texts; "tfds" insists;
            "embedded" is the documentation of NumPy and Keras as they are installed here, a
            paragraph being labelled by its package; "synthetic" is drawn, not real text.
        timeout_s: How long a download may take before "auto" gives it up.
    """
    if source == "embedded":
        return _documentation("asked for")
    if source == "synthetic":
        return _synthetic()
    if source not in TEXT_SOURCES:
        return _table(source) if Path(source).suffix in _TABLES else _folder(source)
    try:
        return _imdb(timeout_s)
    except NotToBeHadError as error:
        if source == "tfds":
            raise UserError(
                f"TFDS's imdb_reviews is not to be had: {error}.",
                expected="a prepared data set, or a network to download it from",
                fix=error.fix,
            ) from error
        return _documentation(f"TFDS's imdb_reviews is not to be had: {error}")


def _imdb(timeout_s: float) -> Data:
    splits = ("train", "test")
    read, folder = read_splits("imdb_reviews", splits, host=_HOST, timeout_s=timeout_s)
    train, test = (
        _arrays([text.decode("utf-8") for text in part["text"]], part["label"]) for part in read
    )
    note = f"{len(train[1]):,} training and {len(test[1]):,} test reviews from {folder}"
    return Data(train=train, test=test, name="TFDS imdb_reviews", note=note)


def _arrays(texts: list[str], labels: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    import numpy as np

    return np.asarray(texts, dtype=object), np.asarray(labels, dtype=np.int64)


def _folder(source: str) -> Data:
    import keras

    found = class_folders(source)

    def read(path: Path) -> Part:
        dataset = keras.utils.text_dataset_from_directory(
            path, class_names=list(found.classes), batch_size=None, shuffle=False, verbose=False
        )
        texts, labels = zip(*dataset.as_numpy_iterator(), strict=True)
        return [text.decode("utf-8", "replace") for text in texts], [*labels]

    whole = read(found.train)
    train, test = _held_back(whole) if found.test is None else (whole, read(found.test))
    note = f"{len(found.classes)} classes in {found.train}, {_counts(train, test)}"
    return Data(train=_arrays(*train), test=_arrays(*test), name="texts of a folder", note=note)


def _table(source: str) -> Data:
    classes = text_classes(source)
    rows = [*_rows(source)]
    train, test = _held_back(([text for text, _ in rows], [classes.index(c) for _, c in rows]))
    note = f"{len(classes)} classes in {source}, {_counts(train, test)}"
    return Data(train=_arrays(*train), test=_arrays(*test), name="texts of a table", note=note)


def _rows(source: str) -> Iterator[tuple[str, str]]:
    path = Path(source).expanduser()
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, delimiter=_TABLES[path.suffix], strict=True)
            names = rows.fieldnames or ()
            if not {"text", "label"} <= {*names}:
                raise UserError(
                    f"{source} has not the columns that are needed.",
                    expected="a first line that names the columns text and label",
                    received=", ".join(names) or "an empty file",
                )
            for row in rows:
                if row["text"] is None or row["label"] is None:
                    raise UserError(
                        f"{source}, line {rows.line_num}: a value is missing.",
                        expected=f"{len(names)} values",
                        received=f"{sum(value is not None for value in row.values())}",
                    )
                yield row["text"], row["label"]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{source} cannot be read.",
            expected="a table of texts in UTF-8, values with line ends in quotes",
            received=f"{type(error).__name__}: {error}",
        ) from error


def _held_back(whole: Part) -> tuple[Part, Part]:
    """Return the training part, and every fifth example of each class for the test."""
    parts: tuple[Part, Part] = (([], []), ([], []))
    seen: dict[int, int] = {}
    for text, label in zip(*whole, strict=True):
        number = seen[label] = seen.get(label, -1) + 1
        texts, labels = parts[number % _HELD_BACK == _HELD_BACK - 1]
        texts.append(text)
        labels.append(label)
    if not parts[1][0]:
        raise UserError(
            "There are too few texts to hold some back for the test.",
            expected=f"at least {_HELD_BACK} of a class",
            received=f"{len(whole[0])} in all",
        )
    return parts


def _counts(train: Part, test: Part) -> str:
    return f"{len(train[0]):,} to train and {len(test[0]):,} to test"


def _documentation(reason: str) -> Data:
    """Return paragraphs of docstrings; the test's come from modules that training has not seen."""
    train: Part = ([], [])
    test: Part = ([], [])
    for label, package in enumerate(DOCUMENTED):
        seen: set[str] = set()
        for number, source in enumerate(_modules(package)):
            texts, labels = test if number % _HELD_BACK == _HELD_BACK - 1 else train
            fresh = [text for text in _paragraphs(source) if text not in seen]
            seen.update(fresh)
            texts += fresh
            labels += [label] * len(fresh)
    versions = " and ".join(f"{name} {version(name)}" for name in DOCUMENTED)
    note = f"paragraphs of the docstrings of {versions}, {_counts(train, test)} ({reason})"
    return Data(
        train=_arrays(*train), test=_arrays(*test), name="installed documentation", note=note
    )


def _modules(package: str) -> Iterator[str]:
    """Yield the source of each module but the tests, in the order of their paths."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        if "tests" not in path.relative_to(root).parts:
            yield path.read_text(encoding="utf-8")


def _paragraphs(source: str) -> Iterator[str]:
    """Yield each paragraph of prose in the docstrings of a module once, on one line."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented):
            for paragraph in re.split(r"\n\s*\n", ast.get_docstring(node) or ""):
                words = re.findall(r"[A-Za-z]{2,}", paragraph)
                if len(words) >= _A_PARAGRAPH and ">>>" not in paragraph:
                    found[" ".join(paragraph.split())] = None
    yield from found


def _synthetic() -> Data:
    """Draw words of which each class has its favourites: learnable, not real text."""
    import numpy as np

    def draw(count: int, seed: int) -> tuple[Any, Any]:
        random = np.random.default_rng(seed)
        labels = random.integers(0, 2, count)
        words = random.integers(0, 200, (count, 30))
        favourites = random.uniform(size=words.shape) < 0.2
        words = np.where(favourites, 200 + 20 * labels[:, None] + words % 20, words)
        return _arrays([" ".join(f"w{word}" for word in row) for row in words], labels)

    note = "drawn words, not real text"
    return Data(train=draw(2_000, 0), test=draw(1_000, 1), name="synthetic texts", note=note)
