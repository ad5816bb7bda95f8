"""What is tried on a GPU, computed on this CPU: right, with planted faults, and where a process ends.

What passes here has not run on the hardware.
"""

from pathlib import Path

import broken_stack
import keras
import pytest
import tensorflow as tf
from attention_stand_in import as_cudnn_computes, on_a_stand_in

from tfopt.doctor import compute_checks
from tfopt.doctor.compute_checks import compute, judge, tried
from tfopt.doctor.trials import TRIALS
from tfopt.train import fused_call

CUDNN = "pip install -U 'nvidia-cudnn-cu12>=9.24,<10'"


@pytest.fixture(autouse=True)
def tensor_float_32():
    """Keep the setting of the process that runs the tests."""
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    yield
    tf.config.experimental.enable_tensor_float_32_execution(before)


def checks_of(*trials):
    """Return the checks of some trials, run in this process as another would run them."""
    found = compute({"device": "CPU", "trials": trials})
    return list(judge("GPU 0", [each for each in found if not isinstance(each, str)]))


def test_every_trial_is_right_on_this_cpu():
    """Attention by a stand-in for cuDNN, all else as a GPU computes it."""
    with on_a_stand_in():
        (check,) = checks_of(*TRIALS)
    assert check.verdict == "ok"
    assert check.message == f"{', '.join(TRIALS)}: as computed in float64"
    assert [each.split(":")[0] for each in check.evidence] == list(TRIALS)


def test_a_convolution_without_a_kernel_names_the_cudnn_that_has_it(monkeypatch):
    def no_config(*arguments, **named):
        raise tf.errors.InternalError(None, None, "Autotuner could not find any supported configs")

    monkeypatch.setattr(tf.nn, "conv2d", no_config)
    failed, right = checks_of("convolution with bias", "XLA")
    assert (failed.verdict, failed.message) == ("failure", "convolution with bias fails")
    told = "InternalError: InternalError: Autotuner could not find any supported configs"
    assert failed.evidence == (told,)
    assert failed.fix == CUDNN
    assert (right.verdict, right.message) == ("ok", "XLA: as computed in float64")


def test_attention_with_wrong_gradients_is_told(monkeypatch):
    def without_scale(target, operands, results, config):
        found = as_cudnn_computes(target, operands, results, config)
        return [2 * found[0], *found[1:]] if target.endswith("Backward") else found

    with on_a_stand_in():
        monkeypatch.setattr(fused_call, "custom_call", without_scale)
        (check,) = checks_of("fused attention")
    assert (check.verdict, check.message) == ("failure", "fused attention is wrong")
    assert check.evidence[0].startswith("fused attention: relative error 1.0e+00, 0.02 allowed")
    assert check.fix.startswith(CUDNN)


def test_attention_that_is_not_fused_is_no_success():
    (check,) = checks_of("fused attention")
    assert check.verdict == "failure"
    assert "it is not computed on a GPU" in check.evidence[0]


def test_fit_whose_steps_are_lost_is_told(monkeypatch):
    """As where each gradient overflows: the scale goes down, and no weight moves."""
    kind = keras.optimizers.LossScaleOptimizer
    keras_init = kind.__init__

    def init(self, inner, *settings, **named):
        keras_init(self, inner, *settings, **{**named, "initial_scale": 2.0**40})

    monkeypatch.setattr(kind, "__init__", init)
    (check,) = checks_of("fit in mixed_float16")
    assert (check.verdict, check.message) == ("failure", "fit in mixed_float16 is wrong")
    assert check.fix.startswith("pip install -U 'tfopt[gpu]'")


def test_numbers_that_are_none_are_wrong():
    answers = [{"what": "bfloat16", "error": float("nan"), "seconds": 0.1}]
    (check,) = judge("GPU 0", answers)
    assert (check.verdict, check.message) == ("failure", "bfloat16 is wrong")
    assert check.fix.startswith("pip install -U 'nvidia-cublas-cu12<13'; if only one GPU")


def test_after_a_trial_that_ends_its_process_another_goes_on(monkeypatch):
    monkeypatch.setattr(compute_checks, "compute", broken_stack.compute)
    answers = tried("GPU", list(TRIALS), {})
    ended, failed, right = judge("GPU 0", answers)
    assert (ended.message, ended.fix) == ("convolution with bias fails", CUDNN)
    assert ended.evidence[0].startswith("the process ended without a result: killed by SIGABRT")
    assert "no engine" in ended.evidence[0]
    assert (failed.message, failed.evidence) == ("fused attention fails", ("no kernel image",))
    assert right.message == (
        "float32, tensorfloat32, float16, bfloat16, XLA, fit in mixed_float16: as computed in float64"
    )


def test_a_process_that_ends_at_the_import_is_one_failure(monkeypatch):
    monkeypatch.setattr(compute_checks, "compute", broken_stack.no_import)
    (check,) = judge("GPU 0", tried("GPU", list(TRIALS), {}))
    assert check.message == "importing TensorFlow fails"
    assert check.fix == "pip install -U 'tfopt[gpu]'"


def test_the_page_names_each_line_of_pip():
    page = (Path(__file__).parents[2] / "docs/doctor.md").read_text(encoding="utf-8")
    for trial in TRIALS.values():
        assert f"`pip install -U {trial.packages}`" in page
