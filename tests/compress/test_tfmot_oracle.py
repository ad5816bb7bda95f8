"""Masks are tfmot's, through whole trainings.

tfmot runs on a tf_keras twin in a process of its own, since it switches its process to Keras 2;
the two exchange arrays through files.
"""

import subprocess
import sys
import textwrap
from importlib.util import find_spec

import keras
import numpy as np
import pytest
from dense_nets import compiled, kernel_layers
from keras import layers

from tfopt.compress.prune import prune
from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity
from tfopt.compress.strip import strip

# Training tfmot's model in another process takes nearly a minute.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("tensorflow_model_optimization") is None, reason="tfmot is not installed"
    ),
]

RNG = np.random.default_rng(7)
STEPS = 24
SCHEDULES = {
    "polynomial": PolynomialSparsity(
        0.8, initial_sparsity=0.2, begin_step=3, end_step=19, frequency=4
    ),
    # tfmot never sees step 0, and at this schedule's start there is nothing to mask.
    "from_zero": PolynomialSparsity(0.9, begin_step=0, end_step=20, frequency=2),
    "constant": ConstantSparsity(0.6, begin_step=5, end_step=15, frequency=3),
    "endless": ConstantSparsity(0.75, begin_step=2, frequency=1),
}
ORACLE = """
    import numpy as np
    import tf_keras
    import tfopt
    from tfopt.compress import ConstantSparsity, PolynomialSparsity
    given, found = np.load({given!r}), {{}}

    def twin(schedule):
        model = tf_keras.Sequential([
            tf_keras.layers.Conv2D(6, 3, activation="tanh", input_shape=(8, 8, 2)),
            tf_keras.layers.Flatten(),
            tf_keras.layers.Dense(16, activation="tanh"),
            tf_keras.layers.Dense(4),
        ])
        model.set_weights([given[f"weights:{{i}}"] for i in range(6)])
        model = tfopt.prune(model, schedule)
        model.compile(tf_keras.optimizers.legacy.SGD(0.05), "mse", jit_compile=False)
        model.fit(given["x"], given["y"], batch_size=8, shuffle=False, verbose=0)
        return model

    for name, schedule in {schedules!r}.items():
        model = twin(schedule)
        wrapped = [layer for layer in model.layers if hasattr(layer, "pruning_vars")]
        for i, layer in enumerate(wrapped):
            (kernel, mask, _), = layer.pruning_vars
            found[f"{{name}}:mask:{{i}}"] = mask.numpy()
            found[f"{{name}}:kernel:{{i}}"] = (kernel * mask).numpy()
    np.savez({found!r}, **found)
"""


def twin():
    """The same model as the oracle's."""
    return compiled(
        keras.Input((8, 8, 2)),
        layers.Conv2D(6, 3, activation="tanh"),
        layers.Flatten(),
        layers.Dense(16, activation="tanh"),
        layers.Dense(4),
        optimizer=keras.optimizers.SGD(0.05),
    )


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


@pytest.fixture(scope="module")
def given():
    keras.utils.set_random_seed(7)
    arrays = {f"weights:{i}": value for i, value in enumerate(twin().get_weights())}
    arrays["x"], arrays["y"] = normal(STEPS * 8, 8, 8, 2), normal(STEPS * 8, 4)
    return arrays


@pytest.fixture(scope="module")
def oracle(given, tmp_path_factory):
    folder = tmp_path_factory.mktemp("oracle")
    np.savez(folder / "given.npz", **given)
    paths = {"given": str(folder / "given.npz"), "found": str(folder / "found.npz")}
    code = textwrap.dedent(ORACLE).format(schedules=SCHEDULES, **paths)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(np.load(folder / "found.npz"))


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_training_in_lock_step_with_tfmot_ends_with_its_masks_and_weights(given, oracle, name):
    model = twin()
    model.set_weights([given[f"weights:{i}"] for i in range(6)])
    prune(model, SCHEDULES[name])
    model.fit(given["x"], given["y"], batch_size=8, shuffle=False, verbose=0)
    strip(model)
    kernels = [layer.kernel.numpy() for layer in kernel_layers(model)]
    assert len(kernels) == 3
    for i, kernel in enumerate(kernels):
        np.testing.assert_array_equal(kernel != 0, oracle[f"{name}:mask:{i}"].astype(bool))
        np.testing.assert_allclose(kernel, oracle[f"{name}:kernel:{i}"], rtol=1e-4, atol=1e-5)
