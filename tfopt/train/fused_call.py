"""Call cuDNN's fused attention from TensorFlow: one kernel forward, one backward, by XLA.

Both are custom calls of XLA, with its ``CudnnfMHABackendConfig`` as settings. The scores are never
written to memory, which makes long sequences fast. JAX calls them in the same way
(``jax/_src/cudnn/fused_attention_stablehlo.py``): on tensors as layers hold them, tokens before
heads, so that nothing is transposed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tfopt.train.custom_call import TensorType, custom_call

# Added to a masked score: its probability is zero, and the difference of two is still finite.
MASKED = {"bfloat16": -(2.0**41), "float16": -(2.0**15)}
_SWAPPED = (0, 2, 1, 3)


@dataclass(frozen=True)
class FusedCall:
    """The static settings of one attention: sizes, kind of mask, scale.

    ``bias`` holds the numbers of examples and heads of a bias of the scores; None without one.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    dtype: str
    scale: float
    causal: bool = False
    has_lengths: bool = False
    bias: tuple[int, int] | None = None

    @property
    def mask_type(self) -> str:
        """Return cuDNN's name for the mask."""
        if self.has_lengths:
            return "PADDING_CAUSAL" if self.causal else "PADDING"
        return "CAUSAL" if self.causal else "NO_MASK"

    def target(self, backward: bool) -> str:
        """Return the name of the custom call."""
        bias = "" if self.bias is None else "ScaleBias"
        return f"__cudnn$fmha{bias}Softmax{'Backward' if backward else ''}"

    def config(self, backward: bool) -> str:
        """Return the settings of the custom call, as XLA reads them.

        Fields with their default are left out: XLA refuses a name that it does not know, and that
        of TensorFlow 2.18 does not know ``max_seg_per_batch`` and ``is_paged_attention``.
        """
        sizes = (self.batch, self.heads, self.queries, self.keys)
        settings = {
            "algorithm": {
                "algo_id": "0",
                "math_type": "TENSOR_OP_MATH",
                "tuning_knobs": {"17": "1", "24": "0"},
                "is_cudnn_frontend": True,
                "workspace_size": "0",
            },
            "fmha_scale": self.scale,
            "intermediate_tensor_shape": {
                "element_type": {"bfloat16": "BF16", "float16": "F16"}[self.dtype],
                "dimensions": [str(size) for size in sizes],
                "layout": {"minor_to_major": ["3", "2", "1", "0"]},
                "is_dynamic_dimension": [False] * 4,
            },
            "is_flash_attention": True,
            "mask_type": self.mask_type,
            **(_BACKWARD_PRODUCTS if backward else _FORWARD_PRODUCTS),
        }
        return json.dumps({"operation_queue_id": "0", "cudnn_fmha_backend_config": settings})


def _product(left: str, right: str) -> dict[str, list[str]]:
    """Return the dimension numbers of a matrix product, from the axes of both sides.

    They are those of the examples, of the heads, and the one that is summed.
    """
    return {
        "lhs_contracting_dimensions": [left[2]],
        "rhs_contracting_dimensions": [right[2]],
        "lhs_batch_dimensions": [*left[:2]],
        "rhs_batch_dimensions": [*right[:2]],
    }


# Of tensors (batch, tokens, heads, head size) and scores (batch, heads, queries, keys).
_FORWARD_PRODUCTS = {
    "bmm1_dot_dimension_numbers": _product("023", "023"),  # of query and key
    "bmm2_dot_dimension_numbers": _product("013", "021"),  # of scores and value
}
_BACKWARD_PRODUCTS = {
    "bmm1_grad_gemm1_dot_dimension_numbers": _product("012", "021"),
    "bmm1_grad_gemm2_dot_dimension_numbers": _product("013", "021"),
    "bmm2_grad_gemm1_dot_dimension_numbers": _product("012", "021"),
    "bmm2_grad_gemm2_dot_dimension_numbers": _product("023", "023"),
}


def fused(call: FusedCall, query: Any, key: Any, value: Any, bias: Any, lengths: Any) -> Any:
    """Return the attention of tensors of shape (batch, tokens, heads, head size), with a gradient.

    Args:
        call: The static settings.
        query, key, value: Of ``call.dtype``.
        bias: Of shape (1 or batch, 1 or heads, queries, keys), or None.
        lengths: The numbers of queries and of keys per example, two int32 vectors, or None.
    """
    import tensorflow as tf

    lengths = list(lengths or ())

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def attention(*inputs: Any) -> Any:
        tokens, given_bias = inputs[:3], inputs[3:]
        output, statistics = _compiled(call, False)(*inputs, *lengths)

        def gradient(upstream: Any) -> list[Any]:
            gradients = _compiled(call, True)(
                *tokens, statistics, upstream, *given_bias, output, *lengths
            )
            of_bias = list(gradients[3:]) or [None] * len(given_bias)
            return [*gradients[:3], *of_bias]

        return output, gradient

    return attention(query, key, value, *([] if bias is None else [bias]))


@lru_cache(maxsize=256)
def _compiled(call: FusedCall, backward: bool) -> Any:
    """Return the call as a function compiled by XLA, also for steps without XLA."""
    import tensorflow as tf

    @tf.function(jit_compile=True)  # type: ignore[untyped-decorator]
    def compiled(*operands: Any) -> Any:
        *results, _workspace = custom_call(
            call.target(backward), operands, _results(call, backward), call.config(backward)
        )
        return results

    return compiled


def _results(call: FusedCall, backward: bool) -> list[TensorType]:
    """Return the results, whose shapes have heads before tokens, unlike memory."""
    queries = TensorType(
        (call.batch, call.heads, call.queries, call.head_size), call.dtype, _SWAPPED
    )
    keys = TensorType((call.batch, call.heads, call.keys, call.head_size), call.dtype, _SWAPPED)
    if backward:
        results = [queries, keys, keys]
        # TensorFlow 2.18 writes the gradient of a bias of this shape, asked for or not.
        if call.bias == (1, call.heads):
            results.append(TensorType((1, call.heads, call.queries, call.keys), call.dtype))
    else:
        results = [queries, TensorType(queries.shape[:3], "float32")]
    return [*results, TensorType((0,), "uint8")]  # the workspace, sized by XLA
