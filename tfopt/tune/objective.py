"""What a search minimizes."""

from __future__ import annotations

from collections.abc import Mapping

from tfopt.report import format as fmt
from tfopt.report.bench_report import Objective, is_time
from tfopt.report.statistics import SAME_WITHIN, Verdict

OBJECTIVES: Mapping[Objective, str] = {
    "training": "the predicted time of the whole training",
    "step": "the time of an example",
    "memory": "the peak memory",
    "energy": "the energy of an example",
    "time-to-accuracy": "the predicted time of the whole training",
}


def in_words(objective: Objective, ratio: float) -> str:
    """Return what one process took, as a share of another's: about 1.61 times as fast."""
    if max(ratio, 1 / ratio) <= 1 + SAME_WITHIN:
        return "within 2 %: no clear difference"
    if not is_time(objective):
        return f"about {fmt.quantity(ratio)} times the {objective}"
    if ratio < 1:
        return f"about {fmt.quantity(1 / ratio)} times as fast"
    return f"predicted to take {fmt.quantity(ratio)} times as long"


def verdict_in_words(objective: Objective, verdict: Verdict) -> str:
    """Return a verdict on what is minimized: slower, or more memory."""
    words = {"faster": f"less {objective}", "slower": f"more {objective}"}
    return verdict if is_time(objective) else words.get(verdict, verdict)
