"""Find the chain that trains a job, or a compiled model, fastest on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.data.stages import draws_random
from tfopt.errors import UserError
from tfopt.job.job import Job
from tfopt.job.recipe_file import RecipeFile, write_recipe
from tfopt.job.transform import Chain, chain
from tfopt.measure.engine import TURN_S, Engine
from tfopt.measure.provenance import read_provenance
from tfopt.measure.rows import Row, row_report
from tfopt.measure.targets import Target, plain_arguments, reference_of
from tfopt.measure.trainings import MAX_DROP
from tfopt.report import format as fmt
from tfopt.report.bench_report import (
    Asked,
    BenchReport,
    Objective,
    Quality,
    Recommendation,
    is_time,
)
from tfopt.report.display import Display, Verbose, require_verbose
from tfopt.report.statistics import Comparison
from tfopt.run import Outcome, run
from tfopt.train.execution import Execution
from tfopt.tune.objective import OBJECTIVES, in_words
from tfopt.tune.search import INTERRUPTED, Search

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
    verbose: Verbose = "auto",
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
        verbose: As in ``model.fit``: "auto" shows what runs and the best so far, 0 nothing.

    Raises:
        UserError: The job cannot be imported or built in another process, a model comes without
            data, or a setting is unknown.
    """
    require_verbose(verbose)
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


@dataclass(frozen=True, repr=False)
class Tuned:
    """The chain that trains fastest of those tried, and the report of all of them.

    Attributes:
        job: The name of the job; None for a model that was given.
        chain: Empty where nothing was certainly faster than the job as it is.
        comparison: What was minimized, under the chain, as a share of that of the job as it is;
            None for the empty chain, and without a final.
        stopped: Why not everything was tried; empty where it was.
    """

    job: str | None
    arguments: Mapping[str, Any]
    chain: Chain
    comparison: Comparison | None
    report: BenchReport
    stopped: str

    @property
    def notes(self) -> tuple[str, ...]:
        """Return why the search ended, and what was not tried."""
        return self.report.notes

    @property
    def interrupted(self) -> bool:
        """Return whether the user stopped it."""
        return self.stopped == INTERRUPTED

    def __repr__(self) -> str:
        """Return the chain and how many variants were tried, on one line."""
        return f"Tuned({self.report.title!r}, {self.chain!r}, {len(self.report.variants)} variants)"

    def __str__(self) -> str:
        """Return the chain as Python writes it, and what it brought."""
        advice = self.report.recommendation
        assert advice is not None
        lines = [repr(self.chain), f"  {advice.brought}", *(f"  {note}" for note in self.notes)]
        return "\n".join([*lines, *(f"  not: {why}" for why in advice.dropped)])

    def _repr_html_(self) -> str:
        """Return the chain, what it brought and everything tried, for a notebook."""
        from tfopt.report.notebook import report_fragment

        advice = self.report.recommendation
        assert advice is not None
        return report_fragment(self.report, advice.brought, code=repr(self.chain))

    def fit(
        self,
        model: keras.Model,
        data: Any,
        *,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        verbose: Verbose = "auto",
        **settings: Any,
    ) -> Outcome:
        """Train a compiled model under the chain, and return the outcome with the trained model.

        The given model is not changed. ``callbacks`` and ``verbose`` are as in ``model.fit``,
        ``settings`` those of :meth:`tfopt.Job.from_model`. XLA flags in the chain are left out
        with a warning, since XLA reads them before a model exists: ``run(job, tuned.chain)`` in a
        new process sets them.

        Example:
            data = tfopt.Data(train=(x, y), validation=(x_val, y_val))
            stop = keras.callbacks.EarlyStopping(patience=2)
            trained = tuned.fit(model, data, epochs=10, callbacks=[stop]).model
        """
        job = Job.from_model(model, data, **settings)
        return run(job, _without_flags(self.chain), callbacks=callbacks, verbose=verbose)

    def write_recipe(self, path: str | Path) -> Path:
        """Write the chain, and the job if it has a name, as a recipe file for ``tfopt bench``."""
        title, arguments = f"{self.report.title}, tuned", dict(self.arguments)
        file = RecipeFile(title=title, job=self.job, arguments=arguments, chain=self.chain)
        return write_recipe(file, path)


