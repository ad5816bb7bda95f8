"""Plan where a model is fake-quantized, as plain data.

Kernels are rounded, and the results of layers and operations, as LiteRT's converter fuses them:
nothing is between a convolution, its batch normalization and its ReLU. The plan has every layer and
operation once, with what is rounded, or the reason why nothing is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfopt.compress.kernels import Matches, kernels_of
from tfopt.compress.model_graph import (
    Address,
    Neighbours,
    computes_as_keras,
    is_layer,
    kinds,
    parts,
    places,
    plain_class,
    result_tensors,
)
from tfopt.keras_internals import layers_of

_LOOK_UP = frozenset(
    {"Embedding", "CategoryEncoding", "OneHot", "MultiHot", "Hashing", "HashedCrossing"}
    | {"IntegerLookup"}
)


def _looks_up(owner: Any) -> bool:
    """Return whether a model reads indices, which rounding to 256 values would change."""
    return any(_reads_indices(part) or _looks_up(part) for _, part in parts(owner))


def _reads_indices(part: Any) -> bool:
    if "Cast" not in kinds(part):
        return bool(kinds(part) & _LOOK_UP)
    results = result_tensors(part) or []
    return any(str(tensor.dtype).startswith(("int", "uint")) for tensor in results)


# In LiteRT the input and the output of such a part have one scale: a narrower range of the output
# would clip the input.
_MOVING = """
    Flatten Reshape Permute RepeatVector BaseZeroPadding BaseCropping ZeroPadding1D ZeroPadding2D
    ZeroPadding3D Cropping1D Cropping2D Cropping3D UpSampling1D UpSampling2D UpSampling3D Identity
    Transpose ExpandDims Squeeze GetItem Pad Slice Roll Flip Ravel SwapAxes Moveaxis Tile Repeat
    BroadcastTo Resizing Resize MaxPooling1D MaxPooling2D MaxPooling3D GlobalMaxPooling1D
    GlobalMaxPooling2D GlobalMaxPooling3D AveragePooling1D AveragePooling2D AveragePooling3D
    Max Min Amax Amin MaxPool AveragePool Take TakeAlongAxis
"""
_ONLY_IN_TRAINING = """
    Dropout SpatialDropout1D SpatialDropout2D SpatialDropout3D GaussianNoise GaussianDropout
    AlphaDropout ActivityRegularization Masking BaseImageAugmentationLayer
"""


def why_no_range(part: Any) -> str | None:
    """Return why a result has the range of the input, or None if it has its own."""
    names = kinds(part)
    if names & {*_MOVING.split()}:
        return "passes its input's values on"
    if names & {*_ONLY_IN_TRAINING.split()} or any(name.startswith("Random") for name in names):
        return "does nothing in inference"
    return None


FIXED_RANGES = {"unit": (0.0, 255 / 256), "symmetric_unit": (-1.0, 127 / 128)}
"""LiteRT's fixed ranges of the results of sigmoid and softmax, and of tanh."""

_RANGE_OF = {"sigmoid": "unit", "softmax": "unit", "tanh": "symmetric_unit"}
_RANGE_OF |= dict.fromkeys(("relu", "relu6"), "positive")
# The classes that are an activation
_ACTIVATIONS = {name.capitalize(): name for name in _RANGE_OF}
_FOLDS_NORMALIZATION = frozenset(
    {"Dense", "BaseConv", "BaseConvTranspose", "BaseDepthwiseConv", "BaseSeparableConv"}
)
_FUSES_RELU = _FOLDS_NORMALIZATION | {"BatchNormalization", "Add", "Subtract", "Multiply"}
_NOT_CHOSEN = "not chosen by quantize_aware(): quantized by the converter"
_OUTPUTS_INSIDE = frozenset(
    {"TimeDistributed", "MultiHeadAttention", "GroupedQueryAttention", "Functional", "Sequential"}
)


@dataclass(frozen=True)
class Point:
    """What is fake-quantized at a layer or an operation.

    Attributes:
        path: Its path.
        address: Its address in the model, also in a loaded one.
        kind: Its class.
        kernels: Whether its kernels are.
        output: The range of its result: "moving", "positive" (moving, from zero), "unit" or
            "symmetric_unit" (fixed); None: the result is not.
        inputs: Of the model itself: the numbers of its flattened inputs that are.
        remark: Why nothing is, or what is left to the converter.
    """

    path: str
    address: Address
    kind: str
    kernels: bool = False
    output: str | None = None
    inputs: tuple[int, ...] = ()
    remark: str | None = None

    @property
    def acts(self) -> bool:
        """Return whether anything is fake-quantized here."""
        return bool(self.kernels or self.output or self.inputs)

    def get_config(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        values = asdict(self).items()
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values}


