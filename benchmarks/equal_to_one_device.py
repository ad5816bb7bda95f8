"""Whether training on several replicas gives the weights of one device, over pairs of settings.

``python benchmarks/equal_to_one_device.py --replicas 2`` trains small nets under combinations of
optimizer, precision, clipping, accumulation, steps per execution, XLA, averaging, decay and data,
in which each pair of settings occurs at least once, on one device and on the replicas, with the
same global batch, and tells the largest difference of a weight. On several machines, or processes:
``tfopt launch --workers 2 -- python benchmarks/equal_to_one_device.py --replicas 2``. The reference
takes its steps one by one, uncompiled.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from allpairspy import AllPairs

from figures import save_figures

BATCH, EPOCHS, CLASSES = 16, 2, 3
SETTINGS: dict[str, list[Any]] = {
    "data": ["even", "uneven", "sample weights", "class weights", "masked", "synchronized"],
    "optimizer": ["SGD", "Adam", "AdamW", "Lamb"],
    "clipping": ["none", "clipnorm", "global_clipnorm", "clipvalue"],
    "average": ["none", "use_ema", "ema_overwrite_frequency"],
    "precision": ["float32", "mixed_float16"],
    "accumulation": [1, 4],
    "steps_per_execution": [1, 8],
    "jit_compile": [False, True],
    "decay": [False, True],
}
# The largest difference of a weight that rounding explains: sums are taken in another order, in
# half precision with ten bits; an optimizer that divides by the gradient's size makes it larger.
TOLERANCE = {"float32": 2e-6, "mixed_float16": 5e-4}


Cell = SimpleNamespace
"""One combination: a value of each setting."""


def cells() -> list[Cell]:
    """Return combinations in which each pair of settings occurs."""
    combinations = AllPairs(list(SETTINGS.values()))
    return [Cell(**dict(zip(SETTINGS, values, strict=True))) for values in combinations]


def optimizer(cell: Cell) -> Any:
    import keras

    kinds = {"SGD": {"momentum": 0.9}, "Adam": {}, "AdamW": {}, "Lamb": {}}
    how: dict[str, Any] = dict(kinds[cell.optimizer])
    if cell.clipping != "none":
        how[cell.clipping] = 0.05
    if cell.average != "none":
        how["use_ema"] = True
        how["ema_momentum"] = 0.5
        how["ema_overwrite_frequency"] = 3 if cell.average != "use_ema" else None
    if cell.accumulation > 1:
        how["gradient_accumulation_steps"] = cell.accumulation
    if cell.decay:
        how["weight_decay"] = 0.01
    return getattr(keras.optimizers, cell.optimizer)(0.01, **how)


def built(cell: Cell, **compiled: Any) -> Any:
    """Return a net for the cell's data, with weights that depend on nothing before it."""
    import keras

    keras.utils.set_random_seed(7)
    layers = keras.layers
    policy = keras.dtype_policies.DTypePolicy(cell.precision)
    if cell.data == "masked":
        inner = [
            keras.Input((7,)),
            layers.Embedding(9, 4, mask_zero=True, dtype=policy),
            layers.LSTM(4, return_sequences=True, dtype=policy),
        ]
    else:
        inner = [keras.Input((6,)), layers.Dense(8, "tanh", dtype=policy)]
    if cell.data == "synchronized":
        inner.append(layers.BatchNormalization(synchronized=True, momentum=0.9, dtype=policy))
    model = keras.Sequential([*inner, layers.Dense(CLASSES, dtype="float32")])
    rule = optimizer(cell)
    if cell.precision == "mixed_float16":
        rule = keras.optimizers.LossScaleOptimizer(rule, initial_scale=2.0**10)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(rule, loss, **compiled)
    return model


def trained(model: Any, cell: Cell) -> list[np.ndarray]:
    """Return the weights after training on the cell's data, in its order."""
    rng = np.random.default_rng(0)
    examples = 163 if cell.data == "uneven" else 160
    how: dict[str, Any] = {}
    if cell.data == "masked":
        x: Any = rng.integers(1, 9, size=(examples, 7))
        for row, length in enumerate(rng.integers(1, 8, size=examples)):
            x[row, length:] = 0
        y = rng.integers(0, CLASSES, size=(examples, 7))
    else:
        x = (1 + rng.normal(size=(examples, 6))).astype("float32")
        y = rng.integers(0, CLASSES, size=examples)
    if cell.data == "sample weights":
        how["sample_weight"] = rng.uniform(size=examples).astype("float32")
    if cell.data == "class weights":
        how["class_weight"] = {0: 0.2, 1: 1.0, 2: 3.0}
    model.fit(x, y, batch_size=BATCH, epochs=EPOCHS, shuffle=False, verbose=0, **how)
    return [np.asarray(weight) for weight in model.get_weights()]


Weights = list[np.ndarray]


def under(chosen: list[Cell], scope: Callable[[], Any]) -> Iterator[Weights | str]:
    """Yield what each cell trains under a scope, or the error that it ends in."""
    with scope():
        models = [
            built(cell, jit_compile=cell.jit_compile, steps_per_execution=cell.steps_per_execution)
            for cell in chosen
        ]
    for cell, model in zip(chosen, models, strict=True):
        try:
            yield trained(model, cell)
        # What cannot be trained is a row as well, in its own words.
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            yield f"{type(error).__name__}: {lines[0][:200]}"


def row_of(cell: Cell, plain: Weights, ours: Weights | str) -> dict[str, Any]:
    """Return a cell with the largest difference of a weight, or why it could not be trained."""
    row: dict[str, Any] = dict(vars(cell))
    if isinstance(ours, str):
        return {**row, "failed": ours}
    # Not Python's max, which passes over what is no number.
    gap = float(np.max([np.abs(a - b).max() for a, b in zip(plain, ours, strict=True)]))
    return {**row, "gap": gap, "equal": gap < TOLERANCE[cell.precision]}


def largest_gaps(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the largest difference of a weight in each precision; NaN is the largest."""
    gaps: dict[str, list[float]] = {precision: [0.0] for precision in TOLERANCE}
    for row in rows:
        gaps[row["precision"]].append(row.get("gap", 0.0))
    return {precision: float(np.max(each)) for precision, each in gaps.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicas", type=int, default=2, help="logical CPUs of this process")
    parser.add_argument("--part", default="1/1", help="2/3: the second third of the cells")
    parser.add_argument("--rows", type=Path, help="write the rows here, and no dated figures")
    options = parser.parse_args()
    number, parts = map(int, options.part.split("/"))
    chosen = cells()[number - 1 :: parts]
    import tfopt

    def scope() -> Any:
        return tfopt.distribute(logical_cpus=options.replicas, verify=False)

    with scope() as replicas:
        pass
    # Train the reference on one device before the workers begin, so that they end together.
    plain = [trained(built(cell, jit_compile=False), cell) for cell in chosen]
    ours = list(under(chosen, scope))
    if replicas.rank:
        return
    rows = [row_of(*each) for each in zip(chosen, plain, ours, strict=True)]
    if options.rows:
        options.rows.write_text(json.dumps(rows), encoding="utf-8")
        return
    save_figures(
        f"equal_to_one_device-{replicas.workers}x{options.replicas}",
        workers=replicas.workers,
        tolerance=TOLERANCE,
        summary={
            "cells": len(rows),
            "equal": sum(row.get("equal", False) for row in rows),
            "failed": sum("failed" in row for row in rows),
            "largest_gap": largest_gaps(rows),
        },
        rows=rows,
    )


if __name__ == "__main__":
    main()
