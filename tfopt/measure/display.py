"""Show on the terminal what a measurement does, how far it is, and what it found."""

from __future__ import annotations

import math
import time
from importlib.util import find_spec

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

_DRAWN_A_SECOND = 2
_SOON_S, _SILENT_S = 5.0, 30.0


class Display(Progress):
    """A progress line for what runs, and a line for what is done; nothing unless ``verbose``.

    The line shows the seconds of the run so far, and its ``budget_s``. A notebook without
    ipywidgets, with which rich draws there, gets the lines alone.
    """

    def __init__(self, *, verbose: bool = True, budget_s: float = math.inf) -> None:
        console = Console(quiet=not verbose)
        is_drawn = not console.is_jupyter or find_spec("ipywidgets") is not None
        self._run = _RunTime(budget_s)
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            self._run,
            console=console,
            transient=True,
            refresh_per_second=_DRAWN_A_SECOND,
            disable=not (verbose and is_drawn),
        )
        self._said = ""
        self._last_line = time.monotonic()
        self._line = self.add_task("", total=None)

    def doing(self, what: str) -> None:
        """Show what runs now."""
        if what != self._said:
            self._said = what
            self.update(self._line, description=what.replace("[", r"\["))
            if not self.console.is_terminal:
                self.say(f"{what}, {self._run} ...")

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


class _RunTime(ProgressColumn):
    """The seconds of the whole run so far, and its budget: "40 of 135 s"."""

    def __init__(self, budget_s: float) -> None:
        super().__init__()
        self._budget_s = budget_s
        self._began = time.monotonic()

    def __str__(self) -> str:
        so_far_s = time.monotonic() - self._began
        budget = "" if self._budget_s == math.inf else f" of {self._budget_s:.0f}"
        return f"{so_far_s:.0f}{budget} s"

    def render(self, task: Task) -> Text:
        return Text(str(self), style="progress.elapsed")