def point_from_config(config: Mapping[str, Any]) -> Point:
    """Return the point of a configuration."""
    values: Any = {k: tuple(v) if isinstance(v, list) else v for k, v in config.items()}
    values.pop("earlier", None)  # empty, in files of earlier versions
    return Point(**values)


def plan(model: Any, matches: Matches) -> tuple[Point, ...]:
    """Return all points of a built model."""
    return (_of_inputs(model), *_visit(model, (), "", matches, set()))


def _of_inputs(model: Any) -> Point:
    """Return the point of the model's inputs, which LiteRT quantizes."""
    import keras

    if getattr(model, "inputs", None):
        dtypes = [str(tensor.dtype) for tensor in model.inputs]
    else:
        shapes: list[Any] = []
        keras.tree.map_shape_structure(shapes.append, model.get_build_config() or {})
        dtypes = ["float32"] * len(shapes)
    floats = tuple(n for n, dtype in enumerate(dtypes) if dtype.startswith(("float", "bfloat")))
    remark = None if floats else "no float inputs"
    if floats and _looks_up(model):
        floats, remark = (), "may be indices: quantized by the converter"
    return Point("inputs", (), plain_class(model).__name__, inputs=floats, remark=remark)


def _visit(
    owner: Any, address: Address, path: str, matches: Matches, seen: set[int]
) -> Iterator[Point]:
    known = places(owner)
    for number, part in parts(owner):
        if id(part) in seen or "InputLayer" in kinds(part):
            continue
        seen.add(id(part))
        below, name = (*address, number), f"{path}/{part.name}".lstrip("/")
        if not matches(name, part) and not _inside(part):
            yield Point(name, below, type(part).__name__, remark=_NOT_CHOSEN)
            continue
        if not _inside(part) or not kinds(part) & _OUTPUTS_INSIDE:
            yield _decide(part, below, name, known)
        if _inside(part):
            yield from _visit(part, below, name, matches, seen)


def _inside(part: Any) -> bool:
    """Return whether a part's own parts are points; a recurrent cell runs in a loop."""
    return is_layer(part) and "RNN" not in kinds(part) and any(True for _ in parts(part))


def _decide(
    part: Any, address: Address, path: str, known: Mapping[int, Neighbours] | None
) -> Point:
    kernels = is_layer(part) and bool(kernels_under(part))
    passed_on = why_no_range(part)
    place = None if known is None else known[id(part)]
    output, remark = (None, passed_on) if passed_on else _output(part, place)
    if "RNN" in kinds(part):
        remark = "only kernels in the loop: the rest is quantized by the converter"
    return Point(path, address, type(part).__name__, kernels, output, remark=remark)


def kernels_under(layer: Any) -> list[Any]:
    """Return the kernels of a layer, or of a recurrent layer's cell."""
    if "RNN" not in kinds(layer):
        return list(kernels_of(layer))
    return [kernel for inner in layers_of(layer) for kernel in kernels_of(inner)]


def _output(part: Any, place: Neighbours | None) -> tuple[str | None, str | None]:
    """Return the range of a result, or None with the reason."""
    results = result_tensors(part)
    if results is not None:
        if len(results) != 1:
            return None, "has several results: quantized by the converter"
        if not str(results[0].dtype).startswith(("float", "bfloat")):
            return None, "has no float result"
    if "OneHot" in kinds(part):
        return None, "has zeros and ones: quantized by the converter"
    if place is not None and _is_fused(part, place):
        return None, f"rounded once, together with {place.after[0].name}"
    range_kind = _RANGE_OF.get(_activation(part) or "", "moving")
    if place is not None and place.is_output and range_kind == "unit":
        return None, "gives probabilities, whose range is fixed in LiteRT"
    return range_kind, None


def _is_fused(part: Any, place: Neighbours) -> bool:
    """Return whether a part is rounded once with the only one after it, as LiteRT fuses most."""
    if place.is_output or len(place.after) != 1 or _activation(part) not in (None, "linear"):
        return False
    follower, names = place.after[0], kinds(part)
    if "BatchNormalization" in kinds(follower):
        return bool(names & _FOLDS_NORMALIZATION)
    return bool(names & _FUSES_RELU) and _is_relu(follower)


def _is_relu(part: Any) -> bool:
    is_one = kinds(part) & {"ReLU", "Relu", "Relu6", "Activation"}
    return bool(is_one) and _activation(part) in ("relu", "relu6")


def _activation(part: Any) -> str | None:
    """Return the name of a part's activation, or None, also for a custom ``call``."""
    if not computes_as_keras(part):
        return None
    names = kinds(part)
    own = next((activation for name, activation in _ACTIVATIONS.items() if name in names), None)
    if own is not None:
        return own
    if "ReLU" in names:
        plain = not part.negative_slope and not part.threshold and part.max_value in (None, 6)
        return "relu" if plain else None
    function = getattr(part, "activation", None)
    if function is None or "RNN" in names:
        return None
    return str(getattr(function, "__name__", type(function).__name__))
