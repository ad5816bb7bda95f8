"""Find the kernels of a Keras 3 model, and choose among its layers.

Layers are recognised by the names of their Keras classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tfopt.compress.model_graph import kinds
from tfopt.compress.patterns import Axes, Pattern
from tfopt.errors import UserError
from tfopt.keras_internals import ATTENTION_CONSTRAINT, given_as_trainable, layers_inside

if TYPE_CHECKING:
    import keras

Row = TypeVar("Row")
# Returns the axes of a kernel that its layer sums over, input channels last, or None.
_Inputs = Callable[[Any, int], Axes | None]


def _all_but_outputs(layer: Any, rank: int) -> Axes:
    return tuple(range(rank - 1))


def _before_outputs_last(layer: Any, rank: int) -> Axes:
    return (*range(rank - 2), rank - 1)


def _contracted(layer: Any, rank: int) -> Axes | None:
    operands, _, output = layer.equation.replace(" ", "").replace("...", "").partition("->")
    inputs, _, kernel = operands.partition(",")
    return tuple(n for n, x in enumerate(kernel) if x in inputs and x not in output) or None


def _none(layer: Any, rank: int) -> None:
    """Depthwise kernels and lookup tables are not summed over channels."""


_RECURRENT = (
    ("kernel", "kernel_constraint", _all_but_outputs),
    ("recurrent_kernel", "recurrent_constraint", _all_but_outputs),
)

# The kernels of Keras classes, with the attribute of their constraint in get_config()
_KERNELS: dict[str, tuple[tuple[str, str, _Inputs], ...]] = {
    "Dense": (("kernel", "kernel_constraint", _all_but_outputs),),
    "EinsumDense": (("kernel", "kernel_constraint", _contracted),),
    "BaseConv": (("kernel", "kernel_constraint", _all_but_outputs),),
    "BaseConvTranspose": (("kernel", "kernel_constraint", _before_outputs_last),),
    "BaseDepthwiseConv": (("kernel", "depthwise_constraint", _none),),
    "BaseSeparableConv": (
        ("depthwise_kernel", "depthwise_constraint", _none),
        ("pointwise_kernel", "pointwise_constraint", _all_but_outputs),
    ),
    "Embedding": (("embeddings", "embeddings_constraint", _none),),
    **dict.fromkeys(("SimpleRNNCell", "GRUCell", "LSTMCell", "ConvLSTMCell"), _RECURRENT),
}

# Layers with EinsumDense layers inside and one constraint for all of them
_ATTENTION = {
    "MultiHeadAttention": ATTENTION_CONSTRAINT,
    "GroupedQueryAttention": "kernel_constraint",
}


@dataclass(frozen=True)
class Kernel:
    """A weight matrix; ``inputs`` are the axes that are summed over, channels last."""

    path: str
    variable: Any
    inputs: Axes | None


def kernel_name(variable: Any) -> str:
    """Return a kernel's name in its site, without the path of the layer."""
    return "/".join(variable.path.split("/")[-2:])


@dataclass(frozen=True)
class Site:
    """A constraint's kernels, with the attributes that refer to the constraint."""

    path: str
    layer: Any
    holders: tuple[tuple[Any, str], ...]
    kernels: tuple[Kernel, ...]
    rebuilt_by: str | None
    """The custom class that creates this layer itself when it is loaded, without constraints."""

    @property
    def constraint(self) -> Any:
        """Return the constraint in force; None without one."""
        return self.kernels[0].variable.constraint if self.kernels else None

    def constrain(self, constraint: Any) -> None:
        """Set a constraint, or None, on the kernels and in the attributes."""
        for owner, attribute in self.holders:
            setattr(owner, attribute, constraint)
        for kernel in self.kernels:
            kernel.variable.constraint = constraint

    def bind(self, constraint: Any) -> None:
        """Apply a constraint to the kernels, and set it."""
        for kernel in self.kernels:
            constraint.bind(kernel.variable)
        self.constrain(constraint)

    def left_out(self, verb: str) -> str | None:
        """Return why this site is skipped unless chosen by ``layers=``, or None."""
        if any("depthwise" in attribute for _, attribute in self.holders):
            return f"depthwise, which loses much accuracy: choose it by layers= to {verb} it"
        return None

    def obstacle(self) -> str | None:
        """Return why this site cannot have a mask, or None."""
        if not self.kernels:
            return "not built: it has no kernel yet"
        frozen = [kernel.path for kernel in self.kernels if not kernel.variable.trainable]
        if not frozen:
            return None
        if len(self.kernels) == 1:
            return "not trainable; set trainable = True to compress it"
        return f"its kernels share one constraint, and not all are trainable ({', '.join(frozen)})"

    def unfit(self, pattern: Pattern) -> str | None:
        """Return why this site cannot have a mask of a pattern, or None."""
        reasons = (pattern.obstacle(k.variable.shape, k.inputs) for k in self.kernels)
        return self.obstacle() or next(filter(None, reasons), None)


