"""What is held on weights while they are trained: applied by hand, and never two things at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError

if TYPE_CHECKING:
    from tfopt.compression.kernels import Site


def hold(model: Any) -> None:
    """Applies the constraints of a model's weights, in place, as a Keras optimizer does itself.

    Call it once after each update that your own loop writes into the weights, inside the
    ``tf.function`` if there is one: masks and whatever else tfopt holds on the weights count
    that call as a step.
    """
    for variable in model.trainable_variables:
        if variable.constraint is not None:
            variable.assign(variable.constraint(variable))


def require_free(
    name: str, sites: Sequence[Site], then: str, *, replaced: type | None = None
) -> None:
    """Refuses a model on whose kernels tfopt holds something else than what will be replaced."""
    from tfopt.compression.held import Held

    for site in sites:
        held = site.constraint
        if isinstance(held, Held) and not (replaced and isinstance(held, replaced)):
            raise UserError(
                f"Something is held on {name!r} already.",
                expected="a model without masks or clusters",
                received=f"{type(held).__name__} on {site.path}",
                fix=f"call tfopt.strip(model) first: {then}",
            )
