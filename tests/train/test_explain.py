"""Memory runs out in each phase: a layer says so of large batches in TensorFlow's words.

Once it is for real: a tensor of a pebibyte, which no machine gives, and for which TensorFlow waits
ten seconds.
"""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from nvml_stand_in.library import gpu

import tfopt
from tfopt import Data, Job, UserError, explain_out_of_memory
from tfopt.train import OutOfMemory
from tfopt.train.out_of_memory import batch_of, smaller_step

L = keras.layers
HUGE = 4096


def fourth_power(x):
    """Of a batch of 4 some bytes, of one of 4096 a pebibyte."""
    pairs = tf.reshape(x * tf.transpose(x), [-1])
    return x + tf.reduce_mean(pairs[:, None] * pairs[None])


def ask(x):
    if len(x) == HUGE:
        raise MemoryError(
            "OOM when allocating tensor with shape[16777216,16777216] and type float on "
            "/job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu"
        )
    return x


def asking(x):
    return x + tf.stop_gradient(tf.ensure_shape(tf.py_function(ask, [x], "float32"), (None, 1)))


def net(function=asking):
    inputs = keras.Input((1,))
    x = L.Lambda(function, output_shape=(1,), name="powers")(L.Dense(1)(inputs))
    return keras.Model(inputs, x, name="net")


def compiled(function=asking):
    model = net(function)
    model.compile("adam", "mse", jit_compile=False)
    return model


def arrays(examples):
    return np.ones((examples, 1), "float32"), np.ones((examples, 1), "float32")


VALIDATED = {"validation_data": arrays(HUGE), "validation_batch_size": HUGE}


def batches(*sizes):
    made = tf.data.Dataset.from_generator(
        lambda: map(arrays, sizes), output_signature=(tf.TensorSpec((None, 1)),) * 2
    )
    return made.apply(tf.data.experimental.assert_cardinality(len(sizes)))


@pytest.mark.parametrize("function", [asking, pytest.param(fourth_power, marks=pytest.mark.slow)])
def test_the_first_step_of_a_script(function):
    model = compiled(function)
    with pytest.raises(OutOfMemory) as raised, explain_out_of_memory(model):
        model.fit(*arrays(HUGE), batch_size=HUGE, verbose=0)
    error = raised.value
    assert isinstance(error.__cause__, tf.errors.ResourceExhaustedError)
    assert "Graph execution error" in str(error.__cause__)  # what there is without it
    assert error.phase == "the first training step"
    assert "shape[16777216,16777216] and type float" in error.received
    assert "powers" in error.asked.operation
    assert error.asked.device == "CPU:0"
    assert "batches of 4096 take about" in error.expected
    assert re.match(r"batches of \d{1,4} take about [\d,]+ MiB", error.fix)
    assert "tfopt.accumulate(model, " in error.fix
    assert "tfopt.find_batch_size" in error.fix
    assert "fit" not in vars(model)
    model.fit(*arrays(4), verbose=0)


@pytest.mark.parametrize(
    ("phase", "use"),
    [
        ("training step 3", lambda model: model.fit(batches(4, 4, HUGE), shuffle=False, verbose=0)),
        ("the validation", lambda model: model.fit(*arrays(4), **VALIDATED, verbose=0)),
    ],
)
def test_the_phase_is_named(phase, use):
    model = compiled()
    with pytest.raises(OutOfMemory) as raised, explain_out_of_memory(model):
        use(model)
    assert raised.value.phase == phase


def test_what_a_gpu_has_is_named(played):
    played(gpu(0))
    text = "OOM when allocating tensor with shape[64,1024,1024] and type half on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
    with pytest.raises(OutOfMemory) as raised, explain_out_of_memory():
        raise tf.errors.ResourceExhaustedError(None, None, text)
    assert raised.value.expected == "a step that fits into the 40,960 MiB of GPU:0, NVIDIA Stand-In"
    assert raised.value.received == text


def job(**changes):
    fields = {
        "build": net,
        "data": lambda: Data(train=arrays(HUGE)),
        "compile": lambda: {"loss": "mse", "jit_compile": False},
        "batch_size": HUGE,
    }
    return Job(**{**fields, **changes})


def test_a_run_says_what_there_was():
    with pytest.raises(OutOfMemory, match="a smaller model or less data") as raised:
        tfopt.run(job(build=lambda: np.zeros((1 << 24, 1 << 24))))
    assert raised.value.phase == "code before fit()"
    with pytest.raises(OutOfMemory, match="batches of 4096 take about") as raised:
        tfopt.run(job(), tfopt.Pipeline())
    assert raised.value.phase == "the first training step"
    # Other errors pass as they are.
    with pytest.raises(ZeroDivisionError), explain_out_of_memory(compiled()):
        1 / 0  # noqa: B018
    with pytest.raises(UserError, match="compiled"), explain_out_of_memory():
        raise UserError("compiled")


def test_a_forgotten_with_warns():
    with pytest.warns(RuntimeWarning, match=r"without `with`, and nothing is explained"):
        explain_out_of_memory()


def conv():
    layers = [keras.Input((32, 32, 4)), L.Conv2D(16, 3, padding="same")]
    block = [keras.Input((32, 32, 16)), L.Conv2D(16, 3, padding="same"), L.BatchNormalization()]
    layers += [keras.Sequential([*block, L.Activation("relu")]) for _ in range(2)]
    model = keras.Sequential([*layers, L.GlobalAveragePooling2D(), L.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    return model


def test_the_largest_half_that_fits_is_told():
    model = conv()
    given = {"x": np.ones((64, 32, 32, 4)), "y": np.ones((64, 1)), "batch_size": 64}
    step, smaller = smaller_step(model, given, None)
    assert (step.batch_size, smaller.batch_size) == (64, 32)
    _, smaller = smaller_step(model, given, room_mib=0.5 * step.peak_mib)
    assert smaller.batch_size == 16
    assert smaller.peak_mib < 0.4 * step.peak_mib


def test_the_last_batch_of_a_dataset_may_be_smaller():
    """Its specification leaves the size open: taken is what batch() was given."""
    plain = tf.data.Dataset.from_tensor_slices(arrays(50))
    for made in (
        plain.batch(16),
        plain.shuffle(50).batch(16, num_parallel_calls=2).cache().repeat(),
        plain.batch(16).map(lambda x, y: (x, y), num_parallel_calls=2).prefetch(2),
        plain.batch(16, drop_remainder=True),
    ):
        batch, examples = batch_of({"x": made, "batch_size": None})
        assert examples == 16
        assert [leaf.shape[1:] for leaf in batch] == [(1,), (1,)]
    # What came after may have changed it.
    for made in (plain.batch(16).rebatch(8), batches(4, 4), lambda: iter(())):
        with pytest.raises(UserError, match="not known without reading"):
            batch_of({"x": made})
