"""What a variant costs or gains in the metric, over several seeds."""

from __future__ import annotations

from dataclasses import dataclass

from tfopt.report.strict import ReportError, require_number


@dataclass(frozen=True)
class Quality:
    """The final metric of whole trainings of a variant and of the reference, seed by seed.

    Attributes:
        metric: Its name; a share where larger is better.
        seeds: One training each, of both, with the same seed, data and number of examples.
        points: The mean difference, in hundredths.
        low: Of its 95 % interval; so is ``high``.
        tolerance_points: A loss up to here counts as none.
    """

    metric: str
    seeds: tuple[int, ...]
    reference: tuple[float, ...]
    variant: tuple[float, ...]
    points: float
    low: float
    high: float
    tolerance_points: float

    def __post_init__(self) -> None:
        for name in ("reference", "variant"):
            values = getattr(self, name)
            if len(values) != len(self.seeds):
                expected = f"{len(self.seeds)} values, one a seed"
                raise ReportError(name, expected=expected, received=f"{len(values)}")
            for number, value in enumerate(values):
                require_number(f"{name}[{number}]", value)
        for name in ("points", "low", "high"):
            require_number(name, getattr(self, name))
        require_number("tolerance_points", self.tolerance_points, least=0)

    @property
    def lost(self) -> bool:
        """Whether the variant loses more than is tolerated."""
        return self.points < -self.tolerance_points

    @property
    def certain(self) -> bool:
        """Whether the interval as a whole says the same: few seeds often leave it open."""
        limit = -self.tolerance_points
        return self.high < limit if self.lost else self.low >= limit
