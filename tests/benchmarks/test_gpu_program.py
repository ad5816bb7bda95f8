"""What XLA has compiled for a GPU is counted; the compiler itself needs JAX for CUDA."""

from benchmarks.gpu_compiler import kernels

PROGRAM = """
%fused_computation (parameter_0: bf16[8,4]) -> bf16[8,4] {
  ROOT %copy.9 = bf16[8,4]{1,0} copy(%parameter_0)
}

ENTRY %main.1 (x: bf16[8,4]) -> bf16[8,4] {
  %x = bf16[8,4]{1,0} parameter(0)
  %gemm_fusion_dot.1 = bf16[8,4]{1,0} fusion(%x, %x), kind=kCustom, calls=%gemm
  %loop_add_fusion = bf16[8,4]{1,0} fusion(%gemm_fusion_dot.1), kind=kLoop, calls=%add
  %call.2 = (bf16[8,4]{1,0}, u8[0]{0}) custom-call(%x), custom_call_target="__cudnn$fmhaSoftmax"
  ROOT %copy.1 = bf16[8,4]{0,1} copy(%loop_add_fusion)
}
"""


def test_the_kernels_that_a_step_starts_are_counted_by_kind():
    assert kernels(PROGRAM) == {
        "matrix product": 1,
        "fusion": 1,
        "__cudnn$fmhaSoftmax": 1,
        "copy": 1,
    }
