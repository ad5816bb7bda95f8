"""What k-means begins with equals tfmot's, and both keep to the number of values.

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

from tfopt.compress.cluster import cluster
from tfopt.compress.codebook import initial_values
from tfopt.compress.strip import strip

SHAPES = [(25,), (13, 9), (3, 3, 4, 8), (101, 33)]
COUNTS = (2, 4, 8, 16, 32)

ORACLE = """
    import sys
    import numpy as np
    import tensorflow as tf
    import tf_keras
    import tfopt
    from tfopt.compress.keras2 import load_tfmot
    given = np.load({given!r})
    found = {{}}
    load_tfmot()
    from tensorflow_model_optimization.python.core.clustering.keras import clustering_centroids
    kinds = {{
        "linear": clustering_centroids.LinearCentroidsInitialisation,
        "density": clustering_centroids.DensityBasedCentroidsInitialisation,
    }}
    for name in [n for n in given.files if n.startswith("one:")]:
        _, kind, clusters, _ = name.split(":")
        values = kinds[kind](tf.constant(given[name]), int(clusters)).get_cluster_centroids()
        found[name] = values.numpy()

    model = tf_keras.Sequential([
        tf_keras.layers.Conv2D(6, 3, activation="tanh", input_shape=(8, 8, 2)),
        tf_keras.layers.Flatten(),
        tf_keras.layers.Dense(16, activation="tanh"),
        tf_keras.layers.Dense(4),
    ])
    model.set_weights([given[f"weights:{{i}}"] for i in range(6)])
    model.compile(tf_keras.optimizers.legacy.SGD(0.01), "mse", jit_compile=False)
    model = tfopt.cluster(model, 8, initial="linear")
    model.fit(given["x"], given["y"], batch_size=8, epochs=1, shuffle=False, verbose=0)
    model = tfopt.strip(model)
    for i, weight in enumerate(model.get_weights()):
        found[f"trained:{{i}}"] = weight
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
    model.compile(keras.optimizers.SGD(0.01), "mse", jit_compile=False)
    return model


@pytest.fixture(scope="module")
def given():
    rng = np.random.default_rng(7)
    keras.utils.set_random_seed(7)
    arrays = {f"weights:{i}": value for i, value in enumerate(twin().get_weights())}
    arrays["x"] = rng.normal(size=(64, 8, 8, 2)).astype("float32")
    arrays["y"] = rng.normal(size=(64, 4)).astype("float32")
    for kind in ("linear", "density"):
        for clusters in COUNTS:
            for i, shape in enumerate(SHAPES):
                values = rng.normal(size=shape) * rng.uniform(0.05, 2)
                arrays[f"one:{kind}:{clusters}:{i}"] = values.astype("float32")
    return arrays


@pytest.fixture(scope="module")
def oracle(given, tmp_path_factory):
    folder = tmp_path_factory.mktemp("oracle")
    np.savez(folder / "given.npz", **given)
    paths = {"given": str(folder / "given.npz"), "found": str(folder / "found.npz")}
    code = textwrap.dedent(ORACLE).format(**paths)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(np.load(folder / "found.npz"))


@pytest.mark.parametrize("kind", ["linear", "density"])
@pytest.mark.parametrize("clusters", COUNTS)
def test_the_first_values_equal_tfmots(given, oracle, kind, clusters):
    for i in range(len(SHAPES)):
        name = f"one:{kind}:{clusters}:{i}"
        row = tf.constant(given[name].reshape(1, -1), tf.float64)
        ours = initial_values(row, tf.ones_like(row, tf.bool), clusters, kind).numpy()[0]
        np.testing.assert_allclose(ours, np.sort(oracle[name]), rtol=1e-4, atol=1e-5)


def test_neither_has_more_values_than_clusters_after_strip(given, oracle):
    model = twin()
    model.set_weights([given[f"weights:{i}"] for i in range(6)])
    cluster(model, 8, initial="linear")
    model.fit(given["x"], given["y"], batch_size=8, shuffle=False, verbose=0)
    for i, weight in enumerate(strip(model).get_weights()):
        if weight.ndim > 1:
            assert len(np.unique(weight)) <= 8
            assert len(np.unique(oracle[f"trained:{i}"])) <= 8
            # The oracle did train.
            assert not np.isin(oracle[f"trained:{i}"], given[f"weights:{i}"]).any()
