"""Show on the terminal what a measurement does, what is left of it, and what it found."""

from __future__ import annotations

import time
from importlib.util import find_spec

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_DRAWN_A_SECOND = 2
_SOON_S, _SILENT_S = 5.0, 30.0


class Display(Progress):
    """A progress line for what runs, and a line for what is done; nothing unless ``verbose``.

    A notebook without ipywidgets, with which rich draws there, gets the lines alone.
    """

    def __init__(self, *, verbose: bool = True) -> None:
        console = Console(quiet=not verbose)
        is_drawn = not console.is_jupyter or find_spec("ipywidgets") is not None
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console,
            transient=True,
            refresh_per_second=_DRAWN_A_SECOND,
            disable=not (verbose and is_drawn),
        )
        self._said = ""
        self._last_line = time.monotonic()
        self._line = self.add_task("", total=None, left="")

    def doing(self, what: str, left_s: float | None = None) -> None:
        """Show what runs now, and the seconds it takes from here."""
        left = "" if left_s is None else f"{_duration(left_s)} left"
        if what != self._said:
            self._said = what
            self.reset(self._line, description=what.replace("[", r"\["), left=left)
            if not self.console.is_terminal:
                self.say(f"{what}{f', {left}' if left else ''} ...")
        else:
            self.update(self._line, left=left)

    def waiting(self, what: str, for_s: float) -> None:
        """Show what is waited for, and how long; into a file a line every half minute."""
        line = f"{what}, {for_s:.0f} s so far"
        if for_s < _SOON_S:
            return
        if self.console.is_terminal:
            self.update(self._line, description=line.replace("[", r"\["))
        elif time.monotonic() - self._last_line >= _SILENT_S:
            self.say(f"{line} ...")

    def say(self, line: str) -> None:
        """Print a line above what runs."""
        self._last_line = time.monotonic()
        self.console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
