"""Show on the terminal what a measurement does, what is left of it, and what it found."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

_DRAWN_A_SECOND = 2


class Display:
    """A progress line for what runs, and a line for what is done; nothing unless ``verbose``."""

    def __init__(self, *, verbose: bool = True) -> None:
        self._console = Console(quiet=not verbose)
        self._said = ""
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            refresh_per_second=_DRAWN_A_SECOND,
            disable=not verbose,
        )
        self._task = self._progress.add_task("", total=None, left="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def doing(self, what: str, left_s: float | None = None) -> None:
        """Show what runs now, and the seconds it takes from here."""
        left = "" if left_s is None else f"{_duration(left_s)} left"
        if what != self._said:
            self._said = what
            self._progress.reset(self._task, description=what.replace("[", r"\["), left=left)
            if not self._console.is_terminal:
                self.say(f"{what}{f', {left}' if left else ''} ...")
        else:
            self._progress.update(self._task, left=left)

    def say(self, line: str) -> None:
        """Print a line above what runs."""
        self._console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
