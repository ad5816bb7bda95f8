"""Measure a job along a chain from Python, as ``tfopt bench`` and the recipes do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tfopt.errors import UserError, require_count, require_switch
from tfopt.job.job import Chain, Job, Transform
from tfopt.measure.blocks import QUICK, Span
from tfopt.measure.display import Display
from tfopt.measure.experiment import Experiment, Interrupted, carry_out
from tfopt.measure.rebatched import reference_of
from tfopt.measure.rounds import Budget
from tfopt.measure.targets import Target, parts_of, plain_arguments
from tfopt.measure.watcher import Watcher
from tfopt.report.bench_report import Kind
from tfopt.report.documents import Report


def measure(
    job: str | Callable[..., Job],
    chain: Transform | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    rounds: int = 3,
    whole: bool = True,
    quick: bool = True,
    ablate: bool = False,
    verbose: bool = True,
) -> Report:
    """Measure a job as it is and under each prefix of a chain, and return the report.

    Every block of steps and every training is a process of its own, in interleaved rounds of
    random order. Ctrl-C returns what was measured until then, marked as incomplete.

    Example::

        report = tfopt.measure("my_package.train:job", tfopt.chain(tfopt.Prune(0.8)))
        print(report)
        report["kept"].step_ms
        report.save("perf")

    Args:
        job: A function that makes the job, ``def job() -> tfopt.Job``, or its name,
            "package.module:job": each process makes it anew.
        chain: A chain, or one transform; None measures the job alone.
        arguments: Of that function.
        rounds: Rounds of steps and of whole trainings, each with a seed: two at least.
        whole: Train every variant whole, for its time and accuracy; False trains only what
            trains other weights, for its accuracy.
        quick: Blocks of a second. False measures longer ones, in more rounds until the intervals
            are narrow, and looks where the time goes.
        ablate: Measure the chain without each link, in place of its prefixes.
        verbose: Show what is measured now, the time left, and what was found.
    """
    for name, value in {
        "whole": whole,
        "quick": quick,
        "ablate": ablate,
        "verbose": verbose,
    }.items():
        require_switch(name, value)
    require_count("rounds", rounds, minimum=2)
    parts = parts_of(chain)
    if ablate and len(parts) < 2:
        raise UserError(
            "ablate leaves links out of a chain.",
            expected="a chain of at least two transforms",
            received=f"{len(parts)} transforms",
        )
    name, given = reference_of(job, "measure"), plain_arguments(arguments)
    kind: Kind = "ablation" if ablate else "prefixes" if parts else "single"
    experiment = Experiment(
        title=name,
        command=f"tfopt.measure({name!r}, {Chain(parts)!r})",
        kind=kind,
        targets=(Target(name, name, Chain(parts), given),),
        span=QUICK if quick else Span(),
        budget=Budget(rounds, rounds if quick else 4 * rounds),
        quick=quick,
        studies=0 if quick else 2,
        seeds=rounds,
        whole=whole,
    )
    display = Display() if verbose else nullcontext(Watcher())
    with TemporaryDirectory(prefix="tfopt-") as folder, display as watcher:
        try:
            return Report(carry_out(experiment, Path(folder), watcher))
        except Interrupted as stop:
            if stop.report is None:
                raise KeyboardInterrupt from None
            return Report(stop.report)
