"""Published peaks of common GPUs, each with where it is published.

All are of dense products: NVIDIA's data sheets of Ampere and later print twice as much, for sparse
ones. Memory is what nvidia-smi lists of each (memory.total, with ECC), read in listings that people
published up to 2026: the data sheets' round gigabytes are neither 10^9 nor 2^30 bytes throughout.
Older drivers list some hundreds of MiB less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tfopt.errors import UserError


@dataclass(frozen=True)
class Gpu:
    """One product.

    Attributes:
        products_tflops: Of matrix products by dtype; "float32" is what TensorFlow computes them in
            by default: TF32 on tensor cores, from Ampere on. A dtype that is not there runs at
            no gain (bfloat16 before Ampere).
        other_tflops: Of everything else, in float32 outside of tensor cores.
        memory_mib: As the driver tells it, of which it keeps some.
        gb_per_s: Of the GPU's own memory.
    """

    name: str
    products_tflops: Mapping[str, float]
    other_tflops: float
    memory_mib: float
    gb_per_s: float
    source: str


def _gpu(
    name: str, float32: float, half: float, other: float, memory: float, rate: float, source: str
) -> Gpu:
    peaks = {"float32": float32, "float16": half}
    if float32 > other:  # TF32, and with it bfloat16, came with Ampere
        peaks["bfloat16"] = half
    return Gpu(name, MappingProxyType(peaks), other, memory, rate, source)


_T4 = "NVIDIA T4 data sheet (nvidia.com/en-us/data-center/tesla-t4)"
_V100 = "NVIDIA V100 data sheet (nvidia.com/en-us/data-center/v100), SXM2"
_A100 = "NVIDIA A100 data sheet (nvidia.com/en-us/data-center/a100), SXM"
_H100 = "NVIDIA H100 data sheet (nvidia.com/en-us/data-center/h100), halved to dense"
_H200 = "NVIDIA H200 data sheet (nvidia.com/en-us/data-center/h200), halved to dense"
_L4 = "NVIDIA L4 data sheet (nvidia.com/en-us/data-center/l4), halved to dense"

GPUS: tuple[Gpu, ...] = (
    _gpu("T4", 8.1, 65.0, 8.1, 15360, 320.0, _T4),
    _gpu("L4", 60.0, 121.0, 30.3, 23034, 300.0, _L4),
    _gpu("V100 16GB", 15.7, 125.0, 15.7, 16384, 900.0, _V100),
    _gpu("V100 32GB", 15.7, 125.0, 15.7, 32768, 900.0, _V100),
    _gpu("A100 40GB", 156.0, 312.0, 19.5, 40960, 1555.0, _A100),
    _gpu("A100 80GB", 156.0, 312.0, 19.5, 81920, 2039.0, _A100),
    _gpu("H100 PCIe", 378.0, 756.0, 51.0, 81559, 2000.0, _H100),
    _gpu("H100 SXM", 494.5, 989.5, 67.0, 81559, 3350.0, _H100),
    _gpu("H200 SXM", 494.5, 989.5, 67.0, 143771, 4800.0, _H200),
)


def gpu_named(name: str) -> Gpu:
    """By its name, however that is written: "a100-80gb" is "A100 80GB"."""
    for gpu in GPUS:
        if _plain(gpu.name) == _plain(name):
            return gpu
    raise UserError(
        "There are no published figures of that GPU here.",
        expected=", ".join(gpu.name for gpu in GPUS),
        received=repr(name),
    )


def _plain(name: str) -> str:
    return "".join(each for each in name.lower() if each.isalnum())
