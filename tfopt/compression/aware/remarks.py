"""What the trained ranges tell about a model: where an enormous number leaves others no values.

Guarantees: nothing is changed. A range without a known one before it is not judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfopt.compression.graph import find, kinds, places

if TYPE_CHECKING:
    from tfopt.compression.aware.plan import Point
    from tfopt.compression.aware.state import Awareness

# Then all that came in is less than a step of 256.
_LOST = 1e3
# A range that holds a number such as hides scores.
_ENORMOUS = 1e3
_MIXES = frozenset({"Add", "Subtract", "Where", "Maximum", "Minimum", "Concatenate", "Pad"})


def lost_values(held: Awareness, model: Any) -> dict[str, str]:
    """A remark for each point, by its path, in whose range nothing is left of what comes in."""
    widths = {
        id(find(model, point.address)): high - low
        for point in held.points
        for low, high in filter(None, [held.range_of(point)])
    }
    return {
        point.path: "an enormous number is added or joined here: in this range nothing is left "
        "of what comes in"
        for point in held.points
        if point.address and _loses(point, model, widths)
    }


def _loses(point: Point, model: Any, widths: dict[int, float]) -> bool:
    part = find(model, point.address)
    known = places(find(model, point.address[:-1]))
    if known is None or not kinds(part) & _MIXES or id(part) not in widths:
        return False
    before = [widths[id(each)] for each in known[id(part)].before if id(each) in widths]
    return bool(before) and widths[id(part)] >= max(_ENORMOUS, _LOST * min(before))
