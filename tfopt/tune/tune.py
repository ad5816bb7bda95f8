"""Find the chain that trains a job, or a compiled model, fastest on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfopt.data.stages import draws_random
from tfopt.errors import UserError, require_switch
from tfopt.job.job import Job
from tfopt.measure.display import Display
from tfopt.measure.targets import Target, plain_arguments, reference_of
from tfopt.measure.trainings import MAX_DROP
from tfopt.report.bench_report import Objective
from tfopt.tune.search import Search
from tfopt.tune.tuned import Tuned, tuned

if TYPE_CHECKING:
    import keras


def tune(
    job: str | Callable[..., Job] | keras.Model,
    data: Any = None,
    *,
    epochs: int | None = None,
    batch_size: int | None = None,
    test: Any = None,
    arguments: Mapping[str, Any] | None = None,
    budget_s: float = 600.0,
    objective: Objective = "training",
    exact: bool = False,
    space: Mapping[str, Sequence[Any]] | None = None,
    seeds: int = 3,
    max_drop: float = MAX_DROP,
    final: bool = True,
    verbose: bool = True,
) -> Tuned:
    """Find the chain that trains a job fastest on this machine.

    Single changes of the job race at once, then combinations of what helped; the winner meets the
    job as it is in a final of up to five new processes a side. With a final, nothing is returned
    that is not certainly faster. Interrupted (Ctrl-C), the search returns what is certain so far.

    Example::

        tuned = tfopt.tune("my_package.train:job", budget_s=300)
        print(tuned)
        tuned.write_recipe("tuned.toml")
        outcome = tfopt.run(job(), tuned.chain)

        tuned = tfopt.tune(model, (x, y), epochs=10, test=(x_test, y_test))
        trained = tuned.fit(model, (x, y), epochs=10).model

    Args:
        job: A function that makes the job, ``def job() -> tfopt.Job``, or its name,
            "package.module:job"; or a compiled Keras model, with its ``data``.
        data: With a model: arrays as a tuple, a ``tf.data.Dataset``, or a source. A dataset is
            saved as batches, so what it costs to make them is not measured, and random numbers
            of its stages, such as augmentation, are drawn once for all epochs.
        epochs: With a model: as ``fit`` takes it; the search does not train so long.
        batch_size: With a model and arrays or a source: as ``fit`` takes it.
        test: With a model: what accuracy is measured on; without it, only what trains the same
            weights is tried.
        arguments: Keyword arguments of the job function.
        budget_s: About the seconds it may take: a final and whole trainings that have begun are
            finished.
        objective: What to minimize: "training" is the predicted time of the whole training,
            building and compiling included; "step" the time of an example; "memory" the peak;
            "energy" that of an example; "time-to-accuracy" is "training", and of several learning
            rates the one that reaches the accuracy of the job as it is first.
        exact: Try only what trains the weights of the job as it is.
        space: Values to try in the place of those chosen for the job and the machine, by setting:
            ``{"batch_size": [64, 128], "jit_compile": []}``.
        seeds: Whole trainings that confirm the accuracy of a chain that changes the weights; 0: it
            is returned unconfirmed, and the report says so.
        max_drop: Points of test accuracy that may be lost.
        final: False returns the winner of the races unproven, to be measured by what follows.
        verbose: Show what runs, and the best so far.

    Raises:
        UserError: The job cannot be imported or built in another process, a model comes without
            data, or a setting is unknown.
    """
    require_switch("verbose", verbose)
    with ExitStack() as stack:
        if hasattr(job, "fit") and hasattr(job, "compile"):
            from tfopt.tune.given_model import target_of_model

            if draws_random(data):  # what is saved of it no longer does
                space = {"input": ["pipeline"], **(space or {})}
            settings = {"epochs": epochs, "batch_size": batch_size}
            target, remarks = stack.enter_context(target_of_model(job, data, test, settings))
        else:
            given = {"data": data, "epochs": epochs, "batch_size": batch_size, "test": test}
            for name in (name for name, value in given.items() if value is not None):
                raise UserError(
                    f"{name} goes with a model.",
                    expected="tune(model, data, epochs=...), or a job that has its own",
                    received=f"a job with {name}",
                    fix="set it in the job",
                )
            name = reference_of(job, "tune")
            target, remarks = Target(name, name, arguments=plain_arguments(arguments)), ()
        search = Search(target, budget_s, objective, exact, space, seeds, max_drop, final, remarks)
        found = tuned(search, Display(verbose=verbose, budget_s=budget_s))
    # The files of a given model are gone: a recipe file holds the chain alone.
    return found if data is None else replace(found, job=None, arguments={})
