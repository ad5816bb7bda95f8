"""Checks: what counts as a number, and that Python's own is what is kept."""

import json
from dataclasses import asdict

import numpy as np
import pytest

import tfopt
from tfopt.errors import UserError, first_line, real, require_count, whole, within


def test_whole_numbers_come_back_as_pythons():
    import keras
    import tensorflow as tf

    for value in (3, np.int64(3), np.uint8(3), np.array(3), tf.Variable(3, dtype=tf.int64)):
        assert type(whole(value)) is int
        assert require_count("n", value) == 3
    assert whole(keras.optimizers.SGD().iterations) == 0
    others = (True, np.True_, "3", 3.0, np.float32(3), None, np.array([3]), keras.Variable(4.0))
    for value in (*others, tf.Variable([4]), keras.KerasTensor((), "int32")):
        assert whole(value) is None
        with pytest.raises(UserError, match="n is not a count"):
            require_count("n", value)


def test_a_data_frame_that_has_a_column_of_any_name_is_no_whole_number():
    class Frame:
        def __getattr__(self, name):
            raise AssertionError(f"a column {name!r} was made")

    assert whole(Frame()) is None


def test_numbers_come_back_as_pythons():
    for value in (0.5, np.float16(0.5), np.float32(0.5), np.float64(0.5)):
        assert (real(value), type(real(value))) == (0.5, float)
        assert within(value, 0, 1)
    for value in (1, -0.1, float("nan"), float("inf"), True, "0.5", None, [0.5]):
        assert not within(value, 0, 1)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (tfopt.Prune(np.float32(0.5), begin=np.float64(0.25)), tfopt.Prune(0.5, begin=0.25)),
        (tfopt.Cluster(np.int64(8), begin=np.float32(0.5)), tfopt.Cluster(8, begin=0.5)),
        (tfopt.QuantizeAware(begin=np.float32(0.5)), tfopt.QuantizeAware(begin=0.5)),
        (tfopt.Quantize(samples=np.int64(9), max_drop=np.float32(0.5)), None),
        (tfopt.RemoveChannels(np.float32(0.5), multiple=np.int64(4)), None),
        (tfopt.LearningRate(np.float32(0.5), warmup=np.float32(0.25)), None),
        (tfopt.Execution(steps_per_execution=np.int64(2)), None),
        (tfopt.Pipeline(batch_size=np.int64(2)), None),
        (tfopt.Distribute(logical_cpus=np.int64(2)), None),
        (tfopt.Place(memory_limit_mib=np.int64(64)), None),
        (tfopt.compress.PolynomialSparsity(np.float32(0.5), end_step=np.int64(9)), None),
        (tfopt.compress.ChannelOptions(multiple=np.int64(4)), None),
    ],
)
def test_what_is_made_of_numpys_numbers_keeps_pythons(given, plain):
    assert "np." not in repr(given)
    json.dumps(asdict(given))
    if plain is not None:
        assert given == plain


def test_an_error_can_be_seen_from_a_place():
    error = UserError("It fell.", expected="standing", received="lying", fix="lift it")
    assert str(error.under("x.toml")) == (
        "x.toml: It fell.\n  expected: standing\n  received: lying\n  fix: lift it"
    )
    assert error.under("").what == "It fell."


def test_of_a_file_that_keras_cannot_load_the_cause_is_told(tmp_path):
    import keras

    class Unknown(keras.layers.Layer):
        pass

    keras.Sequential([keras.Input((2,)), Unknown()]).save(tmp_path / "m.keras")
    with pytest.raises(TypeError) as caught:
        keras.saving.load_model(tmp_path / "m.keras")
    assert "'Unknown'" in first_line(caught.value)
    assert first_line(ValueError("first\nsecond")) == "first"
    assert first_line(ValueError()) == "ValueError"
    called = "Exception encountered when calling VAE.call().\n\n\x1b[1mIt has no size.\x1b[0m\n"
    assert first_line(TypeError(called)) == "It has no size."
    compiled = (
        'in user code:\n\n    File "net.py", line 9, in call  *\n        x = y\n\n    It is odd.\n'
    )
    assert first_line(TypeError(compiled)) == "It is odd."
