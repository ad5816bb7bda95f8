"""Count what one operation of a TensorFlow graph computes and moves, from its static shapes.

An operation that may compute in floating point and has no rule here is reported, never taken for
nothing. The rules are those of XLA's cost analysis: 2·m·n·k for a product, padding included as in
published figures, one an element for arithmetic, a comparison or a function such as ``exp``, whole
numbers not counted.

TensorFlow 2.21 has no counter that would do: the wheel gives Python no cost analysis of XLA's, and
the statistics of ``tf.compat.v1.profiler`` know no Einsum, no function bodies, no gradient of a
depthwise or a 3D convolution, and take a wrong k for a transposed batch product
(``tests/measure/test_graph_cost.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

# TensorFlow's operations by what they do to numbers: the tables behind ``op_cost``.


def _names(text: str) -> list[str]:
    return text.split()


# Operations an element of the first output.
AN_OUTPUT: dict[str, float] = {
    **dict.fromkeys(
        _names("""
        Abs Acos Acosh Add AddV2 Asin Asinh Atan Atan2 Atanh BiasAdd Ceil ClipByValue Cos Cosh
        Digamma Div DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod
        Greater GreaterEqual Inv InvGrad IsFinite IsInf IsNan LeakyRelu LeakyReluGrad Less
        LessEqual Lgamma Log Log1p Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual
        Pow RealDiv Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad Rint Round Rsqrt
        RsqrtGrad Selu SeluGrad Sigmoid Sign Sin Sinh Softplus Softsign Sqrt SqrtGrad Square
        SquaredDifference Sub Tan Tanh TruncateDiv TruncateMod Xdivy Xlog1py Xlogy Zeta
        Betainc Polygamma Igamma Igammac ApproximateEqual
        """),
        1.0,
    ),
    **dict.fromkeys(("SigmoidGrad", "TanhGrad", "SoftplusGrad", "SoftsignGrad"), 3.0),
    **dict.fromkeys(("Softmax", "LogSoftmax"), 5.0),
    **dict.fromkeys(
        _names("""
        FakeQuantWithMinMaxArgs FakeQuantWithMinMaxVars FakeQuantWithMinMaxVarsPerChannel
        FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVarsGradient
        FakeQuantWithMinMaxVarsPerChannelGradient
        """),
        4.0,
    ),
    "ResizeBilinear": 8.0,
}
# Operations an element of one of the inputs, by that input's place.
AN_INPUT: dict[str, tuple[int, float]] = {
    **dict.fromkeys(
        _names("""
        ArgMax ArgMin BiasAddGrad Cumprod Cumsum CumulativeLogsumexp EuclideanNorm InTopK InTopKV2
        Max Mean Min Prod SegmentMax SegmentMean SegmentMin SegmentProd SegmentSum Sum TopK TopKV2
        UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd UnsortedSegmentSum
        """),
        (0, 1.0),
    ),
    **dict.fromkeys(("AssignAddVariableOp", "AssignSubVariableOp"), (1, 1.0)),
    **dict.fromkeys(
        _names("""
        ResourceScatterAdd ResourceScatterDiv ResourceScatterMax ResourceScatterMin
        ResourceScatterMul ResourceScatterSub TensorScatterAdd TensorScatterSub
        """),
        (2, 1.0),
    ),
    "L2Loss": (0, 2.0),
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"), (0, 8.0)
    ),
    **dict.fromkeys(("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"), (0, 7.0)),
    **dict.fromkeys(
        ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"), (0, 11.0)
    ),
    "ResizeBilinearGrad": (0, 8.0),
}
POOLS = frozenset({"AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D"})
# Their gradients, by the place of an input that has the pooled shape: of a maximum the result,
# of an average, which needs neither image, what comes back.
POOL_GRADIENTS = {"MaxPoolGrad": 1, "MaxPool3DGrad": 1, "AvgPoolGrad": 1, "AvgPool3DGrad": 1}

# Numbers are moved, made or looked up; none is computed with in floating point.
NO_ARITHMETIC = frozenset(
    _names("""
    Assert AssignVariableOp BatchToSpaceND Bitcast BroadcastArgs BroadcastGradientArgs BroadcastTo
    Bucketize Cast CheckNumerics CheckNumericsV2 Concat ConcatOffset
    ConcatV2 Const DeepCopy DepthToSpace DestroyResourceOp Diag DiagPart DynamicPartition
    DynamicStitch Empty EmptyTensorList EnsureShape ExpandDims ExtractImagePatches Fill Gather
    GatherNd GatherV2 GuaranteeConst Identity IdentityN InvertPermutation IsVariableInitialized
    LogicalAnd LogicalNot LogicalOr MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2
    MatrixDiagPartV3 MatrixDiagV2 MatrixDiagV3 MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3
    MirrorPad MirrorPadGrad NoOp OneHot OnesLike OptionalFromValue OptionalGetValue
    OptionalHasValue OptionalNone Pack Pad PadV2 ParallelDynamicStitch Placeholder
    PlaceholderWithDefault PreventGradient Print PrintV2 RaggedRange
    RaggedTensorToTensor RandomShuffle RandomStandardNormal RandomUniform RandomUniformInt Range
    Rank ReadVariableOp Reshape ResizeNearestNeighbor ResizeNearestNeighborGrad ResourceGather
    ResourceGatherNd ReverseSequence Reverse ReverseV2 RngReadAndSkip RngSkip Roll ScatterNd Select
    SelectV2 Shape ShapeN Size Slice SpaceToBatchND SpaceToDepth SparseToDense Split SplitV Squeeze
    StatefulStandardNormalV2 StatefulUniform StatelessRandomGetAlg
    StatelessRandomGetKeyCounter StatelessRandomNormal StatelessRandomNormalV2
    StatelessRandomUniform StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2
    StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformV2
    StatelessTruncatedNormal StatelessTruncatedNormalV2 StatelessShuffle StopGradient StridedSlice
    StridedSliceGrad TensorListConcat TensorListConcatV2 TensorListElementShape
    TensorListFromTensor TensorListGather TensorListGetItem TensorListLength TensorListPopBack
    TensorListPushBack TensorListReserve TensorListResize TensorListScatter
    TensorListScatterIntoExistingList TensorListSetItem TensorListSplit TensorListStack
    TensorScatterUpdate TensorStridedSliceUpdate Tile Transpose TruncatedNormal Unique UniqueV2
    UniqueWithCounts Unpack Unstage VarHandleOp VarIsInitializedOp VariableShape Where ZerosLike
    """)
)
# The result is the input under another shape or name, or a handle, a shape, an item of a list.
VIEWS = frozenset(
    _names("""
    Assert AssignVariableOp Bitcast BroadcastGradientArgs Const DestroyResourceOp EmptyTensorList
    EnsureShape ExpandDims GuaranteeConst Identity IdentityN NoOp OptionalFromValue
    OptionalGetValue OptionalHasValue OptionalNone Placeholder PlaceholderWithDefault
    PreventGradient Rank ReadVariableOp Reshape Shape ShapeN Size Squeeze StopGradient
    TensorListElementShape TensorListFromTensor TensorListGetItem TensorListLength
    TensorListPopBack TensorListPushBack TensorListReserve TensorListResize TensorListSetItem
    VarHandleOp VarIsInitializedOp VariableShape
    """)
)
# What is not taken of the input is not read.
READS_A_PART = frozenset(
    _names("""
    Gather GatherNd GatherV2 ResourceGather ResourceGatherNd Slice StridedSlice TensorListConcat
    TensorListConcatV2 TensorListGather TensorListStack
    """)
)


class UnknownShape(Exception):
    """A dimension that the graph does not know."""


def op_flops(op: Any) -> float | None:
    """Return an operation's arithmetic, None where no rule knows it.

    Raises:
        UnknownShape: Where its shapes are open.
    """
    if op.type in PRODUCTS:
        return PRODUCTS[op.type](op)
    # A comparison of floats yields booleans, and a cast of whole numbers computes nothing.
    if op.type in NO_ARITHMETIC or not any(map(_is_float, (*op.inputs, *op.outputs))):
        return 0.0
    if op.type in AN_INPUT:
        place, each = AN_INPUT[op.type]
        return each * elements(op.inputs[place])
    if op.type in AN_OUTPUT:
        return AN_OUTPUT[op.type] * elements(op.outputs[0])
    if op.type in POOLS or op.type in POOL_GRADIENTS:
        # Forth and back, every value of a window meets the one that is pooled out of it.
        return float(math.prod(op.get_attr("ksize")) * elements(_pooled(op)))
    if op.type == "AddN":
        return (len(op.inputs) - 1.0) * elements(op.outputs[0])
    return None


def op_bytes(op: Any) -> float:
    """Return what it reads and writes, if nothing stays in a cache; views move nothing."""
    if op.type in VIEWS:
        return 0.0
    if op.type in READS_A_PART:
        return 2.0 * sum(map(tensor_bytes, op.outputs))
    moved = float(sum(map(tensor_bytes, (*op.inputs, *op.outputs))))
    if op.type in ("AssignAddVariableOp", "AssignSubVariableOp"):
        # The value is an input; the variable itself is read and written.
        return 3.0 * moved
    if op.type.startswith("ResourceApply"):
        return moved + 2.0 * sum(map(_variable_bytes, op.inputs))
    if op.type.startswith("ResourceScatter"):
        return moved + 2.0 * tensor_bytes(op.inputs[2])
    return moved


def elements(tensor: Any) -> int:
    """Return how many values a tensor holds."""
    return math.prod(_dims(tensor))


def tensor_bytes(tensor: Any) -> int:
    """Return its size; handles, lists of tensors and text count as nothing."""
    # Axes found while running: a few numbers, whose count no shape tells.
    if tensor.op.type == "BroadcastGradientArgs" or not _has_numbers(tensor.dtype):
        return 0
    return elements(tensor) * int(tensor.dtype.size)


def _has_numbers(dtype: Any) -> bool:
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex)


def _dims(tensor: Any) -> list[int]:
    if not tensor.shape.is_fully_defined():
        raise UnknownShape(tensor.name)
    return [int(size) for size in tensor.shape]


def _is_float(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating or tensor.dtype.is_complex)


def _pooled(op: Any) -> Any:
    """Return the pooled side of a pooling or of its gradient."""
    place = POOL_GRADIENTS.get(op.type)
    return op.outputs[0] if place is None else op.inputs[place]


def _variable_bytes(tensor: Any) -> int:
    handle = getattr(tensor, "_handle_data", None)
    if handle is None or not handle.is_set:
        return 0
    import tensorflow as tf

    held = handle.shape_and_type[0]
    count: int = math.prod(size.size for size in held.shape.dim)
    return count * int(tf.as_dtype(held.dtype).size)


def _matmul(op: Any) -> float:
    rows_first = "transpose_a" if op.type == "MatMul" else "adj_x"
    shared = _dims(op.inputs[0])[-2 if op.get_attr(rows_first) else -1]
    return 2.0 * shared * elements(op.outputs[0])


def _convolution(result: int, kernel: int, *, depthwise: bool = False) -> Callable[[Any], float]:
    """Return which of the tensors are the smaller image and the kernel; -1 is the output.

    A convolution and both its gradients multiply the same pairs of numbers.
    """

    def count(op: Any) -> float:
        image, window = (op.outputs[0] if at < 0 else op.inputs[at] for at in (result, kernel))
        sizes = _dims(window)
        # The kernel of a depthwise convolution meets each output channel with one input channel.
        each = math.prod(sizes[:-2]) if depthwise else math.prod(sizes[:-1])
        return 2.0 * elements(image) * each

    return count


def _einsum(op: Any) -> float:
    """Count one multiplication and one addition for every combination of the labels."""
    terms = op.get_attr("equation").decode().replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, tensor in zip(terms, op.inputs, strict=True):
        if "." in term:  # tf.einsum writes an ellipsis out wherever it knows the dimensions
            raise UnknownShape(tensor.name)
        for label, size in zip(term, _dims(tensor), strict=True):
            sizes[label] = max(size, sizes.get(label, 1))
    # One operand is at most summed.
    return (2.0 if len(terms) > 1 else 1.0) * math.prod(sizes.values())


def _cudnn_rnn(op: Any) -> float:
    """Let every weight meet every example of every time step; biases are taken for weights."""
    steps, batch = _dims(op.inputs[0])[:2]
    passes = 2.0 if "Backprop" in op.type else 1.0
    return 2.0 * passes * steps * batch * elements(op.inputs[3])


PRODUCTS: dict[str, Callable[[Any], float]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matmul),
    "Einsum": _einsum,
    **dict.fromkeys(("Conv2D", "Conv3D"), _convolution(-1, 1)),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _convolution(2, 1)),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), _convolution(2, -1)),
    "DepthwiseConv2dNative": _convolution(-1, 1, depthwise=True),
    "DepthwiseConv2dNativeBackpropInput": _convolution(2, 1, depthwise=True),
    "DepthwiseConv2dNativeBackpropFilter": _convolution(2, -1, depthwise=True),
    **dict.fromkeys(("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3"), _cudnn_rnn),
    **dict.fromkeys(("CudnnRNNBackprop", "CudnnRNNBackpropV2", "CudnnRNNBackpropV3"), _cudnn_rnn),
}
