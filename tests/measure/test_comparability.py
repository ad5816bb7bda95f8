"""What stops a comparison and what is only noted: each field of a report's provenance."""

from dataclasses import fields

import pytest
from bench_reports import PROVENANCE, blocks, gpu, single, variant

from tfopt.measure.comparability import differences, must_stay, variant_differences
from tfopt.report.bench_report import Provenance

GPU = {"gpus": ("NVIDIA H200",), "no_gpu_reason": None}
STOPPING = {
    "platform": ("Linux aarch64", "platform: Linux x86_64 against Linux aarch64"),
    "cpu": ("Intel Xeon", "CPU: AMD EPYC against Intel Xeon"),
    "cpu_flags": (("avx", "avx2", "fma", "amx"), "CPU flags: without against with amx"),
    "cpu_count": (4, "cores: 2 against 4"),
    "cpu_limit": (1.5, "CPU limit, cores: none against 1.5"),
    "memory_gib": (15.6, "memory, GiB: 23.5 against 15.6"),
    "memory_limit_gib": (8.0, "memory limit, GiB: none against 8.0"),
    "driver": ("570.86", "driver: none against 570.86"),
    "cuda": ("12.5", "CUDA: none against 12.5"),
    "cudnn": ("9.3", "cuDNN: none against 9.3"),
    "packages": (
        {**PROVENANCE.packages, "tensorflow": "2.22.0"},
        "TensorFlow: 2.21.0 against 2.22.0",
    ),
    "variables": ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "variable TF_ENABLE_ONEDNN_OPTS: 1 against 0"),
}
NOTED = {
    "container": ("b7a1", "container: none against b7a1"),
    "no_gpu_reason": ("hidden", f"why there is no GPU: {PROVENANCE.no_gpu_reason} against hidden"),
    "git": ("9f8e7d6", "git: 1a2b3c4 against 9f8e7d6"),
    "directory": ("/tmp/x", "directory: /home/someone/project against /tmp/x"),
}


def test_a_measurement_may_go_on_where_only_what_is_noted_differs():
    quiet = {**PROVENANCE.variables, "TF_CPP_MIN_LOG_LEVEL": "0"}
    assert must_stay(single(provenance={"variables": quiet}).provenance) == must_stay(PROVENANCE)
    other_gpu = must_stay(single(provenance=GPU).provenance)
    assert other_gpu["machine"]["GPUs"] == ["NVIDIA H200"]


def found(first, second):
    return {difference.told: difference.blocks for difference in differences(first, second)}


def test_two_measurements_of_one_machine_and_state_differ_in_nothing():
    assert differences(single(), single(seed=1, created="2026-11-22T12:00:00+00:00")) == ()


def test_every_field_of_the_provenance_has_been_decided_upon():
    assert {*STOPPING, *NOTED, "gpus"} == {field.name for field in fields(Provenance)}


@pytest.mark.parametrize(
    ("name", "value", "words", "stops"),
    [
        *((name, *case, True) for name, case in STOPPING.items()),
        *((name, *case, False) for name, case in NOTED.items()),
    ],
)
def test_a_difference_of_provenance_stops_a_comparison_and_a_resumption_or_neither(
    name, value, words, stops
):
    other = single(provenance={name: value})
    assert found(single(), other) == {words: stops}
    before, now = must_stay(PROVENANCE), must_stay(other.provenance)
    assert len([key for key in before if before[key] != now[key]]) == stops


def test_other_gpus_and_more_of_them_stop_it():
    two = {**GPU, "gpus": ("NVIDIA H200", "NVIDIA H200")}
    assert found(single(), single(provenance=GPU)) == {"GPUs: none against NVIDIA H200": True}
    assert found(single(provenance=GPU), single(provenance=two)) == {
        "GPUs: NVIDIA H200 against NVIDIA H200, NVIDIA H200": True
    }


def with_one(field, **changed):
    return {"provenance": {field: {**getattr(PROVENANCE, field), **changed}}}


@pytest.mark.parametrize(
    ("changed", "words", "stops"),
    [
        ({"data": "cifar10"}, "data: mnist: 10,000 digits against cifar10", True),
        ({"asked": {"quick": True}}, "measured: in full against quick", True),
        ({"asked": {"window_ms": 100.0}}, "length of a window, ms: 250.0 against 100.0", True),
        ({"asked": {"warm_up_s": 5.0}}, "warm-up, s: 1.0 against 5.0", True),
        ({"asked": {"kind": "pair"}}, "kind: single against pair", False),
        ({"asked": {"windows": 10}}, "windows a block: 30 against 10", False),
        ({"asked": {"rounds_at_most": 9}}, "rounds at most: 20 against 9", False),
        ({"asked": {"rounds_at_least": 3}}, "rounds at least: 5 against 3", False),
        ({"asked": {"half_width": 0.1}}, "interval aimed at: 0.02 against 0.1", False),
        ({"asked": {"seed": 3}}, "seed: 0 against 3", False),
        ({"complete": False}, "complete: yes against no", False),
        (
            {"command": "x\x1b[2J"},
            "command: tfopt bench my_package.train:job against x\ufffd[2J",
            False,
        ),
        ({"provenance": {"memory_gib": 23.4}}, "memory, GiB: 23.5 against 23.4", False),
        (with_one("packages", tfopt="0.2"), "tfopt: 0.1 against 0.2", False),
        (with_one("packages", psutil="7.1"), "psutil: none against 7.1", False),
        (with_one("packages", numpy="2.4.6"), "NumPy: none against 2.4.6", True),
        (
            with_one("variables", CUDA_VISIBLE_DEVICES="1"),
            "variable CUDA_VISIBLE_DEVICES: none against 1",
            False,
        ),
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


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            variant("new", blocks(10, 2), arguments={"slower": "0"}),
            variant("new", blocks(10, 2), job="other:job", chain="chain(Prune())"),
            {
                "job: my_package.train:job against other:job": False,
                "chain: chain() against chain(Prune())": False,
                "argument slower: 0 against none": False,
            },
        ),
        (
            variant("new", blocks(10, 2, gpus=(gpu(),))),
            variant("new", blocks(10, 2, gpus=(gpu("NVIDIA T4"),), data="cifar10")),
            {
                "data: mnist: 10,000 digits against cifar10": True,
                "GPUs in use: NVIDIA H200 against NVIDIA T4": True,
            },
        ),
    ],
)
def test_what_a_variant_is_may_differ_and_what_it_ran_on_may_not(first, second, expected):
    seen = variant_differences(first, second)
    assert {difference.told: difference.blocks for difference in seen} == expected
