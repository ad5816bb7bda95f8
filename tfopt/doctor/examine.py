"""doctor: all checks, or those of some themes, as values.

Guarantees: a check that breaks, or does not end, is a check that says so, never the end of the
others; what could crash runs in a process of its own. A check that does not end in this process
(a driver that hangs) leaves its thread behind.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tfopt.doctor.check import THEMES, VERDICTS, Check, Inspection, Subject, in_one_line
from tfopt.doctor.check import within as within_limit
from tfopt.doctor.cluster_checks import CLUSTER_INSPECTIONS
from tfopt.doctor.gpu_checks import COMPUTING_INSPECTIONS, GPU_INSPECTIONS
from tfopt.doctor.host_checks import DISK_INSPECTIONS, HOST_INSPECTIONS
from tfopt.doctor.job_checks import JOB_INSPECTIONS
from tfopt.doctor.version_checks import DEFECT_INSPECTIONS, VERSION_INSPECTIONS
from tfopt.errors import UserError, within
from tfopt.job.references import check_reference

# The checks for a reader: what needs attention first, with its fix; then what is in order.
#
# Guarantees: texts are never read as markup and never cut; what is not on this machine takes one
# line for each reason, and no more.

_STYLES = {"failure": "bold red", "warning": "yellow", "ok": "green", "not here": "dim"}


def as_terminal(checks: Sequence[Check], *, evidence: bool = False) -> RenderableType:
    """What to print; ``evidence`` shows also that of what is in order."""
    return Group(*_parts(checks, evidence))


def summary(checks: Sequence[Check]) -> str:
    """One line."""
    count = {v: sum(check.verdict == v for check in checks) for v in _STYLES}
    words = [
        f"{count[verdict]} {verdict}{'s' if count[verdict] > 1 else ''}"
        for verdict in ("failure", "warning")
        if count[verdict]
    ]
    words += [f"{count['ok']} in order"]
    words += [f"{count['not here']} not here"] if count["not here"] else []
    return ", ".join(words)


def _parts(checks: Sequence[Check], evidence: bool) -> Iterator[RenderableType]:
    yield Text(summary(checks), style="bold")
    for verdict in ("failure", "warning"):
        for check in checks:
            if check.verdict == verdict:
                yield Text()
                yield from _finding(check)
    good = [check for check in checks if check.verdict == "ok"]
    if good:
        yield Text()
        yield Text("In order", style="bold green")
        yield _table(good, evidence)
    absent = [check for check in checks if check.verdict == "not here"]
    if absent:
        yield Text()
        yield Text("Not here", style="bold")
        yield _absent(absent)


def _finding(check: Check) -> Iterator[RenderableType]:
    style = _STYLES[check.verdict]
    line = Text(f"{check.verdict.upper()}  ", style=style)
    line.append(f"{check.theme}: {check.name}", style="bold")
    yield line
    yield Padding(Text(check.told), (0, 0, 0, 2))
    for each in check.evidence:
        yield Padding(Text(each, style="dim"), (0, 0, 0, 4))
    if check.fix:
        yield Padding(Text(f"fix: {check.fix}", style="cyan"), (0, 0, 0, 2))


def _table(checks: Sequence[Check], evidence: bool) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    theme = ""
    for same in _by_name(checks, apart=evidence):
        check, *more = same
        others = f" (and {len(more)} more like it)" if more else ""
        table.add_row(
            Text("" if check.theme == theme else f"  {check.theme}", style="bold"),
            Text(check.name),
            Text(check.told + others),
        )
        theme = check.theme
        if evidence:
            for each in check.evidence:
                table.add_row("", "", Text(f"  {each}", style="dim"))
    return table


def _by_name(checks: Sequence[Check], apart: bool) -> Iterator[list[Check]]:
    """In the order of the themes; eight GPUs that are in order take one row, unless ``apart``."""
    found: dict[tuple[str, str, int], list[Check]] = {}
    for number, check in enumerate(checks):
        found.setdefault((check.theme, check.name, number if apart else 0), []).append(check)
    yield from sorted(found.values(), key=lambda same: list(THEMES).index(same[0].theme))


def _absent(checks: Sequence[Check]) -> Table:
    """Checks that are missing for one reason share a row."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(2):
        table.add_column(overflow="fold")
    by_reason: dict[str, list[str]] = {}
    for check in checks:
        by_reason.setdefault(check.told, []).append(check.name)
    for told, names in by_reason.items():
        table.add_row(
            Padding(Text(", ".join(dict.fromkeys(names))), (0, 0, 0, 2)), Text(told, style="dim")
        )
    return table


# The checks as one JSON document, for scripts, and the exit code that they come to.
#
# Guarantees: the keys below stay as they are within a ``version``; new keys may come.
#
# version 1 verdict the worst of all: "failure", "warning" or "ok" counts {"failure": n,
# "warning": n, "ok": n, "not here": n} checks [{"theme", "name", "verdict", "told", "evidence":
# [...], "fix": text or null}, ...]

VERSION = 1


