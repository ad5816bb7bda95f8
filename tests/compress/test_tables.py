"""Reports on a model, printed as people read them."""

import keras
import numpy as np
from keras import layers

import tfopt


def net():
    keras.utils.set_random_seed(0)
    norms = [layers.BatchNormalization(name=f"norm_{n}") for n in range(6)]
    hidden, out = layers.Dense(20, "relu", name="hidden"), layers.Dense(3, "softmax", name="out")
    return keras.Sequential([keras.Input((8,)), hidden, *norms, out])


def test_sparsity_and_clusters_are_tables():
    report = tfopt.compress.pruning_report(tfopt.prune(net(), 0.5))
    assert len(report) == 8
    head, hidden, out, together, *left = str(report).splitlines()
    assert head.split() == ["weights", "zeros", "target"]
    assert hidden.split() == ["hidden/kernel", "160", "50.0%", "50.0%"]
    assert out.split()[:2] == ["out/kernel", "60"]
    assert together.split() == ["together", "220", "50.0%"]
    norms = "norm_0, norm_1, norm_2 and 3 more"
    assert left == [f"left alone: {norms} (BatchNormalization has no kernel)"]
    clustered = str(tfopt.compress.clustering_report(tfopt.cluster(net(), 4))).splitlines()
    assert clustered[1].split() == ["hidden/kernel", "160", "4", "4"]
    assert clustered[-1:] == left


def test_ranges_are_a_table_of_rounded_figures():
    model = tfopt.quantize_aware(net())
    model(np.full((4, 8), 1 / 3, "float32"), training=True)
    lines = str(tfopt.compress.quantization_report(model)).splitlines()
    assert len(lines) == 1 + len(tfopt.compress.quantization_report(model))
    assert lines[1].split("  ")[0] == "inputs"
    assert "0 to 0.3333" in lines[1]
