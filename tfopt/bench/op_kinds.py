"""TensorFlow's operations by what they do to numbers: the tables behind ``op_cost``.

Guarantees: names only; an operation in none of these tables is for ``op_cost`` to report.
"""

from __future__ import annotations


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
# Python code: what it computes is in no graph.
ALWAYS_TOLD = frozenset({"EagerPyFunc", "PyFunc", "PyFuncStateless"})
