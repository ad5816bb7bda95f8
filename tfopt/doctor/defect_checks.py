"""Look for the known defects of the installed versions that tfopt mends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfopt.doctor.check import Check, Subject
from tfopt.doctor.isolated import ask

_LIMIT_S = 300.0


def find_defects(asked: Mapping[str, Any]) -> Iterator[str | Mapping[str, Any]]:
    """Yield the stage, and whether each defect is here; runs in another process."""
    yield "probing for defects"
    from tfopt.distribute.mends.repairs_roster import found_here

    for repair, here in found_here():
        yield {"told": f"{repair.name}: {repair.defect}", "here": here}


def defects(subject: Subject) -> Iterable[Check]:
    """Count the defects of the installed versions, and name them."""
    found = ask(find_defects, {}, _LIMIT_S)
    if found.ended is not None:
        text = f"could not be looked for: the process ended while at: {found.at}"
        yield Check("defects", "known defects", "warning", text, (found.ended,))
        return
    here = tuple(each["told"] for each in found.answers if each["here"])
    text = f"{len(here)} of {len(found.answers)} are here, mended inside tfopt's own calls alone"
    yield Check("defects", "known defects", "ok", text, here)
