"""Parts of a batch by the place of their examples, and whether two of them meet.

Guarantees: a part is told of what was split, or sliced with an end, along the axis of the examples,
and of what is made of it alone; values of the same bounds are the same part. A batch that is
shared out has other examples at these places.
"""

from __future__ import annotations

from typing import Any

_SIDE_BY_SIDE = ("ConcatV2", "AddN", "Pack")


class Parts:
    """The parts seen in one graph so far, by the names of the values."""

    def __init__(self) -> None:
        self._part_of: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._part_of

    def see(self, op: Any, axes: list[int], output: Any) -> None:
        """Takes in one value; ``axes`` are those of the examples in what it was made of."""
        before = {self._part_of[each.name] for each in op.inputs if each.name in self._part_of}
        part = _place(op, axes, output)
        if part is not None or len(before) == 1:
            self._part_of[output.name] = part or before.pop()

    def meet(self, op: Any, axes: list[int]) -> bool:
        """Whether an operation sets one part against another one."""
        given = [each.name for each, of in zip(op.inputs, axes, strict=True) if of >= 0]
        parts = {self._part_of[name] for name in given if name in self._part_of}
        return len(parts) > 1 and op.type not in _SIDE_BY_SIDE


def _place(op: Any, axes: list[int], output: Any) -> str | None:
    """Which part of a batch an operation takes, if it does."""
    if op.type == "Split" and axes[1] >= 0 and static_integers(op.inputs[0]) == [axes[1]]:
        return f"{output.value_index} of {len(op.outputs)}"
    if op.type == "SplitV" and axes[0] >= 0 and static_integers(op.inputs[2]) == [axes[0]]:
        return f"{output.value_index} of {_told(op.inputs[1])}"
    if is_cut(op, axes):
        masks = [op.get_attr(f"{edge}_mask") for edge in ("begin", "end")]
        return " ".join(map(str, [*map(_told, op.inputs[1:]), *masks]))
    return None


def is_cut(op: Any, axes: list[int]) -> bool:
    """Whether it is a slice that leaves examples out."""
    if op.type != "StridedSlice" or axes[0] < 0:
        return False
    # Masks are by place; one that is behind an ellipsis is not looked for.
    bit = 1 << axes[0]
    whole = op.get_attr("begin_mask") & bit and op.get_attr("end_mask") & bit
    places = op.inputs[1].shape.num_elements()
    plain = not op.get_attr("ellipsis_mask") and not op.get_attr("new_axis_mask")
    return bool(plain and places is not None and axes[0] < places and not whole)


def _told(tensor: Any) -> str:
    known = static_integers(tensor)
    return tensor.name if known is None else str(known)


def static_integers(tensor: Any) -> list[int] | None:
    """The whole numbers that a tensor is, where the graph holds them."""
    import tensorflow as tf

    value = tf.get_static_value(tensor)
    return None if value is None else [int(each) for each in value.reshape(-1)]
