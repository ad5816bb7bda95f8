"""Listen to an experiment or a search: what it does now, what it has found."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfopt.measure.rehearsal import Rehearsed
    from tfopt.report.block import Block
    from tfopt.report.training import Figures


class Watcher:
    """A listener that does nothing unless a method is replaced.

    Times left are in seconds, least and most.
    """

    def doing(self, what: str, variant: str, left_s: tuple[float, float] | None) -> None:
        """Handle the start of something that takes a while."""

    def rehearsed(self, found: Rehearsed) -> None:
        """Handle a variant that was tried for a moment."""

    def block_ended(self, variant: str, block: Block) -> None:
        """Handle a block that is there, and on disk."""

    def progress(self, epoch: int, epochs: int, step: int) -> None:
        """Handle where a whole training is."""

    def trained(self, variant: str, figures: Figures) -> None:
        """Handle a finished whole training."""

    def left_out(self, variant: str, reason: str) -> None:
        """Handle a variant that cannot be measured, or not any more."""

    def found(self, line: str) -> None:
        """Handle a finding of a search, in one line."""
