"""Show in a terminal or a notebook what a long call does, how far it is, and what it found."""

from __future__ import annotations

import math
import time
from typing import Literal

from rich.console import Console
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

from tfopt.errors import UserError

Verbose = bool | Literal["auto", 0, 1, 2]
"""As in Keras's ``fit``: 0 shows nothing. How the rest is shown depends on where."""

_DRAWN_A_SECOND = 2
_SOON_S, _SILENT_S = 5.0, 30.0


def require_verbose(verbose: object) -> None:
    """Raise for what ``fit`` does not take either."""
    if verbose not in ("auto", 0, 1, 2):
        raise UserError("Invalid verbose.", expected='"auto", 0, 1 or 2', received=repr(verbose))


class Display(Progress):
    """A progress line for what runs, and a line for what is done; nothing unless ``verbose``.

    The line shows the seconds of the run so far, and its ``budget_s``. In a notebook both are one
    output that changes in place.
    """

    def __init__(self, *, verbose: Verbose = "auto", budget_s: float = math.inf) -> None:
        console = Console(quiet=not verbose)
        self._cell = _Cell() if verbose and console.is_jupyter else None
        self._run = _RunTime(budget_s)
        super().__init__(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            self._run,
            console=console,
            transient=True,
            refresh_per_second=_DRAWN_A_SECOND,
            disable=not verbose or self._cell is not None,
        )
        self._said = ""
        self._last_line = time.monotonic()
        self._line = self.add_task("", total=None)

    def doing(self, what: str) -> None:
        """Show what runs now."""
        if self._cell:
            self._cell.doing(f"{what}, {self._run} ...")
        elif what != self._said:
            self._said = what
            self.update(self._line, description=what.replace("[", r"\["))
            if not self.console.is_terminal:
                self.say(f"{what}, {self._run} ...")

    def waiting(self, what: str, for_s: float) -> None:
        """Show what is waited for, and how long; into a file a line every half minute."""
        line = f"{what}, {for_s:.0f} s so far"
        if for_s < _SOON_S:
            return
        if self._cell:
            self._cell.doing(f"{line} ...")
        elif self.console.is_terminal:
            self.update(self._line, description=line.replace("[", r"\["))
        elif time.monotonic() - self._last_line >= _SILENT_S:
            self.say(f"{line} ...")

    def say(self, line: str) -> None:
        """Print a line above what runs."""
        self._last_line = time.monotonic()
        if self._cell:
            self._cell.say(line)
        else:
            self.console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the progress line away."""
        super().stop()
        if self._cell:
            self._cell.doing(f"took {self._run.so_far_s:.0f} s")


class _Cell:
    """The output of a notebook's cell: what was found, and below it what runs now."""

    def __init__(self) -> None:
        from IPython.display import display

        self._found: list[str] = []
        self._shown = "starting ..."
        self._handle = display(_plain(self._shown), raw=True, display_id=True)

    def say(self, line: str) -> None:
        self._found.append(line)
        self.doing("")

    def doing(self, line: str) -> None:
        text = "\n".join(filter(None, [*self._found, line]))
        if text != self._shown:
            self._shown = text
            self._handle.update(_plain(text), raw=True)


def _plain(text: str) -> dict[str, str]:
    return {"text/plain": text}


class _RunTime(ProgressColumn):
    """The seconds of the whole run so far, and its budget: "40 of 135 s"."""

    def __init__(self, budget_s: float) -> None:
        super().__init__()
        self._budget_s = budget_s
        self._began = time.monotonic()

    @property
    def so_far_s(self) -> float:
        return time.monotonic() - self._began

    def __str__(self) -> str:
        budget = "" if self._budget_s == math.inf else f" of {self._budget_s:.0f}"
        return f"{self.so_far_s:.0f}{budget} s"

    def render(self, task: Task) -> Text:
        return Text(str(self), style="progress.elapsed")
