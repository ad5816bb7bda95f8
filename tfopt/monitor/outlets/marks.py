"""Bars and sparklines out of characters, for any encoding."""

from __future__ import annotations

from collections.abc import Sequence

_BLOCKS = " ▁▂▃▄▅▆▇█"
_ASCII = " .:-=+*#@"
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float | None, width: int, *, ascii_only: bool = False) -> str:
    """A bar of this width, full at 1; dots where it is not known."""
    if share is None:
        return "." * width if ascii_only else "·" * width
    share = min(max(share, 0.0), 1.0)
    if ascii_only:
        return ("#" * round(share * width)).ljust(width, "-")
    eighths = round(share * width * 8)
    whole = "█" * (eighths // 8) + (_EIGHTHS[eighths % 8] if eighths % 8 else "")
    return whole.ljust(width, "░")


def sparkline(values: Sequence[float | None], width: int, *, ascii_only: bool = False) -> str:
    """The last values, from 0 to 1, the newest at the right; a gap where one is not known."""
    steps = _ASCII if ascii_only else _BLOCKS
    drawn = (
        " " if each is None else steps[1 + min(max(round(each * 7), 0), 7)]
        for each in values[-width:]
    )
    return "".join(drawn).rjust(width)
