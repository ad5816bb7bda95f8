"""Bench reports as a machine with two cores would give them, with what a test wants changed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tfopt.report.bench_report import Asked, BenchReport, Provenance, VariantReport
from tfopt.report.statistics import Comparison
from tfopt.report.timed_process import GpuState, TimedProcess
from tfopt.report.training import Reading, Training

NOT_ASKED = "not asked for"
COMPARED = (
    "against_reference", "against_previous", "quality", "steps_to_accuracy", "whole", "to_accuracy",
)  # fmt: skip

PROVENANCE = Provenance(
    platform="Linux x86_64",
    cpu="AMD EPYC",
    cpu_flags=("avx", "avx2", "fma"),
    cpu_count=2,
    cpu_limit=None,
    memory_gib=23.5,
    memory_limit_gib=None,
    gpus=(),
    driver=None,
    cuda=None,
    packages={"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1", "tfopt": "0.1"},
    git="1a2b3c4",
    variables={"TF_ENABLE_ONEDNN_OPTS": "1"},
)
ASKED = Asked(
    kind="single", quick=False, budget_s=300.0, processes=5, turn_ms=100.0, seed=0, whole=False
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


def missing(known: dict) -> dict[str, str]:
    """A reason for each of the values that is None."""
    return {name: NOT_ASKED for name, value in known.items() if value is None}


def process(level: float, random, *, noise: float = 0.001, turns: int = 12, **changed):
    """A process whose steps take about this time."""
    known = {
        "build_s": 0.4,
        "first_step_s": 1.05,
        "first_steps": 1,
        "fill_s": 0.0,
        "rounds": tuple(range(turns)),
        "turns_ms": tuple(map(float, level * random.lognormal(0, noise, turns))),
        "steps": (25,) * turns,
        "batch_size": 32,
        "replicas": 1,
        "host_peak_mib": 960.5,
        "gpu_peak_mib": None,
        "energy_per_example_j": None,
        "new_programs": None,
        "gpus": (),
        "data": "mnist: 10,000 digits",
        **changed,
    }
    return TimedProcess(**known, unavailable=missing(known))


def processes(level: float, count: int = 5, *, seed: int = 0, spread: float = 0.002, **changed):
    """So many processes around a level, each a little off it."""
    random = np.random.default_rng(seed)
    return tuple(
        process(level * random.lognormal(0, spread), random, **changed) for _ in range(count)
    )


def variant(name: str, measured: tuple[TimedProcess, ...] = (), **changed) -> VariantReport:
    """A variant with these processes; without any it failed."""
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
        "processes": measured,
        "scaling": None,
        "trainings": (),
        **dict.fromkeys(COMPARED),
        **changed,
    }
    reasons = missing({name: made[name] for name in COMPARED})
    given = changed.get("unavailable", {})
    made["unavailable"] = {name: given.get(name, why) for name, why in reasons.items()}
    return VariantReport(**made)


def half_width(found: Comparison) -> float:
    """How far an interval reaches from its middle, as a share of it."""
    return math.sqrt(found.high / found.low) - 1


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
    """A report of one job; ``in_process`` changes its processes, the rest the report."""
    in_process = changed.pop("in_process", {})
    return report(variant(name, processes(level, seed=seed, **in_process)), **changed)


def training(accuracy: float | None = 0.96, steps: int = 500, **changed) -> Training:
    """A training, of which a tenth is the ends of epochs, that gets better all along."""
    last = accuracy or 0.0
    readings = (
        Reading(steps // 2, 16.0 * steps, round(last - 0.01, 5)),
        Reading(steps, 32.0 * steps, last),
    )
    known = {
        "seed": 0,
        "steps": steps,
        "epochs": 2,
        "epoch_end_share": 0.1,
        "readings": readings if accuracy else (),
        "test_accuracy": accuracy,
        "model_kib": 250.0,
        "model_gzip_kib": 200.0,
        "artefact": None,
        "artefact_kib": None,
        "artefact_accuracy": None,
        **changed,
    }
    return Training(**known, unavailable=missing(known))