def _without_flags(transforms: Chain) -> Chain:
    """Return a chain without XLA flags, which come too late in a process with a model."""
    kept = [
        replace(part, xla=None) if isinstance(part, Execution) else part
        for part in transforms.parts
    ]
    if kept == list(transforms.parts):
        return transforms
    warnings.warn(
        "The chain's XLA flags are left out: XLA reads them before a model exists. "
        "run(job, tuned.chain) in a new process sets them.",
        RuntimeWarning,
        stacklevel=3,
    )
    return chain(*kept)


def tuned(search: Search, display: Display) -> Tuned:
    """Search, and return the result."""
    with display, Engine(display) as engine:
        search.run(engine)
        rows = [trial for trial in search.trials.values() if trial.candidates]
        for row in rows:
            row.finish(engine)
    return Tuned(
        job=search.target.job,
        arguments=search.target.arguments,
        chain=search.chosen.variant.chain,
        comparison=search.confirmed,
        report=_report(search, rows),
        stopped=search.stopped,
    )


def _report(search: Search, rows: Sequence[Row]) -> BenchReport:
    plain = search.plain
    return BenchReport(
        title=search.target.name,
        command=f"tfopt.tune({search.target.job!r}, budget_s={search.budget_s:g})",
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        provenance=read_provenance(),
        asked=Asked(
            kind="tune",
            budget_s=search.budget_s,
            processes=max(len(row.processes) for row in rows) or 1,
            turn_ms=1000 * TURN_S,
            objective=search.objective,
        ),
        data=plain.data,
        variants=tuple(
            row_report(row, reference=plain, plain=plain.trainings, max_drop=search.max_drop)
            for row in rows
        ),
        recommendation=Recommendation(
            repr(search.chosen.variant.chain), _brought(search), tuple(_dropped(search))
        ),
        complete=search.stopped != INTERRUPTED,
        notes=tuple(_notes(search)),
    )


def _brought(search: Search) -> str:
    confirmed, chosen, objective = search.confirmed, search.chosen, search.objective
    if confirmed is None and chosen is not search.plain:
        return f"{in_words(objective, chosen.value)} in the races; no final proved it"
    if confirmed is None:
        less = "be faster" if is_time(objective) else f"take less {objective}"
        return f"nothing was shown to {less} than the job as it is"
    what = OBJECTIVES[objective]
    if not is_time(objective):
        ends = f"({confirmed.low:.2f} to {confirmed.high:.2f})"
        words = f"takes {confirmed.ratio:.2f} times {what} of the job as it is {ends}"
    else:
        words = f"{fmt.speed_and_interval(confirmed)} as fast, by {what}"
    found = search.quality
    if chosen.variant.chain.exact:
        return f"{words}; the trained weights are the same but for rounding"
    if isinstance(found, Quality):
        seeds = fmt.count(len(found.seeds), "seed")
        return f"{words}; {found.points:+.2f} points of {found.metric} over {seeds}"
    return f"{words}; quality {found}" if found else words


def _dropped(search: Search) -> Iterator[str]:
    for trial in search.trials.values():
        if trial in (search.plain, search.chosen):
            continue
        why = trial.reason or trial.lost or trial.beaten
        if why:
            yield f"{trial.setting}: {why.splitlines()[0]}"


def _notes(search: Search) -> Iterator[str]:
    """Yield why the search ended, and what was not tried."""
    yield from search.remarks
    if search.untried:
        left = "; ".join(map(str, dict.fromkeys(search.untried)))
        yield f"Not everything was tried: {search.stopped or 'no time was left'}. Left: {left}."
    elif search.stopped:
        yield f"Not everything was tried: {search.stopped}."
    else:
        tried = fmt.count(len(search.trials) - 1, "setting")
        yield f"Tried {tried}, until no change of the best was left."
