"""Whether what is assigned to a variable is what was read of it, and something added.

Guarantees: a whole number that is assigned otherwise than with something added or taken away (a
pointer that wraps round) is told from a count, also behind ``where`` and ``cond``; a value that
does not come from what was read (a reset, the last loss), a flag, a queue whose rows are put in
place, and the larger of two numbers are told from a sum or an average. The graph is read, nothing
is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

# As long as a tensor goes through these it is the same number.
_SAME = frozenset({"Cast", "EnsureShape", "Identity", "Reshape", "StopGradient"})
_SUMS = frozenset({"Add", "AddN", "AddV2"})
_CONDITIONS = frozenset({"If", "StatelessIf"})
# What is behind these was put there, not added.
_PUT = frozenset(
    {
        "ConcatV2",
        "FloorMod",
        "Maximum",
        "Minimum",
        "Mod",
        "Roll",
        "TensorScatterUpdate",
        "XlaDynamicUpdateSlice",
    }
)

_Key = tuple[int, str]


def adds_to(value: Any, read: list[Any], *, of_optimizer: bool) -> bool:
    """Whether a difference of ``value`` to what was ``read`` may be added to what others add.

    An optimizer's own state is averages and sums, and the largest of many steps in some.
    """
    if not hasattr(value, "graph") or not (value.dtype.is_floating or value.dtype.is_integer):
        return bool(value.dtype.is_floating or value.dtype.is_integer or value.dtype.is_complex)
    keys = {_key(each) for each in read}
    if value.dtype.is_integer:
        return _is_sum(value, keys, {})
    if not of_optimizer and _through(value).op.type in _PUT:
        return False
    return _comes_from(value, keys)


def _is_sum(value: Any, keys: set[_Key], given: Mapping[_Key, Any]) -> bool:
    if _key(value) in keys:
        return True
    outside = given.get(_key(value), _captured(value))
    if outside is not None:
        return _is_sum(outside, keys, given)
    kind, inputs = value.op.type, list(value.op.inputs)
    if kind in _SAME:
        return _is_sum(inputs[0], keys, given)
    if kind in _SUMS:
        return any(_is_sum(each, keys, given) for each in inputs)
    if kind == "Sub":
        return _is_sum(inputs[0], keys, given)
    if kind in ("Select", "SelectV2"):
        return all(_is_sum(each, keys, given) for each in inputs[1:])
    if kind in _CONDITIONS:
        branches = list(_branches(value))
        return all(_is_sum(end, keys, {**given, **args}) for end, args in branches)
    return False


def _branches(value: Any) -> Iterator[tuple[Any, dict[_Key, Any]]]:
    """What each branch gives, and what the tensors it is given are outside."""
    op = value.op
    for name in ("then_branch", "else_branch"):
        inside = op.graph._get_function(op.get_attr(name).name).graph
        pairs = zip(inside.inputs, op.inputs[1:], strict=True)
        yield inside.outputs[value.value_index], {_key(each): there for each, there in pairs}


def _comes_from(value: Any, keys: set[_Key]) -> bool:
    left, looked_at = deque([value]), set()
    # Nearest first: an average has what was read close to its end, and a model far behind that.
    while left:
        each = left.popleft()
        if _key(each) in keys:
            return True
        if _key(each) in looked_at:
            continue
        looked_at.add(_key(each))
        outside = _captured(each)
        left.extend(each.op.inputs if outside is None else [outside])
    return False


def _through(value: Any) -> Any:
    while value.op.type in _SAME:
        value = value.op.inputs[0]
    return value


def _captured(value: Any) -> Any:
    """What a tensor is outside of the branch or loop that it was handed into."""
    if value.op.type != "Placeholder":
        return None
    for outside, inside in getattr(value.graph, "captures", ()):
        if inside is value and hasattr(outside, "op"):
            return outside
    return None


def _key(tensor: Any) -> _Key:
    return id(tensor.graph), tensor.name
