"""Estimates by hand: each figure follows from published peaks and the stated assumption."""

import json

import keras
import numpy as np
import pytest

import tfopt
from tfopt.commands.cli import main
from tfopt.doctor.hardware_estimate import (
    COMPUTE_SHARE,
    GPUS,
    MEMORY_MARGIN,
    MEMORY_SHARE,
    RESERVED_MIB,
    Work,
    as_json,
    gpu_named,
    on_gpu,
)

GIB = 1024**3


def work(**settings):
    given = {"batch_size": 100, "dtype": "float32", "product_gflop": 1560.0, "other_gflop": 0.0,
             "gib": 1.0, "fixed_mib": 1000.0, "by_example_mib": 100.0}  # fmt: skip
    return Work(**{**given, **settings})


def test_a_step_of_products_is_bound_by_compute():
    # 1560 GFLOP at the A100's 156 TFLOPS of TF32 take 10 ms; 1 GiB at 1555 GB/s takes 0.69 ms.
    row = on_gpu(gpu_named("A100 40GB"), work(), "as it is")
    assert row.ideal_ms == pytest.approx(10.0)
    assert row.bound_by == "compute"
    assert row.range_ms == pytest.approx((10 / COMPUTE_SHARE[1], 10 / COMPUTE_SHARE[0]))


def test_a_step_that_moves_much_is_bound_by_memory():
    # 300e9 bytes at the L4's 300 GB/s take a second; 11000 MiB held, written and read, 76.9 ms.
    row = on_gpu(gpu_named("L4"), work(gib=300e9 / GIB), "as it is")
    fused_ms = 2 * 11000 * 1024**2 / 300e9 * 1000
    assert row.ideal_ms == pytest.approx(fused_ms) == pytest.approx(76.9, abs=0.1)
    assert row.bound_by == "memory"
    assert row.range_ms == pytest.approx((fused_ms / MEMORY_SHARE[1], 1000 / MEMORY_SHARE[0]))


def test_a_step_that_is_bound_by_compute_only_where_it_is_fused():
    # 100 ms of products at 60 TFLOPS, between the 76.9 ms and the second of the step above.
    row = on_gpu(gpu_named("L4"), work(product_gflop=6000.0, gib=300e9 / GIB), "as it is")
    assert row.ideal_ms == pytest.approx(100.0)
    assert row.bound_by == "fusion"
    assert row.range_ms == pytest.approx((100 / COMPUTE_SHARE[1], 1000 / MEMORY_SHARE[0]))


def test_what_is_no_product_runs_outside_of_tensor_cores():
    # 67 GFLOP at the H100's 67 TFLOPS: 1 ms; 494.5 GFLOP of products at 494.5: another.
    row = on_gpu(gpu_named("H100 SXM"), work(product_gflop=494.5, other_gflop=67.0), "as it is")
    assert row.ideal_ms == pytest.approx(2.0)


def test_half_precision_by_gpu():
    half = work(dtype="bfloat16", product_gflop=1250.0)
    assert on_gpu(gpu_named("A100 80GB"), half, "mixed_bfloat16").ideal_ms == pytest.approx(
        1250 / 312
    )
    assert on_gpu(gpu_named("V100 16GB"), half, "mixed_float16").ideal_ms == pytest.approx(10.0)
    # A job that is in bfloat16 itself gains nothing before Ampere, and that is told.
    row = on_gpu(gpu_named("V100 16GB"), half, "as it is")
    assert row.ideal_ms == pytest.approx(1250 / 15.7)
    assert "no bfloat16" in row.note


def test_memory_has_its_margin_and_the_largest_batch_follows():
    # (1000 + 100 * 100) MiB * 1.2 + 1024 MiB; of a T4 the driver tells 15,360 MiB.
    row = on_gpu(gpu_named("t4"), work(), "as it is")
    assert row.needs_mib == pytest.approx(11000 * MEMORY_MARGIN + RESERVED_MIB)
    assert row.has_mib == 15360
    assert row.fits
    room = (15360 - RESERVED_MIB) / MEMORY_MARGIN - 1000
    assert row.largest_batch == int(room / 100) == 109
    assert not on_gpu(gpu_named("t4"), work(batch_size=110), "as it is").fits
    assert on_gpu(gpu_named("t4"), work(batch_size=109), "as it is").fits
    assert on_gpu(gpu_named("t4"), work(fixed_mib=20000.0), "as it is").largest_batch == 0


def test_a_step_that_is_too_short_is_told():
    assert "larger batch" in on_gpu(gpu_named("T4"), work(product_gflop=0.1, gib=1e-4), "").note
    assert on_gpu(gpu_named("T4"), work(), "").note == ""


