"""Estimates by hand: each figure follows from published peaks and the stated assumption."""

import json

import keras
import numpy as np
import pytest

import tfopt
from tfopt.commands.cli import main
from tfopt.doctor.hardware_estimate import GPUS, HardwareEstimate

GIB = 1024**3
BY_NAME = {gpu.name: gpu for gpu in GPUS}


def estimate(**changed):
    known = {"name": "x", "batch_size": 100, "dtype": "float32", "gflop": 1560.0}
    return HardwareEstimate(**{**known, "moved_gib": 1.0, "needs_mib": 14e3, **changed})


@pytest.mark.parametrize(
    ("gpu", "dtype", "gflop", "moved_gb"),
    [
        # At each of these both take 10 ms at the published peaks.
        ("A100 40GB", "float32", 1560.0, 15.55),
        ("A100 80GB", "bfloat16", 3120.0, 20.39),
        ("V100 16GB", "float16", 1250.0, 9.0),
        # Before Ampere bfloat16 gains nothing.
        ("V100 16GB", "bfloat16", 157.0, 9.0),
    ],
)
def test_what_bounds_a_step_by_hand(gpu, dtype, gflop, moved_gb):
    gpu, moved_gib = BY_NAME[gpu], moved_gb * 1e9 / GIB
    more = estimate(dtype=dtype, gflop=1.01 * gflop, moved_gib=moved_gib)
    less = estimate(dtype=dtype, gflop=0.99 * gflop, moved_gib=moved_gib)
    assert (more.bound_by(gpu), less.bound_by(gpu)) == ("arithmetic", "bandwidth")


def test_what_fits():
    # By the driver: "40GB" are 40 GiB here, and "141GB" 140.4 GiB.
    assert (BY_NAME["A100 40GB"].memory_mib, BY_NAME["H200 SXM"].memory_mib) == (40960, 143771)
    assert estimate(needs_mib=15360.0).fits(BY_NAME["T4"])
    assert not estimate(needs_mib=15361.0).fits(BY_NAME["T4"])


def job_of(*widths, size=128):
    layers = [keras.layers.Dense(width, use_bias=False) for width in (*widths, 8)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile("sgd", "mse")
    data = np.zeros((size, 64), "float32"), np.zeros((size, 8), "float32")
    return tfopt.Job.from_model(model, data, batch_size=size)


def test_a_real_model_counted_by_hand():
    job = job_of(256)
    found = tfopt.hardware_estimate(job)
    weights = 64 * 256 + 256 * 8
    # Forward 2·m·k·n each.
    assert found.gflop * 1e9 == pytest.approx(3 * 2 * 128 * weights)
    assert (found.batch_size, found.dtype) == (128, "float32")
    # The kernels are read twice and written, their gradients written and read; there is more.
    assert found.moved_gib * GIB > 5 * 4 * weights
    assert all(found.fits(gpu) for gpu in GPUS)
    # A batch may be larger than the number of examples.
    twice = tfopt.hardware_estimate(job, batch_size=256)
    assert twice.gflop == pytest.approx(2 * found.gflop)
    half = tfopt.MixedPrecision("mixed_float16")
    assert tfopt.hardware_estimate(job, half).dtype == "float16"
    assert json.loads(found.to_json())["rows"][0]["gpu"] == "T4"


def test_a_large_batch_does_not_fit():
    found = tfopt.hardware_estimate(job_of(*[512] * 5, size=8), batch_size=1_500_000)
    assert [found.fits(BY_NAME[name]) for name in ("T4", "H200 SXM")] == [False, True]
    assert max(map(len, str(found).splitlines())) <= 80


def test_the_command(capsys, monkeypatch, tmp_path):
    # The command hides GPUs from its own process: not from the other tests.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    command = ["hardware", "tfopt.recipes.cnn_mnist:job"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "cnn_mnist, a batch of 32 in float32, on one GPU" in printed
    assert "Assumed: arithmetic is three times" in printed
    (tmp_path / "half.toml").write_text('tfopt = 1\n[[chain]]\ntransform = "mixed_precision"\n')
    assert main([*command, "--chain", str(tmp_path / "half.toml")]) == 2
    assert "leaves the precision to the GPU" in capsys.readouterr().err


def test_what_is_no_job_is_refused():
    with pytest.raises(tfopt.UserError, match=r"hardware_estimate\(\) takes a job"):
        tfopt.hardware_estimate("text")
