"""The base class of sources, which ``tfopt.pipeline`` and jobs read."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from importlib import import_module
from typing import Any

from tfopt.data.sources.images import Encoded, undecodable
from tfopt.errors import UserError, default_of, first_line, hashable, keep_plain
from tfopt.job.plain_values import did_you_mean

_PLAIN = (str, int, float, bool, tuple, Mapping)


def _repr(value: Any) -> str:
    """Return the ``repr`` of a plain value, and the type of a table."""
    return repr(value) if isinstance(value, _PLAIN) else f"<{type(value).__name__}>"


@dataclass(frozen=True, kw_only=True)
class ReadOrder:
    """How a source is read.

    Attributes:
        shuffle: A new order every epoch; ``seed`` decides the order of the n-th one.
        buffer: Size of the shuffle buffer, in examples.
        seed: Seed of the orders.
    """

    shuffle: bool = False
    buffer: int = 10_000
    seed: int = 0


class Source(ABC):
    """Examples in files, or in tables of an engine.

    A source is a frozen description, whose constructor opens nothing; ``count`` and ``batches``
    open the files, and raise a ``UserError`` that names the file and the column.
    """

    def __post_init__(self) -> None:
        keep_plain(self)
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            plain = os.fspath(value) if isinstance(value, os.PathLike) else hashable(value)
            object.__setattr__(self, field.name, plain)

    def __repr__(self) -> str:
        shown = [
            f"{field.name}={_repr(value)}"
            for field in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, field.name)) is not None
            if not isinstance(value, _PLAIN) or value != default_of(field)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def fingerprint(self) -> str:
        """Return a text that changes with the examples, as far as it shows without reading."""
        return repr(self)

    def count(self) -> int:
        """Return the number of examples, counted once: an engine may compute all for it."""
        return self._count

    @cached_property
    def _count(self) -> int:
        return self.count_examples()

    @abstractmethod
    def count_examples(self) -> int:
        """Count the examples, by metadata or by reading them."""

    @abstractmethod
    def batches(self, batch_size: int, reading: ReadOrder) -> Any:
        """Return a ``tf.data.Dataset`` of batches, with each example once an epoch."""

    def encoded_images(self) -> Iterator[Encoded]:
        """Yield the encoded images, each with its place, to name one that is damaged."""
        return iter(())

    def __iter__(self) -> Iterator[Any]:
        """Yield the examples once, in order, in batches of NumPy arrays."""
        batches = self.batches(256, ReadOrder())
        with refusals(self):
            yield from batches.as_numpy_iterator()


@contextmanager
def refusals(*read: Any) -> Iterator[None]:
    """Raise the ``UserError`` of a source that TensorFlow reports as an ``OpError``.

    The text of the error is inside that of TensorFlow. TensorFlow names no image that cannot be
    decoded; the sources among ``read`` find it.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        texts = re.findall(r"UserError: (.+(?:\n  (?:expected|received|fix): .+)*)", str(error))
        if not texts and "ParseExample" in str(error):
            raise UserError(
                "An example of a TFRecord file differs from the first one.",
                received=first_line(error),
                fix="give spec= with the type of each feature; VarLenFeature where lengths differ",
            ) from error
        if not texts and "DecodeImage" in str(error):
            sources = [part for part in read if isinstance(part, Source)]
            refusal = undecodable(image for part in sources for image in part.encoded_images())
            if refusal is not None:
                raise refusal from error
        if not texts:
            raise
        what, *lines = texts[-1].splitlines()
        parts = dict(line.strip().split(": ", 1) for line in lines)
        raise UserError(what, **parts) from error


def require_known(what: str, known: Iterable[str], asked: Iterable[str]) -> None:
    """Refuse names that are not among the known ones; ``what`` says what is wrong then."""
    missing = [name for name in asked if name not in known]
    if missing:
        raise UserError(
            what,
            expected=f"one of {', '.join(known)}",
            received=", ".join(missing),
            fix=did_you_mean(missing[0], [*known]),
        )


def arranged(values: dict[str, Any], label: str | None, features: Any) -> Any:
    """Return x, or (x, y), of features by name; without ``features`` x has all but the label."""
    if isinstance(features, str):
        x = values[features]
    else:
        x = {name: values[name] for name in features or values if name != label}
    return x if label is None else (x, values[label])


def needs(module: str, source: str, extra: str) -> Any:
    """Return an imported module; name the extra that installs it where it is missing."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(
            f"{source} needs {module.partition('.')[0]}, which is not installed.",
            expected=f"the extra {extra!r} of tfopt",
            received=str(error),
            fix=f"pip install 'tfopt[{extra}]'",
        ) from error
