"""Run the checks of a machine, its cluster and a job, or those of some themes.

A check that fails or does not end is reported, and the others run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tfopt.doctor import cluster_checks, compute_checks, gpu_checks, host_checks, job_checks
from tfopt.doctor.check import THEMES, VERDICTS, Check, Checks, Subject
from tfopt.errors import UserError, first_line, require_one_of, require_within
from tfopt.job.references import check_reference
from tfopt.job.transform import Transform, as_chain
from tfopt.subprocesses import in_time


@dataclass(frozen=True)
class Inspection:
    """A function that checks one thing, and its time limit.

    ``limit_s`` None: it runs another process with a time limit.
    """

    theme: str
    name: str
    look: Callable[[Subject], Iterable[Check]]
    limit_s: float | None = 20.0


INSPECTIONS = (
    Inspection("host", "versions", host_checks.versions),
    Inspection("host", "CPU cores", host_checks.cores),
    Inspection("host", "memory", host_checks.memory),
    Inspection("host", "/dev/shm", host_checks.shared_memory),
    Inspection("host", "disk", host_checks.disk),
    Inspection("gpu", "NVIDIA driver", gpu_checks.driver),
    Inspection("gpu", "visible GPUs", gpu_checks.visibility),
    Inspection("gpu", "GPU memory", gpu_checks.memory),
    Inspection("compute", "CPU computation", compute_checks.on_cpu, limit_s=None),
    Inspection("compute", "GPU computation", compute_checks.on_gpus, limit_s=None),
    # Longer than ``listen_s``.
    Inspection("cluster", "cluster", cluster_checks.cluster, limit_s=3700.0),
    Inspection("job", "job", job_checks.job, limit_s=None),
)


def doctor(
    job: str | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    chain: Transform | None = None,
    only: Collection[str] = (),
    listen_s: float = 0.0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> Checks:
    """Check this machine, its cluster and a job before a long training.

    It takes half a minute, longer with GPUs: computations run in other processes, each of which
    loads TensorFlow. This process uses neither TensorFlow nor its devices.

    Args:
        job: "package.module:name" of a Job, or of a function that returns one. It is imported,
            and some of its steps are trained, in another process, without the job's callbacks.
        arguments: The arguments of that function.
        chain: A transform or a chain for the job.
        only: Names of themes (``tfopt.doctor.check.THEMES``); none: all of them.
        listen_s: In a cluster, how long to listen for the doctors of the other tasks, and to try
            to reach them; they must run at the same time.
        on_progress: Called with the name of each check before it begins.

    Raises:
        UserError: A theme is unknown, or ``job`` is not the name of one. What the checks find is
            returned.

    Example:
        for check in tfopt.doctor("my_package.train:job", only=["gpu", "job"]):
            print(check.verdict, check.message, check.fix)
    """
    for theme in only:
        require_one_of("theme in `only`", theme, THEMES)
    if job is not None:
        if not isinstance(job, str):
            raise UserError(
                "doctor() takes the name of a job, which it runs in another process.",
                expected='"package.module:name"',
                received=type(job).__name__,
            )
        check_reference(job)
    elif arguments or chain is not None or "job" in only:
        raise UserError(
            'arguments, chain and the theme "job" need a job.',
            expected="the name of a job",
            fix='give one: "my_package.train:job"',
        )
    require_within("`listen_s`", listen_s, 0, 3600, "seconds")
    subject = Subject(
        job=job,
        arguments=dict(arguments or {}),
        chain=as_chain(chain),
        listen_s=listen_s,
    )
    chosen = [inspection for inspection in INSPECTIONS if not only or inspection.theme in only]
    return Checks(examined(chosen, subject, on_progress))


def examined(
    inspections: Iterable[Inspection], subject: Subject, on_progress: Callable[[str], None]
) -> Iterator[Check]:
    """Yield the checks of each inspection, in their order."""
    for inspection in inspections:
        theme, name = inspection.theme, inspection.name
        on_progress(f"{theme}: {name}")
        if inspection.limit_s is None:
            yield from _run(inspection, subject)
            continue
        try:
            yield from in_time(inspection.limit_s, partial(_run, inspection, subject))
        except TimeoutError as error:
            yield Check(theme, name, "warning", str(error))


def _run(inspection: Inspection, subject: Subject) -> list[Check]:
    checks: list[Check] = []
    try:
        # ``extend`` keeps the checks before an error.
        checks.extend(inspection.look(subject))
    except Exception as error:
        text = f"could not be checked: {type(error).__name__}: {first_line(error)}"
        checks.append(Check(inspection.theme, inspection.name, "warning", text))
    return checks


_STYLES = {"failure": "bold red", "warning": "yellow"}


def as_terminal(checks: Sequence[Check]) -> RenderableType:
    """Return the checks for the terminal: failures and warnings first, with their fixes."""
    return Group(*_parts(checks))


def _parts(checks: Sequence[Check]) -> Iterator[RenderableType]:
    by_verdict = {
        verdict: [check for check in checks if check.verdict == verdict] for verdict in VERDICTS
    }
    counts = [f"{len(group)} {verdict}" for verdict, group in by_verdict.items() if group]
    yield Text(", ".join(counts), style="bold")
    for check in (*by_verdict["failure"], *by_verdict["warning"]):
        yield from _finding(check)
    for verdict in ("ok", "not here"):
        if by_verdict[verdict]:
            yield from (Text(), Text(verdict, style="bold"), _rows(by_verdict[verdict]))


def _finding(check: Check) -> Iterator[RenderableType]:
    line = Text(f"\n{check.verdict.upper()}  ", style=_STYLES[check.verdict])
    yield line.append(f"{check.theme}: {check.name}", style="bold")
    yield Padding(Text(check.message), (0, 0, 0, 2))
    for figure in check.evidence:
        yield Padding(Text(figure, style="dim"), (0, 0, 0, 4))
    if check.fix:
        yield Padding(Text(f"fix: {check.fix}", style="cyan"), (0, 0, 0, 2))


def _rows(checks: Sequence[Check]) -> Table:
    """Return a row for each name, one for all GPUs."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for wraps in (False, False, True):
        table.add_column(no_wrap=not wraps, overflow="fold")
    names: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        names.setdefault((check.theme, check.name), []).append(check)
    for (theme, name), (first, *more) in names.items():
        others = f" (and {len(more)} more like it)" if more else ""
        table.add_row(Text(f"  {theme}"), Text(name), Text(first.message + others))
    return table


VERSION = 2  # of the JSON document; 1 had "told" for "message"


def exit_code(checks: Sequence[Check]) -> int:
    """Return 1 if a check failed, else 0."""
    return int(any(check.verdict == "failure" for check in checks))


def as_json(checks: Sequence[Check]) -> str:
    """Return the checks as a JSON document; "not here" counts as ok."""
    counts = Counter(check.verdict for check in checks)
    content = {
        "version": VERSION,
        "verdict": next((verdict for verdict in ("failure", "warning") if counts[verdict]), "ok"),
        "counts": {verdict: counts[verdict] for verdict in VERDICTS},
        "checks": [asdict(check) for check in checks],
    }
    return json.dumps(content, indent=2) + "\n"
