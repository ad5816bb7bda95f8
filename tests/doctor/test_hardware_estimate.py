"""Estimates by hand: each figure follows from published peaks and the stated assumption."""

import json

import keras
import numpy as np
import pytest

import tfopt
from tfopt.commands.cli import main
from tfopt.doctor.hardware_estimate import (
    GPUS,
    MEMORY_MARGIN,
    RESERVED_MIB,
    Work,
    as_json,
    gpu_named,
    on_gpu,
)

GIB = 1024**3


def work(**settings):
    given = {"batch_size": 100, "dtype": "float32", "gflop": 1560.0, "gib": 1.0, "peak_mib": 11e3}
    return Work(**{**given, **settings})


def test_figures_by_hand():
    # 1560 GFLOP at 156 TFLOPS of TF32 take 10 ms; 1 GiB at 1555 GB/s takes 0.69 ms.
    row = on_gpu(gpu_named("A100 40GB"), work())
    assert row.arithmetic_ms == pytest.approx(10)
    assert row.traffic_ms == pytest.approx(GIB / 1555e6)
    assert row.bound_by == "arithmetic"
    # 300e9 bytes at 300 GB/s take a second.
    row = on_gpu(gpu_named("L4"), work(gib=300e9 / GIB))
    assert row.traffic_ms == pytest.approx(1000)
    assert row.bound_by == "bandwidth"


def test_half_precision_by_gpu():
    half = work(dtype="bfloat16", gflop=1250.0)
    assert on_gpu(gpu_named("A100 80GB"), half).arithmetic_ms == pytest.approx(1250 / 312)
    of_16_bits = work(dtype="float16", gflop=1250.0)
    assert on_gpu(gpu_named("V100 16GB"), of_16_bits).arithmetic_ms == pytest.approx(10.0)
    # A job in bfloat16 gains nothing before Ampere, and the note says so.
    row = on_gpu(gpu_named("V100 16GB"), half)
    assert row.arithmetic_ms == pytest.approx(1250 / 15.7)
    assert "no bfloat16" in row.note


def test_memory_has_its_margin():
    # 11,000 MiB * 1.2 + 1024 MiB; a T4 has 15,360 MiB by its driver.
    row = on_gpu(gpu_named("t4"), work())
    assert row.needs_mib == pytest.approx(11000 * MEMORY_MARGIN + RESERVED_MIB)
    assert row.fits
    assert not on_gpu(gpu_named("t4"), work(peak_mib=12000.0)).fits


def test_published_figures_are_plausible_and_have_a_source():
    assert len({gpu.name for gpu in GPUS}) == len(GPUS) == 9
    for gpu in GPUS:
        assert gpu.source.startswith("NVIDIA ")
        peaks = gpu.products_tflops
        assert peaks["float16"] >= 2 * peaks["float32"] * 0.99
        assert ("bfloat16" in peaks) == (gpu.name[:2] not in ("T4", "V1"))
    # By the driver: "40GB" are 40 GiB here, and "141GB" 140.4 GiB.
    assert gpu_named("a100-40gb").memory_mib == 40960
    assert gpu_named("H200 SXM").memory_mib == 143771
    with pytest.raises(tfopt.UserError, match="no published figures"):
        gpu_named("RTX 9999")


def compiled():
    layers = [keras.layers.Dense(width, use_bias=False) for width in (256, 8)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    model.compile("sgd", "mse")
    return model


def test_a_real_model_counted_by_hand_and_left_as_it_was():
    model, size = compiled(), 128
    before = [weight.numpy() for weight in model.weights]
    batch = np.zeros((size, 64), "float32"), np.zeros((size, 8), "float32")
    estimate = tfopt.hardware_estimate(model, batch, gpus=["T4", "A100 40GB"])
    # Forward 2·m·k·n each.
    assert estimate.work.gflop * 1e9 == pytest.approx(3 * 2 * size * (64 * 256 + 256 * 8))
    assert estimate.work.batch_size == size
    # The kernels are read twice and written, their gradients written and read; there is more.
    assert estimate.work.gib * GIB > 5 * 4 * (64 * 256 + 256 * 8)
    assert [row.gpu.name for row in estimate.rows] == ["T4", "A100 40GB"]
    assert all(row.fits for row in estimate.rows)
    for weight, values in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), values)
    # A batch may be larger than the number of examples.
    twice = tfopt.hardware_estimate(model, batch, batch_size=2 * size, gpus=["T4"])
    assert twice.work.gflop == pytest.approx(2 * estimate.work.gflop)
    assert "Nothing was measured" in " ".join(str(twice).split())
    half = tfopt.mixed_precision(model, "mixed_float16")
    assert tfopt.hardware_estimate(half, batch, gpus=["T4"]).work.dtype == "float16"
    document = json.loads(as_json(twice))
    assert document["rows"][0]["source"].startswith("NVIDIA T4")


def test_what_is_not_counted_is_named():
    model = keras.Sequential([keras.Input((9, 4)), keras.layers.LSTM(8)])
    model.compile("sgd", "mse")
    batch = np.zeros((2, 9, 4), "float32"), np.zeros((2, 8), "float32")
    assert tfopt.hardware_estimate(model, batch, gpus=["T4"]).work.note.endswith(": While")


def test_a_large_batch_does_not_fit():
    layers = [keras.layers.Dense(512, "relu") for _ in range(5)]
    model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    batch = np.zeros((8, 512), "float32"), np.zeros((8, 1), "float32")
    estimate = tfopt.hardware_estimate(model, batch, batch_size=1_500_000, gpus=["T4", "H200 SXM"])
    assert [row.fits for row in estimate.rows] == [False, True]
    assert max(map(len, str(estimate).splitlines())) <= 80


def test_a_model_needs_a_batch_and_a_job_has_its_own():
    with pytest.raises(tfopt.UserError, match="does not say its batch"):
        tfopt.hardware_estimate(compiled())
    with pytest.raises(tfopt.UserError, match="its own data"):
        tfopt.hardware_estimate(tfopt.Job(build=compiled, data=dict, compile=dict), (1, 2))


def test_the_command(capsys, monkeypatch, tmp_path):
    # The command hides GPUs from its own process: not from the other tests.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    command = ["hardware", "tfopt.recipes.cnn_mnist:job", "--gpu"]
    assert main([*command, "l4"]) == 0
    printed = capsys.readouterr().out
    assert "cnn_mnist, a batch of 32, on one GPU" in printed
    assert "L4" in printed
    assert "Assumed: arithmetic is three times" in printed
    assert main([*command, "abacus"]) == 2
    assert "no published figures" in capsys.readouterr().err
    (tmp_path / "half.toml").write_text('tfopt = 1\n[[chain]]\ntransform = "mixed_precision"\n')
    assert main([*command, "l4", "--chain", str(tmp_path / "half.toml")]) == 2
    assert "leaves the precision to the GPU" in capsys.readouterr().err