@dataclass(frozen=True)
class UnprunableLayer:
    """A layer whose weights cannot have a mask."""

    path: str
    weights: tuple[Any, ...]
    reason: str


def find_kernels(model: keras.Model) -> tuple[Site | UnprunableLayer, ...]:
    """Return all sites of a model, and the layers that have none, in the order of its layers.

    A shared layer appears once, with its first path.
    """
    return tuple(_visit(model, "", rebuilder(model, None), set()))


def rows_of(
    model: Any, limit: Callable[[Site, Kernel | None], tuple[Any, str | None]]
) -> Iterator[tuple[str, Sequence[Any], Any, str | None]]:
    """Yield path, variables, limit and remark of each kernel, and of each layer without one."""
    for entry in find_kernels(model):
        if isinstance(entry, UnprunableLayer):
            yield entry.path, entry.weights, None, entry.reason
            continue
        for kernel in entry.kernels:
            yield kernel.path, [kernel.variable], *limit(entry, kernel)
        if not entry.kernels:
            yield entry.path, [], *limit(entry, None)


def find_sites(model: keras.Model) -> list[Site]:
    """Return the sites of a model, without unprunable layers."""
    return [site for site in find_kernels(model) if isinstance(site, Site)]


def kernels_of(layer: Any) -> tuple[Kernel, ...]:
    """Return a layer's own kernels, without those of inner layers."""
    rows = _row_of(_KERNELS, layer) or ()
    return tuple(k for name, _, inputs in rows for k in _built(layer, name, name, inputs))


def _row_of(table: Mapping[str, Row], layer: Any) -> Row | None:
    """Return the row of a layer's Keras class, or of a base of it."""
    names = kinds(layer)
    return next((row for name, row in table.items() if name in names), None)


def _visit(
    layer: Any, path: str, rebuilt_by: str | None, seen: set[int]
) -> Iterator[Site | UnprunableLayer]:
    if id(layer) in seen:
        return
    seen.add(id(layer))
    attention = _row_of(_ATTENTION, layer)
    if attention is not None:
        yield _attention_site(layer, attention, path, rebuilt_by)
        return
    rows = _row_of(_KERNELS, layer)
    if rows is not None:
        for name, attribute, inputs in rows:
            kernels = _built(layer, name, f"{path}/{name}", inputs)
            yield Site(path, layer, ((layer, attribute),), kernels, rebuilt_by)
    elif own := _own_variables(layer):
        reason = f"{type(layer).__name__} has no kernel"
        yield UnprunableLayer(path or layer.name, own, reason)
    for child in layers_inside(layer, recursive=False):
        inside = rebuilder(layer, rebuilt_by)
        yield from _visit(child, f"{path}/{child.name}".lstrip("/"), inside, seen)


def _attention_site(layer: Any, attribute: str, path: str, rebuilt_by: str | None) -> Site:
    projections = [child for child in layers_inside(layer) if "EinsumDense" in kinds(child)]
    kernels = tuple(
        kernel
        for child in projections
        for kernel in _built(child, "kernel", f"{path}/{child.name}/kernel", _contracted)
    )
    holders = ((layer, attribute), *((child, "kernel_constraint") for child in projections))
    return Site(path, layer, holders, kernels, rebuilt_by)


