"""The custom calls beside JAX's, which calls the same kernels, and beside what XLA can read.

``JAX`` is what JAX 0.10.2 lowers ``dot_product_attention`` of
``jax/_src/cudnn/fused_attention_stablehlo.py`` to for CUDA, forward and backward.
"""

import json

import numpy as np
import pytest
import tensorflow as tf
from attention_stand_in import as_cudnn_computes, on_a_stand_in

from tfopt.train import fused_call
from tfopt.train.attention import dot_product_attention
from tfopt.train.custom_call import TensorType

Q, K, S, W, LENGTH = "3x8x2x16", "3x12x2x16", "3x2x8:float32", "0:uint8", "3:int32"
# Results have heads first, and lie in memory as the operands do.
SWAPPED = "3x2x8x16 in the order of 3x8x2x16", "3x2x12x16 in the order of 3x12x2x16"
FIRST, GRADIENTS = [Q, K, K, S, Q], [SWAPPED[0], SWAPPED[1], SWAPPED[1]]
JAX = {
    "plain": ("Softmax", "NO_MASK", [Q, K, K], [*FIRST, Q], GRADIENTS),
    "causal": ("Softmax", "CAUSAL", [Q, K, K], [*FIRST, Q], GRADIENTS),
    "lengths": (
        "Softmax",
        "PADDING",
        [Q, K, K, LENGTH, LENGTH],
        [*FIRST, Q, LENGTH, LENGTH],
        GRADIENTS,
    ),
    # JAX also asks for the gradient of this mask.
    "mask": (
        "ScaleBiasSoftmax",
        "NO_MASK",
        [Q, K, K, "3x1x8x12"],
        [*FIRST, "3x1x8x12", Q],
        GRADIENTS,
    ),
    "bias": (
        "ScaleBiasSoftmax",
        "NO_MASK",
        [Q, K, K, "1x2x8x12"],
        [*FIRST, "1x2x8x12", Q],
        [*GRADIENTS, "1x2x8x12"],
    ),
}
JAX["lengths, causal"] = ("Softmax", "PADDING_CAUSAL", *JAX["lengths"][2:])
# The gradient of a mask for each head is written into a result, as JAX does.
JAX["mask by head"] = JAX["bias"]
MASK = np.arange(12) < np.array([12, 5, 3])[:, None, None, None]
GIVEN = {
    "plain": {},
    "causal": {"is_causal": True},
    "lengths": {"lengths": [12, 5, 3]},
    "lengths, causal": {"lengths": [12, 5, 3], "is_causal": True},
    "mask": {"mask": MASK},
    "mask by head": {"mask": np.broadcast_to(MASK[:1], (1, 2, 1, 12))},
    "bias": {"bias": tf.ones((1, 2, 8, 12))},
}
# The fields of CudnnfMHABackendConfig in TensorFlow 2.18.1; those of 2.21.0 are more.
OF_TF_2_18 = {"algorithm", "fmha_scale", "dropout_rate", "intermediate_tensor_shape", "seed"}
OF_TF_2_18 |= {"bmm1_dot_dimension_numbers", "bmm2_dot_dimension_numbers", "force_deterministic"}
OF_TF_2_18 |= {f"bmm{n}_grad_gemm{m}_dot_dimension_numbers" for n in (1, 2) for m in (1, 2)}
OF_TF_2_18 |= {"is_flash_attention", "is_causal_mask", "mask_type", "sliding_window_length"}
# JAX's of the settings that tfopt leaves out, the defaults of proto3 or without effect here.
LEFT_OUT = {"dropout_rate", "seed", "sliding_window_length"}
LEFT_OUT |= {"max_seg_per_batch", "is_paged_attention"}
# The axes of both sides: of examples, of heads, and the one that is summed.
PRODUCTS = {
    "bmm1_dot_dimension_numbers": ["023", "023"],
    "bmm2_dot_dimension_numbers": ["013", "021"],
    "bmm1_grad_gemm1_dot_dimension_numbers": ["012", "021"],
    "bmm1_grad_gemm2_dot_dimension_numbers": ["013", "021"],
    "bmm2_grad_gemm1_dot_dimension_numbers": ["012", "021"],
    "bmm2_grad_gemm2_dot_dimension_numbers": ["023", "023"],
}


@pytest.fixture
def calls(monkeypatch):
    """Return the custom calls of a test, as text."""
    made = []

    def words(array):
        sizes = "x".join(map(str, array.shape))
        if array.order is not None:
            return f"{sizes} in the order of {words(array.in_memory)}"
        return sizes if array.dtype in ("float16", "bfloat16") else f"{sizes}:{array.dtype}"

    def recorded(target, operands, results, config):
        given = [TensorType(tuple(tensor.shape), tensor.dtype.name) for tensor in operands]
        made.append((target, [*map(words, given)], [*map(words, results)], json.loads(config)))
        return as_cudnn_computes(target, operands, results, config)

    with on_a_stand_in():
        monkeypatch.setattr(fused_call, "custom_call", recorded)
        yield made


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", JAX)
def test_the_custom_calls_are_those_of_jax(calls, kind, dtype):
    shapes = (3, 8, 2, 16), (3, 12, 2, 16), (3, 12, 2, 16)
    inputs = [tf.random.stateless_normal(shape, (0, 1), dtype=dtype) for shape in shapes]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = dot_product_attention(*inputs, **GIVEN[kind], scale=0.25)
    tape.gradient(output, inputs)
    target, mask_type, operands, operands_backward, gradients = JAX[kind]
    forward, backward = calls
    assert forward[:3] == (f"__cudnn$fmha{target}", operands, [SWAPPED[0], S, W])
    assert backward[:3] == (f"__cudnn$fmha{target}Backward", operands_backward, [*gradients, W])
    products = {}
    for *_, config in calls:
        assert config["operation_queue_id"] == "0"
        settings = config["cudnn_fmha_backend_config"]
        assert settings.keys() <= OF_TF_2_18 - LEFT_OUT
        assert (settings["fmha_scale"], settings["mask_type"]) == (0.25, mask_type)
        assert settings["is_flash_attention"] is True
        assert settings["intermediate_tensor_shape"] == {
            "element_type": {"float16": "F16", "bfloat16": "BF16"}[dtype],
            "dimensions": ["3", "2", "8", "12"],
            "layout": {"minor_to_major": ["3", "2", "1", "0"]},
            "is_dynamic_dimension": [False] * 4,
        }
        for name, numbers in settings.items():
            if name.endswith("dot_dimension_numbers"):
                sides = [f"{side}_{{}}_dimensions".format for side in ("lhs", "rhs")]
                products[name] = [
                    "".join([*numbers[of("batch")], *numbers[of("contracting")]]) for of in sides
                ]
    assert products == PRODUCTS
