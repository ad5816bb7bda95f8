"""A step's work and time under the machine's ceilings.

Guarantees: a pure calculation; a speed above a roof stays as it is and is explained, not cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfopt.report.bench.roofline import Ceilings, Roofline

if TYPE_CHECKING:
    from tfopt.bench.cost import StepCost

_GIB_PER_GB = 1e9 / 1024**3


def roofline(
    cost: StepCost, step_ms: float, ceilings: Ceilings, basis: str, notes: Sequence[str] = ()
) -> Roofline:
    """Where the step stands.

    Args:
        cost: Of one step on one replica, that is on one device.
        step_ms: Time of the step; ``basis`` says which.
        ceilings: Of that device, in the dtype of ``cost``.
        basis: Such as "resident step less the host's part".
        notes: What else is to be said, such as what the ceilings were measured under.
    """
    achieved = cost.gflop_per_step / step_ms * 1000
    intensity = cost.gflop_per_step / cost.gib_per_step * _GIB_PER_GB
    under_memory = intensity * ceilings.copy_gib_per_s / _GIB_PER_GB
    memory_binds = under_memory < ceilings.gflops
    roof_gflops = min(under_memory, ceilings.gflops)
    told = [cost.note, *notes]
    if cost.dtype != ceilings.dtype:
        told.append(f"the products are in {cost.dtype}, the ceiling is that of {ceilings.dtype}")
    if achieved > ceilings.gflops:
        told.append(
            "faster than the largest product measured: a busy machine while the ceilings were "
            "measured, or operations counted that XLA or TensorFlow had no need to run"
        )
    elif achieved > roof_gflops:
        told.append("faster than memory alone allows: caches and fused operations save traffic")
    return Roofline(
        gflop_per_step=cost.gflop_per_step,
        gib_per_step=cost.gib_per_step,
        source=cost.source,
        gflops=achieved,
        utilisation=achieved / ceilings.gflops,
        intensity=intensity,
        roof="memory" if memory_binds else "compute",
        roof_gflops=roof_gflops,
        basis=basis,
        ceilings=ceilings,
        note="; ".join(part for part in told if part),
    )