def _own_variables(layer: Any) -> tuple[Any, ...]:
    """Return a layer's trainable variables, without those of inner layers."""
    inside = [v for child in layers_inside(layer) for v in given_as_trainable(child)]
    inner = set(map(id, inside))
    return tuple(v for v in given_as_trainable(layer) if id(v) not in inner)


def _built(layer: Any, name: str, path: str, inputs: _Inputs) -> tuple[Kernel, ...]:
    """Return the kernel of a name, or nothing if the layer is not built."""
    import keras

    variable = getattr(layer, name, None)
    if variable is not None and not isinstance(variable, keras.Variable):
        # With LoRA the attribute is a tensor computed from the kernel.
        variable = next((weight for weight in layer.weights if weight.name == name), None)
    return () if variable is None else (Kernel(path, variable, inputs(layer, len(variable.shape))),)


def rebuilder(layer: Any, outer: str | None) -> str | None:
    """Return the custom class that creates a layer's inner layers when it is loaded, or None.

    Keras's containers save their layers; a custom class creates them itself.
    """
    if outer is not None or type(layer).__module__.startswith("keras."):
        return outer
    # A subclass of Functional or Sequential with Keras's constructor is saved layer by layer.
    graph = {"Functional", "Sequential"} & kinds(layer)
    if graph and type(layer).__init__.__module__.startswith("keras."):
        return None
    return type(layer).__name__


Layers = str | type | tuple[type, ...] | Callable[[Any], bool] | None
Matches = Callable[[str, Any], bool]
"""Returns whether the layer at a path is chosen."""


def matcher(layers: Layers) -> Matches:
    """Return the function of path and layer for a ``layers=`` argument."""
    if layers is None or isinstance(layers, str):
        pattern = compile_pattern("layers", layers)
        return lambda path, layer: pattern.search(path) is not None
    types = (layers,) if isinstance(layers, type) else layers
    if isinstance(types, tuple) and types and all(isinstance(kind, type) for kind in types):
        return lambda path, layer: isinstance(layer, types)
    if callable(layers) and not hasattr(layers, "get_weights"):  # a layer is callable, too
        return lambda path, layer: bool(layers(layer))
    raise _chooses_nothing("layers", layers)


def compile_pattern(name: str, pattern: object) -> re.Pattern[str]:
    """Compile a regular expression, or None as one that matches all; ``name`` is for errors."""
    if pattern is None:
        return re.compile("")
    if not isinstance(pattern, str):
        raise _chooses_nothing(name, pattern)
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(
            f"{name} is not a regular expression: {error}.", received=repr(pattern)
        ) from error


def _chooses_nothing(name: str, received: object) -> UserError:
    return UserError(
        f"{name} does not choose layers.",
        expected="a regular expression, a layer class or a tuple of them, a function of a layer, "
        "or None for all",
        received=repr(received),
    )


def choose_sites(
    model: Any,
    matching: Sequence[Site],
    obstacle: Callable[[Site], str | None],
    *,
    verb: str,
    refusal: str,
    expected: str,
) -> list[Site]:
    """Return the matching sites without an obstacle; raise if there are none."""
    reasons = [(site, obstacle(site)) for site in matching]
    chosen = [site for site, reason in reasons if reason is None]
    if chosen:
        return chosen
    if matching:
        raise UserError(
            refusal,
            expected=expected,
            received="; ".join(f"{site.path}: {reason}" for site, reason in reasons[:8]),
        )
    paths = [entry.path for entry in find_kernels(model)]
    raise UserError(
        f"No layer to {verb} in {model.name!r}: none with a kernel matches layers=.",
        expected="a layer with a kernel (Dense, Conv, Embedding, recurrent, attention ...)",
        received=", ".join(dict.fromkeys(paths[:20])) or "a model without trainable weights",
        fix="correct layers=, which is searched for in these paths",
    )
