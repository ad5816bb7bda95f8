"""Which kernels of a Keras 3 model can hold a mask, and where each keeps its constraint.

Guarantees: every layer with trainable weights appears once, as one or more sites or as left
alone with the reason; a shared layer appears under the path where it is met first. The model is
only read. Keras is recognised by class names, and imported only to tell variables from tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import keras

_RECURRENT = (("kernel", "kernel_constraint"), ("recurrent_kernel", "recurrent_constraint"))

# Keras class -> its kernels, each with the attribute that get_config() reads its constraint from.
_KERNELS: dict[str, tuple[tuple[str, str], ...]] = {
    "Dense": (("kernel", "kernel_constraint"),),
    "EinsumDense": (("kernel", "kernel_constraint"),),
    "BaseConv": (("kernel", "kernel_constraint"),),
    "BaseConvTranspose": (("kernel", "kernel_constraint"),),
    "BaseDepthwiseConv": (("kernel", "depthwise_constraint"),),
    "BaseSeparableConv": (
        ("depthwise_kernel", "depthwise_constraint"),
        ("pointwise_kernel", "pointwise_constraint"),
    ),
    "Embedding": (("embeddings", "embeddings_constraint"),),
    **dict.fromkeys(("SimpleRNNCell", "GRUCell", "LSTMCell", "ConvLSTMCell"), _RECURRENT),
}

# Layers that build EinsumDense layers of their own and save one constraint for all of them.
_ATTENTION = {
    "MultiHeadAttention": "_kernel_constraint",
    "GroupedQueryAttention": "kernel_constraint",
}


@dataclass(frozen=True)
class Site:
    """One constraint, everything that refers to it, and the kernels it acts on."""

    path: str
    layer: Any
    holders: tuple[tuple[Any, str], ...]
    kernels: tuple[tuple[str, Any], ...]
    rebuilt_by: str | None
    """The class of the user's own that makes this layer anew on loading, without its mask."""

    @property
    def constraint(self) -> Any:
        """The constraint in force."""
        return self.kernels[0][1].constraint if self.kernels else None

    def hold(self, constraint: Any) -> None:
        """Puts a constraint (or None) wherever Keras looks for it."""
        for owner, attribute in self.holders:
            setattr(owner, attribute, constraint)
        for _, kernel in self.kernels:
            kernel.constraint = constraint

    def obstacle(self) -> str | None:
        """Why this site cannot take a mask; None if it can."""
        if not self.kernels:
            return "not built: it has no kernel yet"
        frozen = [path for path, kernel in self.kernels if not kernel.trainable]
        if not frozen:
            return None
        if len(self.kernels) == 1:
            return "not trainable"
        return f"its kernels share one constraint, and not all are trainable ({', '.join(frozen)})"


@dataclass(frozen=True)
class Alone:
    """A layer whose weights no mask can be put on."""

    path: str
    weights: tuple[Any, ...]
    reason: str


def find_kernels(model: keras.Model) -> tuple[Site | Alone, ...]:
    """All sites of a model, and the layers that have none, in the order of its layers."""
    return tuple(_visit(model, "", rebuilder(model, None), set()))


def _visit(layer: Any, path: str, rebuilt_by: str | None, seen: set[int]) -> Iterator[Site | Alone]:
    if id(layer) in seen:
        return
    seen.add(id(layer))
    ancestry = _keras_ancestry(layer)
    attention = next((name for name in ancestry if name in _ATTENTION), None)
    if attention is not None:
        yield _attention_site(layer, _ATTENTION[attention], path, rebuilt_by)
        return
    kind = next((name for name in ancestry if name in _KERNELS), None)
    if kind is not None:
        for name, attribute in _KERNELS[kind]:
            kernel = _variable(layer, name)
            kernels = () if kernel is None else ((f"{path}/{name}", kernel),)
            yield Site(path, layer, ((layer, attribute),), kernels, rebuilt_by)
    elif own := _own_variables(layer):
        reason = f"{type(layer).__name__} has no kernel of a kind that is pruned"
        yield Alone(path or layer.name, own, reason)
    for child in layer._flatten_layers(include_self=False, recursive=False):
        inside = rebuilder(layer, rebuilt_by)
        yield from _visit(child, f"{path}/{child.name}".lstrip("/"), inside, seen)


def _attention_site(layer: Any, attribute: str, path: str, rebuilt_by: str | None) -> Site:
    projections = [
        child
        for child in layer._flatten_layers(include_self=False)
        if "EinsumDense" in _keras_ancestry(child)
    ]
    kernels = tuple(
        (f"{path}/{child.name}/kernel", kernel)
        for child in projections
        if (kernel := _variable(child, "kernel")) is not None
    )
    holders = ((layer, attribute), *((child, "kernel_constraint") for child in projections))
    return Site(path, layer, holders, kernels, rebuilt_by)


def _own_variables(layer: Any) -> tuple[Any, ...]:
    """A layer's trainable variables, without those it only refers to inside another one."""
    inner = {
        id(variable)
        for child in layer._flatten_layers(include_self=False)
        for variable in child._trainable_variables
    }
    return tuple(v for v in layer._trainable_variables if id(v) not in inner)


def _keras_ancestry(layer: Any) -> list[str]:
    """The names of the Keras classes that a layer is made of, nearest first."""
    return [c.__name__ for c in type(layer).__mro__ if c.__module__.startswith("keras.")]


def _variable(layer: Any, name: str) -> Any:
    """The variable behind a kernel; the public name may be a tensor computed from it (LoRA)."""
    import keras

    for attribute in (f"_{name}", name):
        value = getattr(layer, attribute, None)
        if isinstance(value, keras.Variable):
            return value
    return None


def rebuilder(layer: Any, outer: str | None) -> str | None:
    """The class that makes a layer's inner layers anew on loading: None, ``outer`` or its own.

    Keras's own containers save their layers; a class of the user's makes them itself.
    """
    if outer is not None or type(layer).__module__.startswith("keras."):
        return outer
    # A Functional or Sequential model under a user's name but with Keras's constructor is saved
    # layer by layer.
    graph = {"Functional", "Sequential"} & set(_keras_ancestry(layer))
    if graph and type(layer).__init__.__module__.startswith("keras."):
        return None
    return type(layer).__name__
