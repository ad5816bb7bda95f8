"""Run the checks of a machine, its cluster and a job, or those of some themes.

A check that breaks or does not end becomes a check that says so, never the end of the others.
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
from tfopt.doctor.check import THEMES, VERDICTS, Check, Checks, Subject, in_one_line
from tfopt.errors import UserError, within
from tfopt.job.references import check_reference
from tfopt.job.transform import Transform, as_chain
from tfopt.subprocesses import in_time


@dataclass(frozen=True)
class Inspection:
    """A function that looks at one thing, and for how long it may.

    ``limit_s`` None: it works in another process, which it ends itself at a limit.
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
    Inspection("gpu", "visible GPUs", gpu_checks.visible_gpus),
    Inspection("gpu", "GPU memory", gpu_checks.memory),
    Inspection("compute", "CPU computation", compute_checks.on_cpu, limit_s=None),
    Inspection("compute", "GPU computation", compute_checks.on_gpus, limit_s=None),
    # Longer than anybody may listen; in a thread, since a notebook's own has a loop already.
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
    """Check this machine, its cluster and a job before hours are spent on them.

    It takes half a minute, longer with GPUs: what is computed runs in processes of their own, each
    of which loads TensorFlow. Neither TensorFlow nor its devices are touched in this process.

    Args:
        job: "package.module:name" of a Job, or of a function that returns one. Its module is
            imported and some of its steps are trained in another process, without the job's
            callbacks.
        arguments: The arguments of that function.
        chain: A transform or a chain to put on the job.
        only: Names of themes (``tfopt.doctor.check.THEMES``); none: all of them.
        listen_s: In a cluster, for how long to answer the doctors of the other tasks, and to try
            to reach them; they must run at the same time.
        on_progress: Called with the name of each check before it begins.

    Raises:
        UserError: A theme is unknown, or ``job`` is not the name of one. What the checks find is
            returned.

    Example:
        for check in tfopt.doctor("my_package.train:job", only=["gpu", "job"]):
            print(check.verdict, check.told, check.fix)
    """
    for theme in only:
        if theme not in THEMES:
            raise UserError("There is no such theme.", expected=", ".join(THEMES), received=theme)
    if job is not None:
        if not isinstance(job, str):
            raise UserError(
                "doctor() takes the name of a job, since it is looked at in a process of its own.",
                expected='"package.module:name"',
                received=type(job).__name__,
            )
        check_reference(job)
    elif arguments or chain is not None or "job" in only:
        raise UserError(
            "No job is named.",
            expected="a job, for the theme of that name, arguments and a chain",
            fix="name one: my_package.train:job",
        )
    if not within(listen_s, 0, 3601):
        raise UserError(
            "listen_s is not a time to wait.",
            expected="seconds, from 0 to an hour",
            received=repr(listen_s),
        )
    subject = Subject(
        job=job,
        arguments=dict(arguments or {}),
        chain=as_chain(chain),
        listen_s=listen_s,
    )
    chosen = [each for each in INSPECTIONS if not only or each.theme in only]
    return Checks(examined(chosen, subject, on_progress))


def examined(
    inspections: Iterable[Inspection], subject: Subject, on_progress: Callable[[str], None]
) -> Iterator[Check]:
    """Yield what each inspection finds, in their order."""
    for each in inspections:
        on_progress(f"{each.theme}: {each.name}")
        if each.limit_s is None:
            yield from _looked(each, subject)
            continue
        try:
            yield from in_time(each.limit_s, partial(_looked, each, subject))
        except TimeoutError as error:
            yield Check(each.theme, each.name, "warning", str(error))


def _looked(inspection: Inspection, subject: Subject) -> list[Check]:
    found: list[Check] = []
    try:
        # What was found before it broke is kept.
        found.extend(inspection.look(subject))
    except Exception as error:
        text = f"could not be looked at: {in_one_line(error)}"
        found.append(Check(inspection.theme, inspection.name, "warning", text))
    return found


_STYLES = {"failure": "bold red", "warning": "yellow"}


def as_terminal(checks: Sequence[Check]) -> RenderableType:
    """Return what to print: what needs attention first, with its fix; then what is in order.

    Texts are never read as markup.
    """
    return Group(*_parts(checks))


def _parts(checks: Sequence[Check]) -> Iterator[RenderableType]:
    by_verdict = {
        verdict: [check for check in checks if check.verdict == verdict] for verdict in VERDICTS
    }
    counts = [f"{len(found)} {verdict}" for verdict, found in by_verdict.items() if found]
    yield Text(", ".join(counts), style="bold")
    for check in (*by_verdict["failure"], *by_verdict["warning"]):
        yield from _finding(check)
    for verdict in ("ok", "not here"):
        if by_verdict[verdict]:
            yield from (Text(), Text(verdict, style="bold"), _rows(by_verdict[verdict]))


def _finding(check: Check) -> Iterator[RenderableType]:
    line = Text(f"\n{check.verdict.upper()}  ", style=_STYLES[check.verdict])
    yield line.append(f"{check.theme}: {check.name}", style="bold")
    yield Padding(Text(check.told), (0, 0, 0, 2))
    for each in check.evidence:
        yield Padding(Text(each, style="dim"), (0, 0, 0, 4))
    if check.fix:
        yield Padding(Text(f"fix: {check.fix}", style="cyan"), (0, 0, 0, 2))


def _rows(checks: Sequence[Check]) -> Table:
    """Return a row for each name: eight GPUs take one."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for wraps in (False, False, True):
        table.add_column(no_wrap=not wraps, overflow="fold")
    names: dict[tuple[str, str], list[Check]] = {}
    for check in checks:
        names.setdefault((check.theme, check.name), []).append(check)
    for (theme, name), (first, *more) in names.items():
        others = f" (and {len(more)} more like it)" if more else ""
        table.add_row(Text(f"  {theme}"), Text(name), Text(first.told + others))
    return table


# The keys stay as they are within a version; new keys may come.
VERSION = 1


def exit_code(checks: Sequence[Check]) -> int:
    """Return 1 where anything failed, else 0: a warning stops no script."""
    return int(any(check.verdict == "failure" for check in checks))


def as_json(checks: Sequence[Check]) -> str:
    """Return the checks as one JSON document, for scripts; what is not here is in order."""
    counts = Counter(check.verdict for check in checks)
    content = {
        "version": VERSION,
        "verdict": next((each for each in ("failure", "warning") if counts[each]), "ok"),
        "counts": {verdict: counts[verdict] for verdict in VERDICTS},
        "checks": [asdict(check) for check in checks],
    }
    return json.dumps(content, indent=2) + "\n"
