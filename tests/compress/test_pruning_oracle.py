"""Masks equal tfmot's on the same weights and schedule, and through a whole training.

tfmot runs on a tf_keras twin in a process of its own, since it switches its process to Keras 2;
the two exchange arrays through files.
"""

import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt.compress.prune import prune
from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity
from tfopt.compress.strip import strip
from tfopt.compress.weight_mask import chosen_mask

SHAPES = [(7,), (25,), (13, 9), (3, 3, 4, 8), (101, 33)]
SPARSITIES = [0.0, 0.1, 0.5, 0.8, 0.9, 0.999]
STEPS = 24
SCHEDULES = {
    "polynomial": PolynomialSparsity(
        0.8, initial_sparsity=0.2, begin_step=3, end_step=19, frequency=4
    ),
    "from_zero": PolynomialSparsity(0.9, begin_step=0, end_step=20, frequency=2, power=2.0),
    "constant": ConstantSparsity(0.6, begin_step=5, end_step=15, frequency=3),
    "endless": ConstantSparsity(0.75, begin_step=2, frequency=1),
}

ORACLE = """
    import sys
    import numpy as np
    import tensorflow as tf
    import tf_keras
    import tensorflow_model_optimization as tfmot
    from tensorflow_model_optimization.python.core.sparsity.keras import pruning_impl
    sparsity = tfmot.sparsity.keras
    given = np.load({given!r})
    found = {{}}

    for name in [n for n in given.files if n.startswith("one:")]:
        _, fraction, _ = name.split(":")
        schedule = sparsity.ConstantSparsity(float(fraction), 0)
        pruning = pruning_impl.Pruning(lambda: tf.constant(1), [], schedule, (1, 1), "AVG")
        found[name] = pruning._update_mask(tf.constant(given[name]))[1].numpy()

    def schedule_of(kind, **s):
        if kind == "PolynomialSparsity":
            return sparsity.PolynomialDecay(
                s["initial_sparsity"], s["sparsity"], s["begin_step"], s["end_step"],
                power=s["power"], frequency=s["frequency"],
            )
        end = -1 if s["end_step"] is None else s["end_step"]
        return sparsity.ConstantSparsity(s["sparsity"], s["begin_step"], end, s["frequency"])

    weights = [given[f"weights:{{i}}"] for i in range(6)]
    for name, config in {schedules!r}.items():
        model = tf_keras.Sequential([
            tf_keras.layers.Conv2D(6, 3, activation="tanh", input_shape=(8, 8, 2)),
            tf_keras.layers.Flatten(),
            tf_keras.layers.Dense(16, activation="tanh"),
            tf_keras.layers.Dense(4),
        ])
        model.set_weights(weights)
        model = sparsity.prune_low_magnitude(model, schedule_of(**config))
        model.compile(tf_keras.optimizers.legacy.SGD(0.05), "mse", jit_compile=False)
        model.fit(given["x"], given["y"], batch_size=8, epochs=1, shuffle=False, verbose=0,
                  callbacks=[sparsity.UpdatePruningStep()])
        layers = [layer for layer in model.layers if layer.pruning_vars]
        for i, layer in enumerate(layers):
            (kernel, mask, _), = layer.pruning_vars
            found[f"{{name}}:mask:{{i}}"] = mask.numpy()
            found[f"{{name}}:kernel:{{i}}"] = kernel.numpy()
    np.savez({found!r}, **found)
"""


def twin():
    """The same model as the oracle's."""
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            layers.Conv2D(6, 3, activation="tanh"),
            layers.Flatten(),
            layers.Dense(16, activation="tanh"),
            layers.Dense(4),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse", jit_compile=False)
    return model


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(7)
    keras.utils.set_random_seed(7)
    arrays = {f"weights:{i}": value for i, value in enumerate(twin().get_weights())}
    arrays["x"] = rng.normal(size=(STEPS * 8, 8, 8, 2)).astype("float32")
    arrays["y"] = rng.normal(size=(STEPS * 8, 4)).astype("float32")
    for fraction in SPARSITIES:
        for i, shape in enumerate(SHAPES):
            arrays[f"one:{fraction}:{i}"] = rng.normal(size=shape).astype("float32")
    return arrays


@pytest.fixture(scope="module")
def oracle(given, tmp_path_factory):
    folder = tmp_path_factory.mktemp("oracle")
    np.savez(folder / "given.npz", **given)
    schedules = {name: schedule.get_config() for name, schedule in SCHEDULES.items()}
    paths = {"given": str(folder / "given.npz"), "found": str(folder / "found.npz")}
    code = textwrap.dedent(ORACLE).format(schedules=schedules, **paths)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(np.load(folder / "found.npz"))


@pytest.mark.parametrize("fraction", SPARSITIES)
@pytest.mark.parametrize("i", range(len(SHAPES)))
def test_one_mask_equals_tfmots(given, oracle, fraction, i):
    name = f"one:{fraction}:{i}"
    ours = chosen_mask(tf.abs(tf.constant(given[name])), ConstantSparsity(fraction), 1).numpy()
    np.testing.assert_array_equal(ours, oracle[name].astype(bool))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_training_in_lock_step_with_tfmot_ends_with_its_masks_and_weights(given, oracle, name):
    model = twin()
    model.set_weights([given[f"weights:{i}"] for i in range(6)])
    if name == "from_zero":
        # tfmot never sees step 0, and at this schedule's start there is nothing to mask.
        assert SCHEDULES[name].initial_sparsity == 0
    prune(model, SCHEDULES[name])
    model.fit(given["x"], given["y"], batch_size=8, shuffle=False, verbose=0)
    strip(model)
    kernels = [layer.kernel.numpy() for layer in model.layers if hasattr(layer, "kernel")]
    assert len(kernels) == 3
    for i, kernel in enumerate(kernels):
        np.testing.assert_array_equal(kernel != 0, oracle[f"{name}:mask:{i}"].astype(bool))
        np.testing.assert_allclose(kernel, oracle[f"{name}:kernel:{i}"], rtol=1e-4, atol=1e-5)
