"""What the recipe modules share: the plain job, how many examples it takes, the main guard."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfopt.data.mnist import SOURCES
from tfopt.data.sources.image_folder import class_folders
from tfopt.errors import require_count
from tfopt.job.job import Job
from tfopt.job.parts import Data
from tfopt.job.transform import Chain

if TYPE_CHECKING:
    import keras

CATEGORICAL, BINARY = "sparse_categorical_crossentropy", "binary_crossentropy"


def plain_job(
    name: str,
    build: Callable[[], keras.Model],
    data: Callable[[], Data],
    batch_size: int,
    epochs: int,
    steps: int | None,
    seed: int,
    *,
    loss: str = CATEGORICAL,
) -> Job:
    """Return a job as the tutorials write it: Adam at its default rate, chosen for batches of 32.

    Args:
        name: The recipe's.
        build: Returns the model, not compiled.
        data: Returns the examples.
        batch_size: Examples a step, of the baseline.
        epochs: As in ``fit``.
        steps: Steps an epoch; None: the whole data set.
        seed: Of weights and shuffling.
        loss: The loss by Keras's name.

    Example:
        plain_job("mine", build, data, batch_size, epochs, steps, seed)
    """

    def compiled() -> dict[str, Any]:
        import keras

        return {"optimizer": keras.optimizers.Adam(), "loss": loss, "metrics": ["accuracy"]}

    return Job(
        build,
        data,
        compiled,
        name,
        batch_size=batch_size,
        tuned_batch_size=32,
        epochs=epochs,
        steps_per_epoch=steps,
        seed=seed,
    )


def require_counts(*, examples: int | None = None, **counts: int) -> None:
    """Refuse arguments of a job that are not at least 1; ``examples`` None takes all."""
    given = counts if examples is None else {"examples": examples, **counts}
    for name, value in given.items():
        require_count(name, value)


def class_count(data: str, sources: Collection[str], count: int) -> int:
    """Return ``count`` for one of the named sources; else how many classes a folder has."""
    return count if data in sources else len(class_folders(data).classes)


def fixed_sample(data: Data, examples: int | None, shape: str) -> Data:
    """Return so many examples of each part, always the same, mixed: sources may be sorted by class.

    ``shape`` says in the note what becomes of an example.
    """
    import numpy as np

    def some(part: tuple[Any, Any]) -> tuple[Any, Any]:
        order = np.random.default_rng(0).permutation(len(part[1]))[:examples]
        return part[0][order], part[1][order]

    train, test = some(data.train), some(data.test)
    note = f"{data.note}; {len(train[1]):,} and {len(test[1]):,} of them, {shape}"
    return replace(data, train=train, test=test, note=note)


def run_recipe(
    name: str, chain: Chain, *, sources: Sequence[str] = SOURCES, data: str = ""
) -> None:
    """Run a recipe module from its command line, and leave Python with its exit code."""
    from tfopt.recipes.recipe_main import recipe_main

    job = f"tfopt.recipes.{name}:job"
    sys.exit(recipe_main(job, chain, title=name, sources=sources, data=data))
