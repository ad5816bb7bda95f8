"""What the sweep does with tfopt: each operation on a fresh model, and the checks of its result.

An operation is a function of an architecture's name and its input size, which raises where the
result is not what it says. Another one is another line of ``OPERATIONS``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CLASSES = 10
_LOAD = """
import sys
sys.modules["tfopt"] = None  # importing it is an error from here on
import keras
print(keras.models.load_model(sys.argv[1], compile=False).count_params())
"""


def build(architecture: str, size: int) -> Any:
    """The architecture with random weights, scales and statistics of its norms among them."""
    import keras

    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, architecture)(
        weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None
    )
    generator = np.random.default_rng(0)
    for layer in model._flatten_layers():
        # ConvNeXt scales its branches by 1e-6 at first, beside which no mistake would show.
        if type(layer).__name__ in ("BatchNormalization", "LayerScale"):
            around = {"beta": 0.0, "moving_mean": 0.0}
            for variable in layer.weights:
                noise = 0.1 * generator.normal(size=variable.shape)
                variable.assign(around.get(variable.name, 1.0) + noise)
    return model


def noise(model: Any, examples: int) -> np.ndarray[Any, Any]:
    """Images of noise, as bright as the model expects; the first are the same for any number."""
    drawn = np.random.default_rng(1).normal(size=(examples, *model.input_shape[1:]))
    if any(type(layer).__name__ == "Rescaling" for layer in model._flatten_layers()):
        drawn = 127.5 + 60 * drawn
    return drawn.astype("float32")


def settle_statistics(model: Any) -> None:
    """Gives each BatchNormalization the statistics of noise, without which answers hardly vary."""
    norms = [
        layer for layer in model._flatten_layers() if type(layer).__name__ == "BatchNormalization"
    ]
    usual = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    model(noise(model, 64), training=True)
    for layer, momentum in zip(norms, usual, strict=True):
        layer.momentum = momentum


def train_one_step(model: Any) -> float:
    """The loss of one step on noise."""
    import keras

    model.compile(
        # Without clipping, a step on one pixel that BatchNormalization has passed explodes.
        keras.optimizers.SGD(1e-3, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        run_eagerly=True,  # tracing some hundred layers for one step takes longer than the step
    )
    loss = float(model.train_on_batch(noise(model, 16), np.arange(16) % CLASSES))
    if not np.isfinite(loss):
        raise ValueError(f"the loss of a step is {loss}")
    return loss


def require_loads_without_tfopt(model: Any) -> None:
    """Saves the model and loads it where tfopt cannot be imported."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        done = subprocess.run(
            [sys.executable, "-c", _LOAD, str(path)], capture_output=True, text=True, check=False
        )
    if done.returncode or int(done.stdout.split()[-1]) != model.count_params():
        raise ValueError(f"the file does not load without tfopt: {done.stderr[-300:]}")


def prune(architecture: str, size: int, **settings: Any) -> dict[str, Any]:
    import tfopt

    model = tfopt.prune(build(architecture, size), **settings)
    train_one_step(model)
    masked = [row for row in tfopt.compress.pruning_report(model) if row.target is not None]
    zeros, weights = sum(row.zeros for row in masked), sum(row.weights for row in masked)
    for row in masked:
        if abs(row.zeros - (row.target or 0) * row.weights) > 1:
            raise ValueError(f"{row.path} has {row.zeros} zeros, not {row.target} of {row.weights}")
    tfopt.strip(model)
    require_loads_without_tfopt(model)
    return {"kernels": len(masked), "zeros": zeros, "weights": weights}


def cluster(architecture: str, size: int) -> dict[str, Any]:
    import tfopt

    model = tfopt.cluster(build(architecture, size), 16)
    train_one_step(model)
    report = tfopt.compress.clustering_report(model)
    held = [row for row in report if row.clusters is not None]
    tfopt.strip(model)
    values = {row.path: row.values for row in tfopt.compress.clustering_report(model)}
    for row in held:
        if values[row.path] > 16:
            raise ValueError(f"{row.path} has {values[row.path]} values, not 16")
    require_loads_without_tfopt(model)
    left_out = Counter(row.remark for row in report if row.clusters is None)
    return {
        "kernels": len(held),
        "weights": sum(row.weights for row in held),
        "left_out": dict(left_out),
    }


def quantize_aware(architecture: str, size: int) -> dict[str, Any]:
    """A step, a file that loads back, and an int8 file without an operator in float."""
    import keras

    import tfopt

    model = build(architecture, size)
    settle_statistics(model)
    train_one_step(tfopt.quantize_aware(model))
    examples = noise(model, 64)
    answers = model(examples, training=False).numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        again = keras.models.load_model(path)(examples, training=False).numpy()
    if not np.allclose(again, answers, rtol=1e-4, atol=1e-4 * np.abs(answers).max()):
        raise ValueError(f"the loaded model differs by {np.abs(again - answers).max()}")
    made = tfopt.quantize(model, representative=examples)
    if not made.fully_integer:
        raise ValueError(f"left in float: {made.left_float}")
    tfopt.strip(model)
    require_loads_without_tfopt(model)
    return {"operators": sum(made.ops.values()), "times_smaller": made.float_kib / made.kib}


def remove_half_of_the_channels(architecture: str, size: int) -> dict[str, Any]:
    from tfopt.compress.remove_channels import carry_out

    # What it gives has been compared with the masked model, or it would have raised.
    done = carry_out(build(architecture, size), 0.5)
    report = done.report
    if done.difference is None or not done.model.count_params() < report.parameters_before:
        raise ValueError(f"a difference of {done.difference}, {report.parameters_after} parameters")
    train_one_step(done.model)
    require_loads_without_tfopt(done.model)
    return {
        "parameters_before": report.parameters_before,
        "parameters_after": done.model.count_params(),
        "flops_before": report.flops_before,
        "flops_after": report.flops_after,
        "relative_difference_to_masked": done.difference,
        "groups": len(report.groups),
        "groups_left_whole": sum(group.remark is not None for group in report.groups),
    }


OPERATIONS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    "remove-50": remove_half_of_the_channels,
    "prune-80": lambda architecture, size: prune(architecture, size, sparsity=0.8),
    "2:4": lambda architecture, size: prune(architecture, size, pattern="2:4"),
    "cluster-16": cluster,
    "qat-int8": quantize_aware,
}
