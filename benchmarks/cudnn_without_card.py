"""Ask cuDNN for kernels of fused attention on a GPU that is described and not there.

``PYTHON -m benchmarks.cudnn_without_card < CASES`` reads JSON: a ``card`` and ``calls``, the fields
of ``tfopt.train.fused_call.FusedCall``. It prints for each what cuDNN refuses, or null. PYTHON has
``nvidia-cudnn-cu12`` from 9.11 on, CUDA's compiler ``nvidia-cuda-nvrtc-cu12`` (both come with
``jax[cuda12]``) and ``nvidia-cudnn-frontend``; it needs no TensorFlow.

The graphs are those that XLA builds (``GetCudnnFlashAttentionOperationGraph`` in its
``cuda_dnn.cc``). cuDNN chooses an engine and compiles its kernel for a described device, but hands
the kernel to CUDA's driver: a library in its place takes everything and does nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_IN_PLACE = "CUDNN_WITHOUT_CARD"  # the number of the architecture, where the driver is replaced
_DRIVER = r"""
#include <string.h>
int cuInit(unsigned flags) { return 100; }  /* there is no device */
int cuGetExportTable(const void **table, const void *id) { return 500; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "none"; return 0; }
int cuLibraryLoadData(void **library) { *library = (void *)1; return 0; }
int cuLibraryGetKernel(void **kernel) { *kernel = (void *)1; return 0; }
"""
# The fields of a device's properties that cuDNN's front end reads.
_RUNTIME = r"""
#include <string.h>
int cudaGetDevice(int *device) { *device = 0; return 0; }
int cudaGetDeviceProperties(char *found, int device) {
    memset(found, 0, 400);
    memcpy(found + 360, (int[]){ARCHITECTURE / 100, ARCHITECTURE % 100 / 10}, 8);
    return 0;
}
const char *cudaGetErrorString(int error) { return "none"; }
"""
_ALIKE = {  # in all cards, as cuDNN serializes the properties of a device
    "maxGridSize": [2147483647, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "smClockRateKHz": 1500000,
    "memClockRateKHz": 2000000,
    "memoryBusWidth": 5120,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "reservedSharedMemoryPerBlock": 1024,
    "maxRegistersPerSM": 65536,
    "pciDeviceId": 0,
    "maxThreadsPerBlock": 1024,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "driverVer": 13000,
    "totalGlobalMem": 2**34,
    "cudaDeviceId": 0,
    "smCountOrigin": 0,
}


def main() -> None:
    """Answer, in a process with the stand-in for the driver."""
    given = json.loads(sys.stdin.read())
    if _IN_PLACE in os.environ:
        print(json.dumps(answers(**given)))
        return
    with tempfile.TemporaryDirectory() as folder:
        environment = stand_ins(Path(folder), given["card"]["deviceVer"])
        command = [sys.executable, "-m", "benchmarks.cudnn_without_card"]
        done = subprocess.run(command, input=json.dumps(given), env=environment, text=True)
    sys.exit(done.returncode)


def stand_ins(folder: Path, architecture: int) -> dict[str, str]:
    """Build the libraries in the place of CUDA's, and return the environment that finds them."""
    import nvidia

    (packages,) = [Path(each) for each in nvidia.__path__]
    libraries = sorted(packages.glob("cudnn/lib/*.so*"))
    # Its symbols, by which cuDNN finds the functions of the driver.
    symbols = re.compile(rb"\0(cu[A-Z]\w+)(?=\0)")
    names = {name for each in libraries for name in symbols.findall(each.read_bytes())}
    written = set(re.findall(r"int (cu\w+)\(", _DRIVER))
    others = sorted({name.decode() for name in names} - written)
    driver = _DRIVER + "".join(f"int {name}(void) {{ return 0; }}\n" for name in others)
    runtime = _RUNTIME.replace("ARCHITECTURE", str(architecture))
    for name, source in (("libcuda.so.1", driver), ("libcudart.so.13", runtime)):
        command = ["cc", "-w", "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{name}"]
        subprocess.run([*command, "-o", folder / name], input=source, text=True, check=True)
    # Beside CUDA's own runtime, cuDNN's front end takes no second one.
    packed = [each for each in packages.glob("*/lib") if each.parent.name != "cuda_runtime"]
    return {
        **os.environ,
        _IN_PLACE: str(architecture),
        "LD_LIBRARY_PATH": ":".join(map(str, [folder, *packed])),
        "LD_PRELOAD": str(folder / "libcudart.so.13"),
    }


