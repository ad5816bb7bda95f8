"""Bench reports as a machine with two cores would give them, with what a test wants changed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tfopt.report.bench_report import Asked, BenchReport, Provenance, VariantReport
from tfopt.report.block import Block, BlockMemory, GpuState
from tfopt.report.training import Epoch, Figures

NO_GPU = "no GPU visible (NVML: NVML Shared Library Not Found)"
NOT_ASKED = "not asked for"

PROVENANCE = Provenance(
    platform="Linux x86_64",
    cpu="AMD EPYC",
    cpu_flags=("avx", "avx2", "fma"),
    cpu_count=2,
    cpu_limit=None,
    memory_gib=23.5,
    memory_limit_gib=None,
    container=None,
    gpus=(),
    no_gpu_reason=NO_GPU,
    driver=None,
    cuda=None,
    cudnn=None,
    packages={"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1", "tfopt": "0.1"},
    git="1a2b3c4",
    variables={"TF_ENABLE_ONEDNN_OPTS": "1"},
    directory="/home/someone/project",
)
ASKED = Asked(
    kind="single",
    quick=False,
    windows=30,
    window_ms=250.0,
    warm_up_s=1.0,
    rounds_at_least=5,
    rounds_at_most=20,
    half_width=0.02,
    seed=0,
)


def gpu(name: str = "NVIDIA H200") -> GpuState:
    return GpuState(
        uuid=f"GPU-{name}",
        name=name,
        utilisation_percent=97.0,
        sm_clock_mhz=1980.0,
        memory_clock_mhz=2619.0,
        temperature_c=55.0,
        power_w=480.0,
        energy_j=None,
        throttle_reasons=(),
        throttled=False,
    )


def block(level: float, random, *, noise: float = 0.001, **changed) -> Block:
    """A block around this step time; ``host_peak_mib`` and ``gpu_peak_mib`` are its memory."""
    host = changed.pop("host_peak_mib", 960.5)
    peak = changed.pop("gpu_peak_mib", None)
    values = {
        "host_peak_mib": host,
        "gpu_allocator_peak_mib": peak,
        "gpu_steady_peak_mib": peak,
        "nvml_process_peak_mib": None,
        "nvml_device_peak_mib": None,
    }
    missing = {name: NO_GPU for name, value in values.items() if value is None}
    known = {
        "start_s": 3.1,
        "build_s": 0.4,
        "first_step_s": 1.05,
        "warm_up_s": 1.02,
        "windows_ms": tuple(map(float, level * random.lognormal(0, noise, 12))),
        "between_epochs_ms": (3.2,),
        "steps": (25,) * 12,
        "batch_size": 32,
        "examples_per_step": changed.get("batch_size", 32),
        "replicas": 1,
        "memory": BlockMemory(**values, unavailable=missing),
        "gpus": (),
        "data": "mnist: 10,000 digits",
        "invalid": None,
        "round": 0,
        **changed,
    }
    unavailable = {} if known["batch_size"] else {"batch_size": NOT_ASKED}
    return Block(**known, unavailable=unavailable)


def blocks(level: float, count: int = 6, *, seed: int = 0, spread: float = 0.002, **changed):
    """So many blocks around a level, each a little off it."""
    random = np.random.default_rng(seed)
    return tuple(
        block(level * random.lognormal(0, spread), random, **changed) for _ in range(count)
    )


def variant(name: str, measured: tuple[Block, ...] = (), **changed) -> VariantReport:
    """A variant with these blocks, a round each; without any it failed."""
    missing = dict.fromkeys(VariantReport.MAY_BE_NONE, NOT_ASKED)
    made = {
        "name": name,
        "job": "my_package.train:job",
        "arguments": {},
        "transform": None,
        "chain": "chain()",
        "exact": True,
        "status": "measured" if measured else "failed",
        "reason": None if measured else "the process ended without a result",
        "changed": (),
        "blocks": tuple(replace(block, round=number) for number, block in enumerate(measured)),
        "scaling": None,
        "trainings": (),
        "unavailable": missing,
        **dict.fromkeys(VariantReport.MAY_BE_NONE),
        **changed,
    }
    present = [name for name in VariantReport.MAY_BE_NONE if made[name] is not None]
    made["unavailable"] = {name: why for name, why in missing.items() if name not in present}
    return VariantReport(**made)


def report(
    *variants: VariantReport, asked: dict | None = None, provenance: dict | None = None, **changed
) -> BenchReport:
    """A report of these variants; ``asked`` and ``provenance`` are what differs from the usual."""
    known = {
        "title": "my_package.train:job",
        "command": "tfopt bench my_package.train:job",
        "created": "2026-11-21T12:00:00+00:00",
        "data": "mnist: 10,000 digits",
        "recommendation": None,
        "complete": True,
        "notes": (),
        **changed,
    }
    return BenchReport(
        provenance=replace(PROVENANCE, **(provenance or {})),
        asked=replace(ASKED, **(asked or {})),
        variants=variants,
        **known,
    )


def single(level: float = 10.0, *, seed: int = 0, name: str = "baseline", **changed) -> BenchReport:
    """A report of one job; ``in_block`` changes its blocks, the rest the report."""
    in_block = changed.pop("in_block", {})
    return report(variant(name, blocks(level, seed=seed, **in_block)), **changed)


def training_figures(train_s: float = 10.0, accuracy: float | None = 0.96, **changed) -> Figures:
    """Figures of one training, as a worker gives them."""
    known = {
        "seed": 0,
        "train_s": train_s,
        "first_step_s": 1.0,
        "peak_host_mib": 1.0,
        "peak_gpu_mib": None,
        "test_accuracy": accuracy,
        "model_kib": 250.0,
        "model_gzip_kib": 200.0,
        "artefact": None,
        "artefact_kib": None,
        "artefact_accuracy": None,
        "epochs": (Epoch(train_s, accuracy),),
        **changed,
    }
    missing = {name: NOT_ASKED for name, value in known.items() if value is None}
    return Figures(**known, unavailable=missing)
