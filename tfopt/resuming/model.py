"""The model of a training that is about to begin, made whole.

Guarantees: nothing is drawn from random state that training would not draw, and no batch is read; a
model of which that cannot be said is refused, with what to build, as is one whose first step makes
what was not there before.
"""

from __future__ import annotations

from typing import Any

from tfopt.errors import UserError
from tfopt.resuming.kept import kept_by
from tfopt.resuming.variables import Named, variables_of


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
    outer: list[tuple[Any, str]] = []
    for owner, where, optimizer in kept_by(model):
        if not isinstance(optimizer, keras.optimizers.Optimizer):
            continue
        # One inside another is built with that, or never used: see below.
        if any(owner is whose and where.startswith(f"{each}.") for whose, each in outer):
            continue
        outer.append((owner, where))
        if optimizer.built:
            continue
        # A model that was compiled on its own may be a layer, and never train by its optimizer:
        # ``require_all_there`` sees whether it does.
        if where == "optimizer" and owner is not model:
            continue
        whose = "model" if owner is model else f"model.get_layer({owner.name!r})"
        raise UserError(
            f"The optimizer {where} of {type(owner).__name__} is not built: what it makes at "
            "its first step could not be put back.",
            expected="optimizers that are built before fit()",
            fix=f"{whose}.{where}.build(the variables that it trains)",
        )


def require_all_there(model: Any, begun: list[Named]) -> None:
    """Refuses, behind the first step, what that one has made: it was not there to be put back."""
    more = made_since(model, begun)
    if more:
        raise UserError(
            f"The first step of {type(model).__name__} made {more}, which a training that goes on "
            "could not put back.",
            expected="every variable and optimizer there, and built, before fit()",
            fix="make them before fit(); for an optimizer, build(the variables that it trains)",
        )


def made_since(model: Any, begun: list[Named]) -> str:
    """The variables that were not there when the training began, in words; empty: none."""
    there = {id(each.variable) for each in begun}
    more = [each.name for each in variables_of(model) if id(each.variable) not in there]
    shown = ", ".join(more[:3])
    return shown + (f" and {len(more) - 3} more" if len(more) > 3 else "")
