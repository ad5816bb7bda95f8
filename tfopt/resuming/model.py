"""The model of a training that is about to begin, made whole.

Guarantees: nothing is drawn from random state that training would not draw, and no batch is read; a
model of which that cannot be said is refused, with what to build.
"""

from __future__ import annotations

from typing import Any

from tfopt.errors import UserError


def build_all(model: Any, epoch_iterator: Any) -> None:
    """Makes every variable that training would make at its first step, from the data's shapes."""
    import keras

    try:
        model._symbolic_build(data_batch=epoch_iterator._distributed_dataset.element_spec)
    except Exception as error:
        raise UserError(
            f"{type(model).__name__} cannot be built from the shapes of its data: what it makes at "
            "its first step could not be put back.",
            expected="a model that is built before fit()",
            received=f"{type(error).__name__}: {error}".splitlines()[0],
            fix="call it on a batch first; with a train_step of its own and no call(), build its "
            "layers and set model.built = True",
        ) from error
    for name, value in vars(model).items():
        if isinstance(value, keras.optimizers.Optimizer) and not value.built:
            raise UserError(
                f"The optimizer {name} of {type(model).__name__} is not built: what it makes at "
                "its first step could not be put back.",
                expected="optimizers that are built before fit()",
                fix=f"model.{name}.build(the variables that it trains)",
            )
