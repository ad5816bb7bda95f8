"""Memory runs out in each phase: a layer says so of large batches in TensorFlow's words.

Once it is for real: a tensor of a pebibyte, which no machine gives, and for which TensorFlow waits
ten seconds.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt import Data, Job, UserError, explain_out_of_memory
from tfopt.train import OutOfMemory
from tfopt.train.memory_relief import batch_of, relief

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
    assert (error.asked.size_bytes, error.asked.dtype) == (1 << 50, "float32")
    assert "(layer powers) on CPU:0" in error.received
    assert "a step of 4096 examples takes about" in error.expected
    assert error.ways[0].words.startswith("batches of ")
    assert 1 <= int(error.ways[0].words.split()[2]) < HUGE
    assert "tfopt.find_batch_size" in error.fix
    assert "fit" not in vars(model)
    model.fit(*arrays(4), verbose=0)


@pytest.mark.parametrize(
    ("phase", "use"),
    [
        ("training step 3", lambda model: model.fit(batches(4, 4, HUGE), shuffle=False, verbose=0)),
        ("the validation", lambda model: model.fit(*arrays(4), **VALIDATED, verbose=0)),
        (
            "the evaluation",
            lambda model: model.evaluate(*arrays(HUGE), batch_size=HUGE, verbose=0),
        ),
        (
            "something else than fit() and evaluate()",
            lambda model: model.predict(arrays(HUGE)[0], batch_size=HUGE, verbose=0),
        ),
    ],
)
def test_the_phase_is_named(phase, use):
    model = compiled()
    with pytest.raises(OutOfMemory) as raised, explain_out_of_memory(model):
        use(model)
    assert raised.value.phase == phase


def test_what_a_gpu_has_is_named(stand_in_driver):
    text = "OOM when allocating tensor with shape[64,1024,1024] and type half on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"
    with pytest.raises(OutOfMemory) as raised, explain_out_of_memory():
        raise tf.errors.ResourceExhaustedError(None, None, text)
    assert raised.value.expected == "what fits into the 8,000 MiB of GPU:0, NVIDIA Stand-In"
    assert (
        raised.value.received == "128.0 MiB for a float16 tensor of shape (64, 1024, 1024) on GPU:0"
    )


def job(**changes):
    fields = {
        "build": net,
        "data": lambda: Data(train=arrays(HUGE)),
        "compile": lambda: {"loss": "mse", "jit_compile": False},
        "batch_size": HUGE,
    }
    return Job(**{**fields, **changes})


@pytest.mark.parametrize(
    ("phase", "changes"),
    [
        ("the loading of the data", {"data": lambda: Data(train=np.zeros((1 << 24, 1 << 24)))}),
        ("the build of the model", {"build": lambda: np.zeros((1 << 24, 1 << 24))}),
        ("compile()", {"restore": lambda model: np.zeros((1 << 24, 1 << 24))}),
    ],
)
def test_a_run_names_its_own_phases(phase, changes):
    with pytest.raises(OutOfMemory) as raised:
        tfopt.run(job(**changes))
    assert raised.value.phase == phase


def test_a_run_on_a_pipeline_knows_its_batch():
    with pytest.raises(OutOfMemory, match="a step of 4096 examples") as raised:
        tfopt.run(tfopt.Pipeline().apply(job()))
    assert raised.value.phase == "the first training step"


def test_other_errors_pass_as_they_are():
    with pytest.raises(ZeroDivisionError), explain_out_of_memory(compiled()):
        1 / 0  # noqa: B018
    with pytest.raises(UserError, match="compiled"), explain_out_of_memory():
        raise UserError("compiled")


XLA = """
    import os, keras, numpy as np, tfopt
    L = keras.layers
    layers = [keras.Input((4,)), L.Dense(1 << 20), L.Activation("relu")]
    layers += [L.Lambda(lambda t: t[:, :, None] * t[:, None, : 1 << 16]), L.GlobalAveragePooling1D()]
    model = keras.Sequential([*layers, L.Dense(1)])
    model.compile("adam", "mse", jit_compile=True)
    try:
        with tfopt.explain_out_of_memory(model):
            model.fit(np.ones((64, 4)), np.ones((64, 1)), batch_size=64, verbose=0)
    except tfopt.train.OutOfMemory as error:
        print(error.phase, error.asked.size_bytes, flush=True)
    os._exit(0)  # TensorFlow 2.21 aborts in the end, after what XLA could not get
"""


@pytest.mark.slow
def test_a_step_that_xla_compiled(fresh_python):
    printed = fresh_python(XLA)
    assert printed.startswith("the first training step")
    assert int(printed.split()[-1]) > 1 << 43


def conv():
    blocks = []
    for channels in (4, 16, 16):
        layers = [keras.Input((32, 32, channels))]
        for _ in range(2):
            layers += [L.Conv2D(16, 3, padding="same"), L.BatchNormalization()]
            layers.append(L.Activation("relu"))
        blocks.append(keras.Sequential(layers))
    top = [L.GlobalAveragePooling2D(), L.Dense(1)]
    model = keras.Sequential([keras.Input((32, 32, 4)), *blocks, *top])
    model.compile("adam", "mse", jit_compile=False)
    return model


@pytest.mark.slow
def test_what_fits_comes_first_and_the_model_stays_as_it_was(monkeypatch):
    model, size = conv(), 64
    given = {"x": np.ones((size, 32, 32, 4)), "y": np.ones((size, 1)), "batch_size": size}
    before = [layer.dtype_policy.name for layer in model._flatten_layers()]
    monkeypatch.setattr("tfopt.train.precision.half_precision", lambda: "mixed_bfloat16")
    step, _ = relief(model, given, None)
    _, ways = relief(model, given, room_mib=step.peak_mib)
    names = [way.words for way in ways]
    assert "batches of 32 instead of 64" in names
    assert "batches of 32 and tfopt.accumulate(model, 2)" in names
    assert any("remat" in name for name in names)
    assert any("mixed_bfloat16" in name for name in names)
    fits = [way.fits(step.peak_mib) for way in ways]
    assert fits == sorted(fits, reverse=True)
    assert fits[0]
    assert [layer.dtype_policy.name for layer in model._flatten_layers()] == before
    # The figure of a way is what the model then takes, by the same estimate.
    peaks = {way.words: way.peak_mib for way in ways}
    tfopt.accumulate(model, 2)
    taken = tfopt.training_memory(model, batch_of(given)[0], batch_size=32).peak_mib
    assert peaks["batches of 32 and tfopt.accumulate(model, 2)"] == pytest.approx(taken, rel=0.25)
    assert "accumulate" not in str(relief(model, given, None)[1])


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
        assert [leaf.shape for leaf in batch] == [(16, 1), (16, 1)]
    # What came after may have changed it.
    for made in (plain.batch(16).rebatch(8), batches(4, 4), lambda: iter(())):
        with pytest.raises(UserError, match="not known without reading"):
            batch_of({"x": made})
