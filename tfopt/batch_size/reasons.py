"""Why sizes failed, for people: a line for each reason, of which the attempts keep the whole text.

Guarantees: a reason is one line of at most 400 characters; sizes that failed by the same reason,
but for its numbers, are told together.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfopt.batch_size.found import Tried

_MOST = 400
_HOW = {
    "error": " by an error, not for want of memory",
    "crash": " by a crash that tells nothing of memory",
}
# The way to an operation, as TensorFlow tells it, and the operation's name in the graph.
_FRAME = re.compile(r'^ *File "(?P<path>[^"]*)", line (?P<line>\d+), in (?P<name>.*)$')
_HEADINGS = re.compile(
    r"Graph execution error:|Detected at node .*|.*defined at \(most recent call last\):"
    r"|Stack trace for op definition:"
)
_IN_THE_GRAPH = re.compile(r"\[\[\{\{node [^]]*\]\]|\[Op:[^]]*\]")
_LIBRARY = {
    Path(__file__).resolve().parents[1],
    *(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")),
}
_NUMBER = re.compile(r"\d[\d,.]*")


def failures(tried: Iterable[Tried]) -> list[str]:
    """A sentence for each reason, with the sizes that failed by it."""
    alike: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for each in tried:
        if not each.passed:
            reason = in_one_line(each.reason).rstrip(".")
            alike.setdefault((each.kind, _NUMBER.sub("", reason)), []).append((each.batch, reason))
    return [_sentence(kind, failed) for (kind, _), failed in alike.items()]


def _sentence(kind: str, failed: list[tuple[int, str]]) -> str:
    sizes = [f"{batch:,}" for batch, _ in failed]
    reasons = [reason for _, reason in failed]
    who = f"{', '.join(sizes[:-1])} and {sizes[-1]} fail" if len(sizes) > 1 else f"{sizes[0]} fails"
    differ = f"; of {sizes[0]}" if len(set(reasons)) > 1 else ""
    return f"{who}{_HOW.get(kind, '')}{differ}: {reasons[0]}."


def in_one_line(reason: str | None) -> str:
    """Without TensorFlow's way to the operation, but for its last place in somebody's own code."""
    told, place, in_frame = [], "", False
    for line in (reason or "no reason was told").splitlines():
        frame = _FRAME.match(line)
        # Under a frame its line of code may stand, further in.
        in_frame = frame is not None or (in_frame and line.startswith("    "))
        if frame is not None:
            place = _own(frame) or place
        elif not in_frame:
            told.append(_HEADINGS.sub("", line))
    words = " ".join(_IN_THE_GRAPH.sub("", " ".join(told)).split())
    if place and place not in words:
        words = f"{_cut(words, _MOST - len(place) - 1)} {place}"
    return _cut(words, _MOST)


def _own(frame: re.Match[str]) -> str:
    path = Path(frame["path"])
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    if installed or not path.is_absolute() or _LIBRARY & set(path.parents):
        return ""
    return f"({path.name}, line {frame['line']}, in {frame['name']})"


def _cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 3] + "..."
