"""What is held on weights while they are trained: applied by hand, and never two things at once.

Guarantees: what is put on several kernels is on all of them, or on none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.errors import UserError
from tfopt.job.rebuild import require_keras3
from tfopt.report.format import left_alone, table

if TYPE_CHECKING:
    from tfopt.compress.kernels import Site

# How sparse a model's kernels are: the rows of a pruning report, as data.
#
# Guarantees: counts are read off the weights themselves, never derived from a target.

# A trained kernel has no zeros but those that something has put there.
ZEROS_MEANT = 0.1


@dataclass(frozen=True)
class LayerSparsity:
    """One kernel (or one layer left alone) of a model.

    Attributes:
        path: Names from the model down to the kernel.
        weights: How many weights it has.
        zeros: How many of them are zero now.
        target: The sparsity its schedule ends at; None: it has no mask.
        remark: Why it has no mask, or what to know about the one it has.
    """

    path: str
    weights: int
    zeros: int
    target: float | None
    remark: str | None

    @property
    def sparsity(self) -> float | None:
        """The fraction of zeros; None without weights."""
        return self.zeros / self.weights if self.weights else None


class SparsityReport(tuple[LayerSparsity, ...]):
    """The rows of a model, as a tuple that prints as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        masked = [row for row in self if row.target is not None]
        rows = [_cells(row) for row in masked]
        zeros, weights = sum(row.zeros for row in masked), sum(row.weights for row in masked)
        if len(masked) > 1:
            rows.append(("together", f"{weights:,}", f"{zeros / weights:.1%}", "", ""))
        left = [(row.path, row.remark or "") for row in self if row.target is None]
        return "\n".join([*table(("", "weights", "zeros", "target", ""), rows), *left_alone(left)])


def _cells(row: LayerSparsity) -> tuple[str, ...]:
    zeros, target = f"{row.sparsity or 0:.1%}", f"{row.target or 0:.1%}"
    return (row.path, f"{row.weights:,}", zeros, target, row.remark or "")


def count_zeros(*variables: Any) -> tuple[int, int]:
    """How many weights the variables have, and how many of them are zero."""
    import numpy as np

    values = [np.asarray(variable.numpy()) for variable in variables]
    weights = sum(value.size for value in values)
    return weights, weights - sum(int(np.count_nonzero(value)) for value in values)


def hold(model: Any) -> None:
    """Applies the constraints of a model's weights, in place, as a Keras optimizer does itself.

    Call it once after each update that your own loop writes into the weights, inside the
    ``tf.function`` if there is one: masks and whatever else tfopt holds on the weights count
    that call as a step. A ``tf.function`` that was traced before something was held on the model
    must be made anew, as Keras's own steps are.
    """
    import tensorflow as tf

    require_keras3(model)
    # As in Keras's own step: constraints are not rewritten by AutoGraph.
    tf.autograph.experimental.do_not_convert(_hold)(model)


def _hold(model: Any) -> None:
    for variable in model.trainable_variables:
        if variable.constraint is not None:
            variable.assign(variable.constraint(variable))


def settle(model: Any, kind: type | None = None) -> list[str]:
    """Makes what masks and clusters hold final in the weights, and leaves it held.

    Other weights may have been put in place since the last step, by a callback or an average: the
    paths of the kernels that change by this.
    """
    changed = []
    for site in _held_sites(model, kind):
        for kernel in site.kernels:
            before = kernel.variable.numpy()
            site.constraint.settle(kernel.variable)
            if not np.array_equal(kernel.variable.numpy(), before, equal_nan=True):
                changed.append(kernel.path)
    return changed


def unheld_zeros(model: Any) -> dict[str, float]:
    """The share of zeros of each kernel that has many, all of which a training may fill."""
    from tfopt.compress.constraints import Held
    from tfopt.compress.kernels import Site, find_kernels

    sites = [each for each in find_kernels(model) if isinstance(each, Site)]
    free = [each for each in sites if not (each.obstacle() or isinstance(each.constraint, Held))]
    found = {}
    for kernel in (kernel for site in free for kernel in site.kernels):
        weights, zeros = count_zeros(kernel.variable)
        # One of zeros alone was initialised so.
        if ZEROS_MEANT * weights <= zeros < weights:
            found[kernel.path] = zeros / weights
    return found


def let_go(model: Any, kind: type) -> bool:
    """Makes what one kind of constraint holds final and takes it off; whether there was any."""
    from tfopt.compress.saved_class import save_what_is_held

    held = _held_sites(model, kind)
    settle(model, kind)
    for site in held:
        site.hold(site.constraint.inner)
    save_what_is_held(model)
    return bool(held)


def _held_sites(model: Any, kind: type | None) -> list[Site]:
    from tfopt.compress.constraints import Held
    from tfopt.compress.kernels import Site, find_kernels

    found = [each for each in find_kernels(model) if isinstance(each, Site)]
    return [site for site in found if isinstance(site.constraint, kind or Held)]


@contextmanager
def all_or_nothing(sites: Sequence[Site]) -> Iterator[None]:
    """Where its block is not finished, the sites have the values and constraints of before.

    A model of which half is held, after Ctrl-C or an error of a constraint of the user's own, would
    be trained as if it were whole.
    """
    holders = [
        (owner, name, getattr(owner, name)) for each in sites for owner, name in each.holders
    ]
    variables = [kernel.variable for site in sites for kernel in site.kernels]
    before = [(variable.constraint, variable.numpy()) for variable in variables]
    try:
        yield
    except BaseException:
        for owner, name, constraint in holders:
            setattr(owner, name, constraint)
        for variable, (constraint, values) in zip(variables, before, strict=True):
            variable.constraint = constraint
            variable.assign(values)
        raise


def require_free(
    name: str, sites: Sequence[Site], then: str, *, replaced: type | None = None
) -> None:
    """Refuses a model on whose kernels tfopt holds something else than what will be replaced."""
    from tfopt.compress.constraints import Held

    for site in sites:
        held = site.constraint
        if isinstance(held, Held) and not (replaced and isinstance(held, replaced)):
            raise UserError(
                f"Something is held on {name!r} already.",
                expected="a model without masks or clusters",
                received=f"{type(held).__name__} on {site.path}",
                fix=f"call tfopt.strip(model) first: {then}",
            )
