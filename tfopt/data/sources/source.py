"""The protocol of a source: what ``tfopt.pipeline`` and a job ask of it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from importlib import import_module
from typing import Any

from tfopt.data.sources.images import Encoded, undecodable
from tfopt.errors import UserError, default_of, first_line, keep_plain

_PLAIN = (str, int, float, bool, tuple, Mapping)


def _in_words(value: Any) -> str:
    """Return a plain value as Python writes it, and of a table its type."""
    return repr(value) if isinstance(value, _PLAIN) else f"<{type(value).__name__}>"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a source is read.

    Attributes:
        shuffle: A new order every epoch, the n-th one always the same for a ``seed``.
        buffer: Examples among which they are shuffled.
        seed: Decides the orders.
        drop_remainder: Leave out a smaller last batch.
    """

    shuffle: bool = False
    buffer: int = 10_000
    seed: int = 0
    drop_remainder: bool = False


class Source(ABC):
    """Examples that lie in files, or in tables of an engine.

    A source is a frozen description. Making one opens nothing; ``count`` and ``batches`` look at
    what is there, and raise one ``UserError`` that names the file and the column.
    """

    def __post_init__(self) -> None:
        keep_plain(self)

    def __repr__(self) -> str:
        shown = [
            f"{each.name}={_in_words(value)}"
            for each in fields(self)  # type: ignore[arg-type]
            if (value := getattr(self, each.name)) is not None
            if not isinstance(value, _PLAIN) or value != default_of(each)
        ]
        return f"{type(self).__name__}({', '.join(shown)})"

    def fingerprint(self) -> str:
        """Return a text that is another one where the examples are others, as far as it shows."""
        return repr(self)

    def count(self) -> int:
        """Return the number of examples, found out once: an engine may compute them all for it."""
        return self._count

    @cached_property
    def _count(self) -> int:
        return self.count_examples()

    @abstractmethod
    def count_examples(self) -> int:
        """Count the examples; where nothing says how many there are, by reading them."""

    @abstractmethod
    def batches(self, batch_size: int, how: Reading) -> Any:
        """Return a ``tf.data.Dataset`` of batches: each example once an epoch."""

    def encoded_images(self) -> Iterator[Encoded]:
        """Yield the images of the examples as they are stored, each with its place."""
        return iter(())

    def __iter__(self) -> Iterator[Any]:
        """Yield the examples once, in order, in batches of NumPy arrays."""
        batches = self.batches(256, Reading())
        with refusals(self):
            yield from batches.as_numpy_iterator()


@contextmanager
def refusals(*read: Any) -> Iterator[None]:
    """Raise what a source refuses while it is read as the UserError that it is.

    TensorFlow makes an error of many lines of it, in which its text stands. Of an image that cannot
    be decoded it says nothing; the sources among the data that is ``read`` look for it.
    """
    import tensorflow as tf

    try:
        yield
    except tf.errors.OpError as error:
        texts = re.findall(r"UserError: (.+(?:\n  (?:expected|received|fix): .+)*)", str(error))
        if not texts and "ParseExample" in str(error):
            raise UserError(
                "An example of a TFRecord file is not like the first one.",
                received=first_line(error),
                fix="name each feature's type in spec=; VarLenFeature where lengths differ",
            ) from error
        if not texts and "DecodeImage" in str(error):
            sources = [each for each in read if isinstance(each, Source)]
            named = undecodable(image for each in sources for image in each.encoded_images())
            if named is not None:
                raise named from error
        if not texts:
            raise
        what, *lines = texts[-1].splitlines()
        parts = dict(line.strip().split(": ", 1) for line in lines)
        raise UserError(what, **parts) from error


def needs(module: str, source: str, extra: str) -> Any:
    """Return an imported module, or refuse the source with the extra that installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(
            f"{source} needs {module.partition('.')[0]}, which is not installed.",
            expected=f"the extra {extra!r} of tfopt",
            received=str(error),
            fix=f"pip install 'tfopt[{extra}]'",
        ) from error
