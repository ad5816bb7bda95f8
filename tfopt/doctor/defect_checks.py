"""Look for known defects of the installed versions, and say which call of tfopt mends each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tfopt.doctor.check import Check, Subject
from tfopt.doctor.isolated import ask

_LIMIT_S = 300.0
_UNDER_STRATEGIES = "tfopt.distribute()"
# The defects that have nothing to do with strategies, by the call that mends them.
_CALLS = {
    "xla cpu max pool": "tfopt.execution(jit_compile=True)",
    "lost updates": "tfopt.train_asynchronously()",
}
_STATES = {True: "here", None: "only seen in a cluster", False: "gone"}


def find_defects(
    asked: Mapping[str, Any], at: Callable[[str], None]
) -> Iterator[Mapping[str, Any]]:
    """Yield the versions, then whether each defect is here; runs in another process."""
    at("importing TensorFlow")
    import keras
    import tensorflow as tf

    yield {"tensorflow": tf.__version__, "keras": keras.__version__}
    at("probing for defects")
    from tfopt.distribute.mends.repairs_roster import found_here

    for repair, here in found_here():
        yield {"module": repair.name, "here": here}


def defects(subject: Subject) -> Iterable[Check]:
    """Yield one check for each call of tfopt that mends something."""
    found = ask("defects", {}, _LIMIT_S)
    if found.ended is not None:
        text = f"could not be looked for: the process ended while at: {found.at}"
        yield Check("defects", "known defects", "warning", text, (found.ended,), "tfopt repairs")
        return
    versions, *answers = found.answers
    from tfopt.distribute.mends.repairs_roster import ELSEWHERE, REPAIRS

    here = {each["module"]: each["here"] for each in answers}
    by_call: dict[str, list[Any]] = {}
    for repair in (*REPAIRS, *ELSEWHERE):
        by_call.setdefault(_CALLS.get(repair.name, _UNDER_STRATEGIES), []).append(repair)
    for call, repairs in by_call.items():
        states = {repair: _STATES[here.get(repair.name)] for repair in repairs}
        counts = Counter(states.values())
        words = [f"{counts[s]} {s}" for s in _STATES.values() if counts[s] or s == "here"]
        evidence = [f"TensorFlow {versions['tensorflow']} and Keras {versions['keras']}"]
        for repair, state in states.items():
            link = f" ({repair.upstream})" if repair.upstream else ""
            evidence.append(f"{repair.name} ({state}): {repair.defect}{link}")
        name = call.removeprefix("tfopt.").partition("(")[0]
        text = f"known defects: {', '.join(words)}; mended inside {call} alone"
        yield Check("defects", name, "ok", text, tuple(evidence))
