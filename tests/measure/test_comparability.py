"""What stops a comparison and what is only noted: each field of a report's provenance."""

from dataclasses import fields

import pytest
from bench_reports import PROVENANCE, blocks, gpu, single, variant

from tfopt.measure.comparability import differences, must_stay, variant_differences
from tfopt.report.bench_report import Provenance

STOPPING = {
    "platform": ("Linux aarch64", "platform: Linux x86_64 against Linux aarch64"),
    "cpu": ("Intel Xeon", "CPU: AMD EPYC against Intel Xeon"),
    "cpu_flags": (("amx",), "CPU flags: avx, avx2, fma against amx"),
    "cpu_count": (4, "cores: 2 against 4"),
    "cpu_limit": (1.5, "CPU limit, cores: none against 1.5"),
    "memory_gib": (15.6, "memory, GiB: 23.5 against 15.6"),
    "memory_limit_gib": (8.0, "memory limit, GiB: none against 8.0"),
    "gpus": (("NVIDIA H200",) * 2, "GPUs: none against NVIDIA H200, NVIDIA H200"),
    "driver": ("570.86", "driver: none against 570.86"),
    "cuda": ("12.5", "CUDA: none against 12.5"),
    "cudnn": ("9.3", "cuDNN: none against 9.3"),
    "packages": (
        {**PROVENANCE.packages, "tensorflow": "2.22.0"},
        "tensorflow: 2.21.0 against 2.22.0",
    ),
    "variables": ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "variable TF_ENABLE_ONEDNN_OPTS: 1 against 0"),
}
NOTED = {
    "container": ("b7a1", "container: none against b7a1"),
    "git": ("9f8e7d6", "git: 1a2b3c4 against 9f8e7d6"),
    "directory": ("/tmp/x", "directory: /home/someone/project against /tmp/x"),
}


def found(first, second):
    return {difference.told: difference.blocks for difference in differences(first, second)}


def test_two_measurements_of_one_machine_and_state_differ_in_nothing():
    assert differences(single(), single(seed=1, created="2026-11-22T12:00:00+00:00")) == ()


def test_every_field_of_the_provenance_stops_a_comparison_and_a_resumption_or_neither():
    assert {*STOPPING, *NOTED, "no_gpu_reason"} == {field.name for field in fields(Provenance)}
    for cases, stops in ((STOPPING, True), (NOTED, False)):
        for name, (value, words) in cases.items():
            changed = {name: value}
            if name == "gpus":
                changed["no_gpu_reason"] = None
            other = single(provenance=changed)
            assert found(single(), other) == {words: stops}
            before, now = must_stay(PROVENANCE), must_stay(other.provenance)
            assert len([key for key in before if before[key] != now[key]]) == stops


def with_one(field, **changed):
    return {"provenance": {field: {**getattr(PROVENANCE, field), **changed}}}


@pytest.mark.parametrize(
    ("changed", "words", "stops"),
    [
        ({"data": "cifar10"}, "data: mnist: 10,000 digits against cifar10", True),
        ({"asked": {"quick": True}}, "measured: in full against quick", True),
        ({"asked": {"window_ms": 100.0}}, "length of a window, ms: 250.0 against 100.0", True),
        (
            {"command": "x\x1b[2J"},
            "command: tfopt bench my_package.train:job against x\ufffd[2J",
            False,
        ),
        ({"provenance": {"memory_gib": 23.4}}, "memory, GiB: 23.5 against 23.4", False),
        (with_one("packages", tfopt="0.2"), "tfopt: 0.1 against 0.2", False),
        (with_one("packages", numpy="2.4.6"), "numpy: none against 2.4.6", True),
        (with_one("variables", SLURM_JOB_ID="77"), "variable SLURM_JOB_ID: none against 77", False),
    ],
)
def test_what_was_measured_and_how(changed, words, stops):
    assert found(single(), single(**changed)) == {words: stops}


def test_those_that_stop_it_come_first():
    seen = differences(single(), single(provenance={"git": "9", "cuda": "12.5"}))
    assert [difference.what for difference in seen] == ["CUDA", "git"]


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ((32, 1), (50, 1), ["global batch: 32 against 50"]),
        ((None, 1), (50, 1), ["global batch: not told by the data against 50"]),
        ((None, 1), (None, 1), []),
        ((64, 1), (64, 4), ["replicas (strong scaling, global batch 64): 1 against 4"]),
        ((64, 2), (128, 4), ["replicas (weak scaling, 32 a replica): 2 against 4"]),
        ((64, 1), (96, 4), ["replicas: 1 against 4", "global batch: 64 against 96"]),
        ((None, 1), (None, 4), ["replicas: 1 against 4"]),
    ],
)
def test_batch_and_replicas_of_a_variant(first, second, words):
    sides = [
        variant("baseline", blocks(10, 2, batch_size=batch, replicas=replicas))
        for batch, replicas in (first, second)
    ]
    seen = variant_differences(*sides)
    assert [difference.told for difference in seen] == words
    assert all(difference.blocks for difference in seen)


def test_what_a_variant_is_may_differ_and_what_it_ran_on_may_not():
    seen = variant_differences(
        variant("new", blocks(10, 2, gpus=(gpu(),)), arguments={"slower": "0"}),
        variant("new", blocks(10, 2, gpus=(gpu("NVIDIA T4"),), data="cifar10"), job="other:job"),
    )
    assert {difference.told: difference.blocks for difference in seen} == {
        "data: mnist: 10,000 digits against cifar10": True,
        "GPUs in use: NVIDIA H200 against NVIDIA T4": True,
        "job: my_package.train:job against other:job": False,
        "argument slower: 0 against none": False,
    }
