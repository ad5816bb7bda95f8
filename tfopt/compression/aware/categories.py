"""Inputs that hold categories as floats, which no rounding may touch.

Guarantees: an input is told where a layer or operation looks things up by it, or by a part of it,
as it came in, also inside of models that the model is made of: rounded into 256 steps, an index
becomes its neighbour's, and the model trains on other categories than it was given. The model is
only read.
"""

from __future__ import annotations

from typing import Any

from tfopt.compression.graph import Place, kinds, parts, places, result_tensors

_LOOK_UP = frozenset(
    {"Embedding", "CategoryEncoding", "OneHot", "MultiHot", "Hashing", "HashedCrossing"}
    | {"IntegerLookup"}
)
_SAME_VALUES = frozenset(
    {"GetItem", "Slice", "Reshape", "Flatten", "Ravel", "Squeeze", "ExpandDims", "Identity"}
    | {"Transpose", "Permute", "SwapAxes", "Moveaxis"}
)


def inputs_of_categories(model: Any) -> frozenset[int]:
    """Which of the flattened inputs are read as indices; none is known outside of graphs."""
    known = places(model)
    if known is None:
        return frozenset()
    number_of = {id(tensor): number for number, tensor in enumerate(model.inputs)}
    found = set()
    for _, part in parts(model):
        left = [each for each in _indices_of(part, known[id(part)]) if id(each) in known]
        while left:
            each = left.pop()
            if "InputLayer" in kinds(each):
                found.add(number_of.get(id((result_tensors(each) or [None])[0]), -1))
            elif kinds(each) & _SAME_VALUES:
                left += known[id(each)].before
    return frozenset(found - {-1})


def _indices_of(part: Any, place: Place) -> tuple[Any, ...]:
    """The parts whose results a part reads as indices, itself or in a model that it is."""
    if _reads_indices(part):
        return place.before
    inside = inputs_of_categories(part)
    given = [node.input_tensors[number] for node in part._inbound_nodes for number in inside]
    return tuple(tensor._keras_history.operation for tensor in given)


def _reads_indices(part: Any) -> bool:
    names = kinds(part)
    if "Cast" in names:
        results = result_tensors(part) or []
        return any(str(each.dtype).startswith(("int", "uint")) for each in results)
    return bool(names & _LOOK_UP)