def answers(card: dict[str, Any], calls: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what cuDNN refuses of each call, forward or backward, or None."""
    import cudnn

    oversized = {"oversizedSharedMemoryPerBlock": card["maxSharedMemoryPerBlockOptin"]}
    device = cudnn.create_device_properties(json.dumps({**_ALIKE, **oversized, **card}))
    refused = [_refused(cudnn, card, device, call) for call in calls]
    return {"cudnn": cudnn.backend_version_string(), "refused": refused}


def _refused(cudnn: Any, card: dict[str, Any], device: Any, call: dict[str, Any]) -> str | None:
    for direction in (_forward, _backward):
        io = {"bfloat16": cudnn.data_type.BFLOAT16, "float16": cudnn.data_type.HALF}[call["dtype"]]
        graph = cudnn.pygraph(
            io_data_type=io,
            intermediate_data_type=cudnn.data_type.FLOAT,
            compute_data_type=cudnn.data_type.FLOAT,
            device_property=device,
            sm_version=card["deviceVer"] // 10,
            sm_count=card["multiProcessorCount"],
        )
        try:
            direction(cudnn, graph, call)
            graph.validate()
            graph.build_operation_graph()
            graph.create_execution_plans([cudnn.heur_mode.A])
            graph.check_support()
            graph.build_plans()
        except (RuntimeError, cudnn.cudnnGraphNotSupportedError) as error:
            return f"{direction.__name__[1:]}: {str(error).splitlines()[0]}"
    return None


def _forward(cudnn: Any, graph: Any, call: dict[str, Any]) -> None:
    query, key, value, options = _operands(cudnn, graph, call)
    output, statistics = graph.sdpa(q=query, k=key, v=value, generate_stats=True, **options)
    _tokens_as(output, query)
    shape = [call["batch"], call["heads"], call["queries"], 1]
    statistics.set_output(True).set_data_type(cudnn.data_type.FLOAT)
    statistics.set_dim(shape).set_stride(_strides(shape))


def _backward(cudnn: Any, graph: Any, call: dict[str, Any]) -> None:
    query, key, value, options = _operands(cudnn, graph, call)
    upstream, output = (graph.tensor_like(query) for _ in range(2))
    shape = [call["batch"], call["heads"], call["queries"], 1]
    statistics = _tensor(graph, shape, cudnn.data_type.FLOAT)
    if call["bias"] == [1, call["heads"]]:  # as in tfopt.train.fused_call
        options["dBias"] = graph.tensor_like(options["bias"])
    gradients = graph.sdpa_backward(
        q=query, k=key, v=value, o=output, dO=upstream, stats=statistics, **options
    )
    for gradient, like in zip(gradients, (query, key, value), strict=True):
        _tokens_as(gradient, like)


def _operands(cudnn: Any, graph: Any, call: dict[str, Any]) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return query, key and value, with tokens before heads in memory, and the options."""
    batch, heads, size = call["batch"], call["heads"], call["head_size"]
    tokens = []
    for length in (call["queries"], call["keys"], call["keys"]):
        strides = [length * heads * size, size, heads * size, 1]
        tokens.append(graph.tensor(dim=[batch, heads, length, size], stride=strides))
    options = {"attn_scale": call["scale"], "use_causal_mask": call["causal"]}
    if call["bias"] is not None:
        options["bias"] = _tensor(graph, [*call["bias"], call["queries"], call["keys"]])
    if call["has_lengths"]:
        options["use_padding_mask"] = True
        for name in ("seq_len_q", "seq_len_kv"):
            options[name] = _tensor(graph, [batch, 1, 1, 1], cudnn.data_type.INT32)
    return (*tokens, options)


def _tensor(graph: Any, shape: list[int], dtype: Any = None) -> Any:
    kind = {} if dtype is None else {"data_type": dtype}
    return graph.tensor(dim=shape, stride=_strides(shape), **kind)


def _strides(shape: list[int]) -> list[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides


def _tokens_as(result: Any, like: Any) -> None:
    result.set_output(True).set_dim(like.get_dim()).set_stride(like.get_stride())


if __name__ == "__main__":
    main()
