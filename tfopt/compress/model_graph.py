"""Read the parts of a Keras model by address, and its inputs and outputs.

Parts are layers, and the operations (``x + y``, ``keras.ops``) of Functional graphs. Layers are
recognised by the names of their Keras classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.errors import UserError
from tfopt.keras_internals import functional_inside, layers_inside, nodes_of

if TYPE_CHECKING:
    import keras

Address = tuple[int, ...]


@dataclass(frozen=True)
class Neighbours:
    """The neighbours of a part in a graph.

    Attributes:
        after: The parts that use its result.
        is_output: Whether its result is an output of the graph.
    """

    after: tuple[Any, ...]
    is_output: bool


def kinds(part: Any) -> frozenset[str]:
    """Return the names of the Keras classes of a layer or an operation, and of their bases."""
    return frozenset(c.__name__ for c in type(part).__mro__ if c.__module__.startswith("keras."))


def plain_class(model: Any) -> type:
    """Return the class of a model without the mixin ``CompressedModel``."""
    return next(kind for kind in type(model).__mro__ if "in_front" not in vars(kind))


def is_layer(part: Any) -> bool:
    """Return whether a part is a layer, and not an operation."""
    return "Layer" in kinds(part)


def computes_as_keras(part: Any, method: str = "call") -> bool:
    """Return whether a layer or an operation computes by Keras's own method."""
    own = next((c for c in type(part).__mro__ if method in vars(c)), object)
    return own.__module__.startswith("keras.")


def parts(owner: Any) -> Iterator[tuple[int, Any]]:
    """Yield the parts directly inside a layer with their steps of an address.

    Steps are numbers: a class that creates its layers itself may name them differently next time.
    """
    graph = _graph(owner)
    if graph is None:
        if is_layer(owner):
            yield from enumerate(layers_inside(owner, recursive=False))
        return
    yield from enumerate(graph.operations)


def find(model: Any, address: Address) -> Any:
    """Return the part at an address."""
    part = model
    for place in address:
        part = dict(parts(part))[place]
    return part


def places(owner: Any) -> dict[int, Neighbours] | None:
    """Return the places of parts by their ids; None if ``owner`` has no graph."""
    graph = _graph(owner)
    if graph is None:
        return None
    after: dict[int, list[Any]] = {}
    outputs, ends = set(map(id, graph.outputs)), set[int]()
    for node in nodes_of(graph):
        for parent in node.parent_nodes:
            after.setdefault(id(parent.operation), []).append(node.operation)
        if not outputs.isdisjoint(map(id, node.outputs)):
            ends.add(id(node.operation))
    return {
        id(part): Neighbours(tuple(after.get(id(part), ())), id(part) in ends)
        for part in graph.operations
    }


def result_tensors(part: Any) -> list[Any] | None:
    """Return the symbolic results of a part in its graph; None outside graphs."""
    import keras

    output = getattr(part, "output", None)
    return None if output is None else keras.tree.flatten(output)


def _graph(owner: Any) -> Any:
    """Return the Functional model of a Functional or built Sequential model; else None."""
    names = kinds(owner)
    if "Sequential" in names:
        return functional_inside(owner)
    return owner if "Functional" in names else None


Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Port:
    """One input; ``shape`` is that of an example, ``batch`` None for a free batch size."""

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    batch: int | None = None

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Return whether an example of this shape fits."""
        return len(shape) == len(self.shape) and all(
            own is None or own == given for own, given in zip(self.shape, shape, strict=True)
        )

    def shape_text(self) -> str:
        """Return the shape for messages."""
        return ", ".join("any" if d is None else str(d) for d in self.shape)


@dataclass(frozen=True)
class Ports:
    """All inputs, and their structure in the model's ``call``."""

    inputs: tuple[Port, ...]
    structure: Any

    def flatten(self, values: Any) -> tuple[Array, ...]:
        """Return an array per input, from a single array, a list, or a dict by input name."""
        import keras

        if isinstance(values, Mapping) and not isinstance(self.structure, Mapping):
            leaves = [values[p.name] for p in self.inputs if p.name in values]
        elif len(self.inputs) == 1 and isinstance(values, list):
            leaves = [values[0] if len(values) == 1 and hasattr(values[0], "shape") else values]
        else:
            leaves = keras.tree.flatten(values)
        if len(leaves) != len(self.inputs):
            raise UserError(
                "The examples do not match the inputs of the model.",
                expected=", ".join(p.name for p in self.inputs),
                received=_in_words(values),
            )
        return tuple(map(_to_array, leaves))

    def pack(self, values: Any) -> Any:
        """Return the inputs in the structure of the model's ``call``."""
        import keras

        return keras.tree.pack_sequence_as(self.structure, list(values))


