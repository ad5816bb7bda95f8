"""Known defects of the installed versions, and which call of tfopt mends each.

Guarantees: each is looked for by its own probe, in a process of its own; nothing is mended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfopt.diagnosis.check import Check, Inspection, Subject
from tfopt.diagnosis.process import ask

_LIMIT_S = 300.0
_UNDER_STRATEGIES = "tfopt.distribute()"
# Those that are not of a strategy, by the call that puts them on.
_CALLS = {
    "xla_cpu_max_pool": "tfopt.execution(jit_compile=True)",
    "lost_updates": "tfopt.train_asynchronously()",
}


def look_for(asked: Mapping[str, Any], at: Any) -> Iterator[Mapping[str, Any]]:
    """In the process: each repair, and whether it is needed."""
    at("importing TensorFlow")
    import keras
    import tensorflow as tf

    yield {"tensorflow": tf.__version__, "keras": keras.__version__}
    at("probing for defects")
    from tfopt.repairs.roster import found_here

    for repair, here in found_here():
        yield {"module": repair.module, "here": here, "processes": repair.several_processes_only}


def defects(subject: Subject) -> Iterable[Check]:
    """One check for each call of tfopt that mends something."""
    found = ask("defects", {}, _LIMIT_S)
    if found.ended is not None:
        told = f"could not be looked for: the process ended while at: {found.at}"
        yield Check("defects", "known defects", "warning", told, (found.ended,), "tfopt repairs")
        return
    versions, *answers = found.answers
    here = f"TensorFlow {versions['tensorflow']} and Keras {versions['keras']}"
    yield from judge(here, answers)


def judge(versions: str, answers: Iterable[Mapping[str, Any]]) -> Iterator[Check]:
    """The checks that the answers come to: none is a failure, since each is mended."""
    from tfopt.repairs.roster import ELSEWHERE, REPAIRS

    told_by = {each["module"]: each["here"] for each in answers}
    by_call: dict[str, list[tuple[Any, bool | None]]] = {}
    for repair in (*REPAIRS, *ELSEWHERE):
        call = _CALLS.get(repair.module, _UNDER_STRATEGIES)
        by_call.setdefault(call, []).append((repair, told_by.get(repair.module)))
    for call, repairs in by_call.items():
        there = [repair for repair, here in repairs if here]
        unknown = [repair for repair, here in repairs if here is None]
        words = [f"{len(there)} here"]
        words += [f"{len(unknown)} only seen in a cluster"] if unknown else []
        gone = len(repairs) - len(there) - len(unknown)
        words += [f"{gone} gone"] if gone else []
        state = {True: "here", False: "gone", None: "only seen in a cluster"}
        evidence = (
            versions,
            *(f"{r.name} ({state[here]}): {r.defect}" + _link(r) for r, here in repairs),
        )
        name = call.removeprefix("tfopt.").partition("(")[0]
        told = f"known defects: {', '.join(words)}; mended inside {call} alone"
        yield Check("defects", name, "ok", told, evidence)


def _link(repair: Any) -> str:
    return f" ({repair.upstream})" if repair.upstream else ""


INSPECTIONS = (Inspection("defects", "known defects", defects, limit_s=None),)