def test_published_figures_are_plausible_and_have_a_source():
    assert len({gpu.name for gpu in GPUS}) == len(GPUS) == 9
    for gpu in GPUS:
        assert gpu.source.startswith("NVIDIA ")
        peaks = gpu.products_tflops
        assert peaks["float16"] >= 2 * peaks["float32"] * 0.99 or gpu.other_tflops < 20
        assert ("bfloat16" in peaks) == (gpu.name[:2] not in ("T4", "V1"))
    # "40GB" are 40 GiB here, and "141GB" 140.4 GiB: what the driver tells.
    assert gpu_named("a100-40gb").memory_mib == 40960
    assert gpu_named("H200 SXM").memory_mib == 143771
    with pytest.raises(tfopt.UserError, match="no published figures"):
        gpu_named("RTX 9999")


def compiled(width=256):
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(width, use_bias=False),
            keras.layers.Dense(8, use_bias=False),
        ]
    )
    model.compile("sgd", "mse")
    return model


def test_a_real_model_counted_by_hand_and_left_as_it_was():
    model, size = compiled(), 128
    before = [weight.numpy() for weight in model.weights]
    batch = np.zeros((size, 64), "float32"), np.zeros((size, 8), "float32")
    estimate = tfopt.hardware_estimate(model, batch, gpus=["T4", "A100 40GB"])
    # Forward 2·m·k·n each; backward that of the weights each, and of the inputs of the second.
    first, second = 2 * size * 64 * 256, 2 * size * 256 * 8
    assert estimate.as_it_is.product_gflop * 1e9 == pytest.approx(2 * first + 3 * second)
    assert estimate.as_it_is.batch_size == size
    assert [row.precision for row in estimate.rows] == [
        "as it is", "mixed_float16", "as it is", "mixed_bfloat16",
    ]  # fmt: skip
    assert estimate.half.product_gflop == pytest.approx(estimate.as_it_is.product_gflop)
    assert all(row.fits for row in estimate.rows)
    assert all(
        np.array_equal(a, b)
        for a, b in zip(before, (w.numpy() for w in model.weights), strict=True)
    )
    # A larger batch than there are examples is scaled, and told.
    twice = tfopt.hardware_estimate(model, batch, batch_size=2 * size, gpus=["T4"])
    assert twice.as_it_is.product_gflop == pytest.approx(2 * estimate.as_it_is.product_gflop)
    assert "counted for 128 examples" in twice.as_it_is.note
    assert "Never checked on hardware" in str(twice)
    document = json.loads(as_json(twice))
    assert document["checked_on_hardware"] is False
    assert document["rows"][0]["source"].startswith("NVIDIA T4")


def test_what_would_make_a_large_batch_fit():
    layers = [keras.layers.Dense(512, "relu") for _ in range(8)]
    model = keras.Sequential([keras.Input((512,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse")
    batch = np.zeros((8, 512), "float32"), np.zeros((8, 1), "float32")
    estimate = tfopt.hardware_estimate(model, batch, batch_size=900_000, gpus=["T4", "H200 SXM"])
    small, half, large, _ = estimate.rows
    assert (small.fits, large.fits) == (False, True)
    assert large.to_fit == ()
    assert any(each.startswith("tfopt.accumulate(steps=") for each in small.to_fit)
    assert small.to_fit[-1] == f"a batch of {small.largest_batch}"
    assert 0 < small.largest_batch < half.largest_batch
    assert "To make it fit:" in str(estimate)
    assert max(map(len, str(estimate).splitlines())) <= 80


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (lambda: (compiled(),), "does not tell its batch"),
        (
            lambda: (tfopt.Job(build=compiled, data=dict, compile=dict), (1, 2)),
            "its own data",
        ),
    ],
)
def test_bad_input(arguments, told):
    with pytest.raises(tfopt.UserError, match=told):
        tfopt.hardware_estimate(*arguments())


def test_the_command(fresh_python):
    printed = fresh_python(
        """
    from tfopt.commands.cli import main
    given = ["--job", "tfopt.recipes.cnn_mnist:job", "--gpu", "l4"]
    code = main(["hardware", *given])
    print("code", code)
    """
    )
    assert "cnn_mnist, a batch of 32, on one GPU" in printed
    assert "L4" in printed
    assert "so short that launching its kernels" in printed
    assert "Never checked on hardware" in printed
    assert printed.rstrip().endswith("code 0")


def test_the_commands_mistakes(capsys, monkeypatch):
    # The command hides GPUs from its own process: not from the other tests.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    assert main(["hardware", "--job", "tfopt.recipes.cnn_mnist:job", "--gpu", "abacus"]) == 2
    assert "no published figures" in capsys.readouterr().err
