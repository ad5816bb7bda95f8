"""What a call of ``tfopt.prune`` asks for, checked, and how it is put on a model's kernels.

Guarantees: a plan is a frozen value; arguments that no model could satisfy are refused while it is
made. Nothing here imports TensorFlow before masks are attached.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tfopt.compression.held.kernels import Site
from tfopt.compression.masks.allocation import Allocation, Sparsity, allocate
from tfopt.compression.masks.criteria import MAGNITUDE, Criterion, as_criterion
from tfopt.compression.masks.patterns import UNSTRUCTURED, Pattern, as_pattern
from tfopt.errors import UserError
from tfopt.job import require_count

Across = Literal["layer", "model"]


@dataclass(frozen=True)
class Plan:
    """What a user asked for, checked."""

    allocation: Allocation
    pattern: Pattern
    criterion: Criterion
    across: Across
    step: int

    def attach(self, sites: list[Site]) -> None:
        """Puts masks on the sites, in force from the next step on."""
        from tfopt.compression.masks.shared_choice import SharedChoice

        whole = self.allocation.everywhere
        shared = SharedChoice(whole) if whole is not None and self.across == "model" else None
        for site in sites:
            self._attach(site, shared)
        if shared is not None:
            shared.begin(self.step + 1)

    def _attach(self, site: Site, shared: Any) -> None:
        from tfopt.compression.masks.weight_mask import WeightMask

        schedule = self.allocation.of(site.path)
        assert schedule is not None
        mask = WeightMask(
            schedule,
            inner=_own_constraint(site),
            step=self.step + 1,
            pattern=self.pattern,
            criterion=self.criterion.for_site(site.path),
            inputs={kernel.name: kernel.inputs for kernel in site.kernels},
            shared=shared,
        )
        for kernel in site.kernels:
            mask.bind(kernel.variable)
        site.hold(mask)

    def for_tfmot(self) -> Any:
        """The one schedule that tfmot's wrappers can follow."""
        schedule = self.allocation.everywhere
        if schedule is None or (self.criterion, self.across, self.step) != (MAGNITUDE, "layer", 0):
            raise UserError(
                "tfmot, which prunes tf_keras models, cannot do this.",
                expected='one sparsity for all layers, criterion="magnitude", across="layer", '
                "step=0",
                received=f"criterion={self.criterion!r}, across={self.across!r}, "
                f"step={self.step}, {len(self.allocation.schedules)} schedules",
                fix="use a Keras 3 model, made with `import keras`",
            )
        return schedule


def plan_of(sparsity: Sparsity, pattern: Any, criterion: Any, across: Any, step: Any) -> Plan:
    """Reads and checks the arguments of ``tfopt.prune``."""
    pattern, criterion = as_pattern(pattern), as_criterion(criterion)
    allocation = allocate(sparsity, pattern)
    step = require_count("step", step, minimum=0)
    for schedule in allocation.schedules:
        criterion.require_fits(schedule)
    require_across(across, pattern)
    if across == "model" and allocation.everywhere is None:
        raise UserError(
            "Weights that are ranked across the model have one sparsity.",
            expected='one sparsity or schedule, or across="layer"',
            received=f"sparsity={sparsity!r}",
        )
    return Plan(allocation, pattern, criterion, across, step)


def require_across(across: object, pattern: Pattern) -> None:
    """Refuses what cannot be ranked together."""
    if across not in ("layer", "model"):
        raise UserError(
            "across says what is ranked together.",
            expected='"layer" or "model"',
            received=repr(across),
        )
    if across == "model" and pattern != UNSTRUCTURED:
        raise UserError(
            "Weights are ranked across the model one by one only.",
            expected='pattern="unstructured" with across="model"',
            received=f"pattern={pattern!r}",
        )


def mask_of(site: Site) -> Any:
    """The mask that a site holds; None if it has none."""
    from tfopt.compression.masks.weight_mask import WeightMask

    return site.constraint if isinstance(site.constraint, WeightMask) else None


def _own_constraint(site: Site) -> Any:
    """The user's constraint, with or without a mask in front of it."""
    mask = mask_of(site)
    return site.constraint if mask is None else mask.inner
