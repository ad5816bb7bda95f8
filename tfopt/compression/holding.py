"""One call a step for training loops whose updates do not come from a Keras optimizer."""

from __future__ import annotations

from typing import Any


def hold(model: Any) -> None:
    """Applies the constraints of a model's weights, in place, as a Keras optimizer does itself.

    Call it once after each update that your own loop writes into the weights, inside the
    ``tf.function`` if there is one: masks and whatever else tfopt holds on the weights count
    that call as a step.
    """
    for variable in model.trainable_variables:
        if variable.constraint is not None:
            variable.assign(variable.constraint(variable))