def ports_of(model: keras.Model, example: Any = None) -> Ports:
    """Return the inputs of a model; those of a subclassed model are read from a batch."""
    import keras

    if getattr(model, "inputs", None):
        structure = model.inputs[0] if isinstance(model, keras.Sequential) else model.input
        tensors = keras.tree.flatten(structure)
        ports = [Port(t.name, tuple(t.shape[1:]), str(t.dtype), t.shape[0]) for t in tensors]
    elif example is not None:
        structure = example
        arrays = [np.asarray(leaf) for leaf in keras.tree.flatten(example)]
        named = isinstance(example, Mapping) and not any(
            map(keras.tree.is_nested, example.values())
        )
        keys = map(str, sorted(example)) if named else ["input"] * len(arrays)
        ports = [
            Port(key, array.shape[1:], _model_dtype(array))
            for array, key in zip(arrays, keys, strict=True)
        ]
    else:
        raise UserError(
            f"The inputs of {type(model).__name__} are unknown.",
            expected="a Sequential or Functional model, or examples",
            received="a subclassed model without examples",
            fix="pass calibration=x_train[:200], or examples; to footprint(), which takes neither, "
            "the file that quantize() writes with them",
        )
    names = unique_names([_tidy(port.name, "input") for port in ports])
    tidied = (replace(port, name=name) for port, name in zip(ports, names, strict=True))
    # Without tensors, which would keep a dataset or a graph in memory.
    return Ports(tuple(tidied), keras.tree.map_structure(lambda _: 0, structure))


def require_numbers(model: keras.Model, ports: Ports) -> None:
    """Raise for a model with string inputs, which LiteRT does not support."""
    strings = [port.name for port in ports.inputs if port.dtype == "string"]
    if strings:
        raise UserError(
            f"The model {model.name!r} takes strings: {', '.join(strings)}.",
            expected="numeric inputs: a LiteRT file has no lookups",
            received="string inputs",
            fix="convert the model after its lookup layers, keras.Model(lookup.output, "
            "model.output), on their results, lookup(text)",
        )


def output_names(model: keras.Model, result: Any) -> tuple[str, ...]:
    """Return names for the flattened outputs, in the order of ``keras.tree.flatten(result)``."""
    import keras

    count = len(keras.tree.flatten(result))
    graph = _graph(model)
    known = {} if graph is None else {part.name: part for part in graph.operations}
    makers = [] if graph is None else [known[name] for name in graph.output_names]
    if isinstance(result, Mapping) and len(result) == count:
        names = [str(key) for key in sorted(result)]
    elif len(makers) == count and (count > 1 or not _is_numbered(makers[0])):
        names = [maker.name for maker in makers]
    else:
        names = ["output"] * count
    return unique_names([_tidy(name, "output") for name in names])


def _is_numbered(part: Any) -> bool:
    """Return whether a part has a default name of Keras: its class with a number."""
    name = re.sub(r"_\d+$", "", part.name)
    classes = {base.__name__.replace("_", "").lower() for base in type(part).__mro__}
    return name.replace("_", "") in classes


def unique_names(names: list[str]) -> tuple[str, ...]:
    """Return the names, with numbers after duplicates."""
    taken: list[str] = []
    for name in names:
        fresh, number = name, 1
        while fresh in taken:
            fresh, number = f"{name}_{number}", number + 1
        taken.append(fresh)
    return tuple(taken)


def _tidy(name: str, fallback: str) -> str:
    # Keras numbers unnamed tensors in the whole process.
    if re.fullmatch(r"keras_tensor(_\d+)?|input_layer(_\d+)?", name):
        return fallback
    return re.sub(r"\W", "_", name)


def _model_dtype(values: Array) -> str:
    if values.dtype.kind in "OSU":
        return "string"
    return "int32" if values.dtype.kind in "iu" else "float32"


def _to_array(values: Any) -> Array:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise UserError(
            "The examples do not form an array.",
            expected="rows of equal shape",
            received=str(error),
            fix="pass (x, y) as a tuple, or x alone: a list is taken as rows of examples"
            if isinstance(values, list)
            else None,
        ) from error


def _in_words(values: Any) -> str:
    if isinstance(values, Mapping):
        return "a dict with " + ", ".join(map(str, values))
    if isinstance(values, (list, tuple)):
        return f"{type(values).__name__} of {len(values)}"
    return f"one {type(values).__name__}"
