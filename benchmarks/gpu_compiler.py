"""Compile a program for an H100 on a machine without one, by the XLA of JAX.

``PYTHON -m benchmarks.gpu_compiler < PROGRAM`` reads an HLO module, serialized, and prints what
XLA has made of it as JSON. PYTHON has ``jax[cuda12]`` and needs no TensorFlow. Nothing runs, and
where XLA would time kernels to choose one (autotuning), it takes the first.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from typing import Any

# As XLA's own description of the card has it (xla/backends/gpu/target_config/specs).
H100 = """
    platform_name: "CUDA"  device_description_str: "NVIDIA H100 80GB HBM3"
    dnn_version_info { major: 9 minor: 12 }  runtime_version { major: 12 minor: 9 }
    gpu_device_info {
      cuda_compute_capability { major: 9 }  core_count: 132  fpus_per_core: 128
      clock_rate_ghz: 1.98  memory_bandwidth: 3352320000000  l2_cache_size: 52428800
      device_memory_size: 84929347584
      threads_per_block_limit: 1024  threads_per_warp: 32  threads_per_core_limit: 2048
      block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
      registers_per_core_limit: 65536  registers_per_block_limit: 65536
      shared_memory_per_block: 49152  shared_memory_per_core: 233472
      shared_memory_per_block_optin: 232448
    }
"""


def compiled(program: bytes) -> dict[str, Any]:
    """Return the kernels of a program by kind, its memory, and XLA's estimate of its work."""
    import jax
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies
    from jaxlib import _jax
    from jaxlib.xla_client import CompileOptions

    topology = topologies.get_topology_desc("", "cuda", target_config=H100, topology="1x1x1")
    (device,) = topology.devices
    text = _jax.mlir.xla_computation_to_mlir_module(_jax.XlaComputation(program))
    # JAX's own programs have no copies, which its compiler refuses.
    text = re.sub(r"mhlo\.copy (%\S+) : (tensor<.*?>)", r"stablehlo.reshape \1 : (\2) -> \2", text)
    context = mlir.make_ir_context()
    with context, ir.Location.unknown(context):
        module = ir.Module.parse(text)
    begun = time.perf_counter()
    executable = device.client.compile(module, _jax.DeviceList((device,)), CompileOptions())
    compile_s = time.perf_counter() - begun
    (optimized,) = executable.hlo_modules()
    work = _jax.hlo_module_cost_analysis(jax.devices("cpu")[0].client, optimized)
    memory = executable.get_compiled_memory_stats()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes
    held += memory.temp_size_in_bytes - memory.alias_size_in_bytes
    return {
        "kernels": kernels(optimized.to_string()),
        "gigabytes": round(work["bytes accessed"] / 1e9, 3),
        "teraflops": round(work["flops"] / 1e12, 3),
        "memory_mib": round(held / 2**20),
        "compile_s": round(compile_s, 1),
        "jax": jax.__version__,
    }


def kernels(program: str) -> dict[str, int]:
    """Return how many kernels of each kind a step starts."""
    step = program[program.index("\nENTRY ") :]
    kinds = Counter[str]()
    for line in step.splitlines():
        if match := re.search(r'custom_call_target="(.*?)"', line):
            kinds[match[1]] += 1
        elif match := re.search(r" (fusion|copy)\(", line):
            product = "gemm" in line.partition(" = ")[0]
            kinds["matrix product" if product else match[1]] += 1
    return dict(kinds.most_common())


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"  # the plugin for CUDA compiles without a card
    print(json.dumps(compiled(sys.stdin.buffer.read())))
