"""Trained ranges that a conversion does without, where several of them are joined.

Guarantees: nothing is left out but inside the context, in its thread; the model is only read. What
LiteRT joins has one range, and the converter refuses a trained one beside one that it found itself:
inside code of one's own, or behind what has no integer kernel (a sine, a cumulative sum). Of what
is joined there it then finds all ranges.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tfopt.compress.model_graph import computes_as_keras, find, kinds, parts, places

if TYPE_CHECKING:
    from tfopt.compress.quantize_plan import Point

_left = threading.local()
_JOINING = frozenset({"Concatenate", "Stack", "Maximum", "Minimum", "Where", "Triu", "Tril"})
REFUSED = ("same scale constraint", "kTfLiteFloat32 (INT8 != FLOAT32)")
"""What the converter writes where it refuses ranges beside each other, or one that comes late."""


@contextmanager
def ranges_left(points: frozenset[str]) -> Iterator[None]:
    """Inside it the points of these paths are converted without their trained ranges."""
    _left.paths = points
    try:
        yield
    finally:
        _left.paths = frozenset()


def is_left(point: Point) -> bool:
    """Whether this thread's conversion does without a point's ranges."""
    return point.path in getattr(_left, "paths", ())


def points_that_are_joined(model: Any) -> frozenset[str]:
    """The paths of what a user's code, or a joining, takes or gives in an aware model."""
    awareness = getattr(model, "quantization_awareness", None)
    points = () if awareness is None else awareness.points
    return frozenset(point.path for point in points if _is_beside(model, point))


def _is_beside(model: Any, point: Point) -> bool:
    own = find(model, point.address)
    known = places(find(model, point.address[:-1]))
    if known is None:
        # Without a graph it is a user's code that leads from one part to the next.
        return True
    inputs = (part for _, part in parts(model) if "InputLayer" in kinds(part))
    takers = [known[id(each)].after for each in ((own,) if point.address else inputs)]
    after = [each for taker in takers for each in taker]
    return any(_is_own(each) or kinds(each) & _JOINING for each in (own, *after))


def _is_own(part: Any) -> bool:
    return not computes_as_keras(part) or "Lambda" in kinds(part)