def worst(checks: Sequence[Check]) -> str:
    """The worst verdict of all; what is not here is as good as in order."""
    there = {check.verdict for check in checks}
    return next((verdict for verdict in ("failure", "warning") if verdict in there), "ok")


def exit_code(checks: Sequence[Check]) -> int:
    """1 where anything failed, else 0: a warning stops no script."""
    return int(worst(checks) == "failure")


def as_json(checks: Sequence[Check]) -> str:
    """The document."""
    counts = Counter(check.verdict for check in checks)
    content = {
        "version": VERSION,
        "verdict": worst(checks),
        "counts": {verdict: counts[verdict] for verdict in VERDICTS},
        "checks": [asdict(check) for check in checks],
    }
    return json.dumps(content, indent=2) + "\n"


ALL: tuple[Inspection, ...] = (
    *VERSION_INSPECTIONS,
    *GPU_INSPECTIONS,
    *COMPUTING_INSPECTIONS,
    *HOST_INSPECTIONS,
    *DISK_INSPECTIONS,
    *CLUSTER_INSPECTIONS,
    *DEFECT_INSPECTIONS,
    *JOB_INSPECTIONS,
)


def doctor(
    job: str | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
    chain: str | Path | None = None,
    only: Collection[str] = (),
    data: str | Path | None = None,
    listen_s: float = 0.0,
    on_progress: Callable[[str], None] = lambda _: None,
) -> tuple[Check, ...]:
    """Looks at this machine, its cluster and a job before hours are spent on them.

    Takes half a minute: products and XLA programs run in processes of their own, each of which
    loads TensorFlow. Neither TensorFlow nor its devices are touched in this process.

    Args:
        job: "package.module:name" of a Job, or of a function that returns one. Its module is
            imported and some of its steps are trained, in a process of its own, without the
            job's callbacks.
        arguments: Of that function.
        chain: A recipe file whose chain is put on the job.
        only: Names of themes (``tfopt.doctor.check.THEMES``); none: all of them.
        data: The folder that the data is read from; None: the temporary folder.
        listen_s: In a cluster, for how long to answer the doctors of the other tasks, and to ask
            them for their clocks; they must run at the same time.
        on_progress: Is told the name of each check before it begins.
    """
    subject = _subject(job, arguments, chain, only, data, listen_s)
    chosen = [each for each in ALL if not only or each.theme in only]
    return tuple(examined(chosen, subject, on_progress))


def _subject(
    job: str | None,
    arguments: Mapping[str, Any] | None,
    chain: str | Path | None,
    only: Collection[str],
    data: str | Path | None,
    listen_s: float,
) -> Subject:
    for theme in only:
        if theme not in THEMES:
            raise UserError("There is no such theme.", expected=", ".join(THEMES), received=theme)
    if job is not None:
        _require_reference(job)
    elif arguments or chain is not None:
        raise UserError(
            "Arguments and a chain are for a job.",
            expected="a job",
            received="none",
            fix='name one: tfopt.doctor("my_package.train:job"), tfopt doctor --job ...',
        )
    elif "job" in only:
        raise UserError("No job is named.", expected="a job", fix="add --job my.train:job")
    if data is not None and not Path(data).expanduser().is_dir():
        raise UserError("The data's folder is not there.", expected="a folder", received=str(data))
    if chain is not None and not Path(chain).expanduser().is_file():
        raise UserError("The recipe file is not there.", expected="a file", received=str(chain))
    if not within(listen_s, 0, 3601):
        raise UserError(
            "listen_s is not a time to wait.",
            expected="seconds, from 0 to an hour",
            received=repr(listen_s),
        )
    return Subject(
        job=job,
        arguments=dict(arguments or {}),
        chain=None if chain is None else Path(chain).expanduser(),
        data=None if data is None else Path(data).expanduser(),
        listen_s=listen_s,
    )


def _require_reference(job: object) -> None:
    if not isinstance(job, str):
        raise UserError(
            "doctor() takes the name of a job, since it is looked at in a process of its own.",
            expected='"package.module:name"',
            received=type(job).__name__,
        )
    check_reference(job)


def examined(
    inspections: Collection[Inspection], subject: Subject, tell: Callable[[str], None]
) -> Iterator[Check]:
    """What each inspection finds, in their order."""
    for each in inspections:
        tell(f"{each.theme}: {each.name}")
        if each.limit_s is None:
            yield from _looked(each, subject)
        else:
            yield from _within(each, subject, each.limit_s)


def _looked(inspection: Inspection, subject: Subject) -> list[Check]:
    found: list[Check] = []
    try:
        # What was found before it broke is kept.
        found.extend(inspection.look(subject))
    except Exception as error:
        told = f"could not be looked at: {in_one_line(error)}"
        found.append(Check(inspection.theme, inspection.name, "warning", told))
    return found


def _within(inspection: Inspection, subject: Subject, limit_s: float) -> list[Check]:
    try:
        return within_limit(limit_s, lambda: _looked(inspection, subject))
    except TimeoutError as error:
        return [Check(inspection.theme, inspection.name, "warning", str(error))]
