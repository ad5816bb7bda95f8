"""The model on the parameter servers and its local copy, made whole before a step is traced.

Guarantees: both have the same variables, among them the slots of every optimizer that a step
applies, also of those that Keras would make in the first step. Nothing is computed, and no example
is read. What cannot be made before the first step is refused.
"""

from __future__ import annotations

from typing import Any

from tfopt.asynchronous.optimizers import optimizers_of
from tfopt.errors import UserError


def build_all(local: Any, remote: Any, strategy: Any, element_spec: Any) -> None:
    """Makes all variables of both models, those of ``remote`` in the strategy's scope."""
    _build_layers(local, element_spec)
    with strategy.scope():
        _build_layers(remote, element_spec)
    late = [name for name, each in optimizers_of(local).items() if not each.built]
    if late:
        _trace(local, element_spec)
        _require_nothing_more(local, remote)
        with strategy.scope():
            _build_optimizers(late, local, remote)


def _build_layers(model: Any, element_spec: Any) -> None:
    """As ``fit`` does before its first step; a model that has a train_step alone is not called."""
    import keras

    if type(model).call is keras.Model.call:
        return
    try:
        model._symbolic_build(data_batch=element_spec)
    except Exception as error:
        raise UserError(
            f"{type(model).__name__} cannot be built from the shapes of its data.",
            expected="a model whose variables can be made before its first step",
            received=f"{type(error).__name__}: {error}",
            fix="mend what Keras says, or call the model on a batch in build()",
        ) from error


def _trace(local: Any, element_spec: Any) -> None:
    """Has Keras make in the copy what it makes in the first step, without computing one."""
    import tensorflow as tf

    tf.function(local.train_step, autograph=False).get_concrete_function(element_spec)


def _require_nothing_more(local: Any, remote: Any) -> None:
    """Workers would each make what is not there when their step is traced."""
    for what in ("variables", "metrics_variables"):
        here, there = getattr(local, what), getattr(remote, what)
        if len(here) != len(there):
            more = ", ".join(each.path for each in here[:10])
            raise UserError(
                f"{type(local).__name__} makes variables in its first step.",
                expected="a model whose variables can be made before its first step",
                received=f"{len(there)} of {len(here)} are there before it; all are {more}",
                fix="begin its parts with keras.Input(shape), or call each on a batch in build()",
            )


def _build_optimizers(late: list[str], local: Any, remote: Any) -> None:
    """Each for the variables that a step gives to it; one that no step applies stays as it is."""
    here, there = optimizers_of(local), optimizers_of(remote)
    place_of = {id(variable): place for place, variable in enumerate(local.variables)}
    for name in late:
        # What is inside another is built with that.
        if not here[name].built or there[name].built:
            continue
        places = [place_of.get(id(each)) for each in here[name]._trainable_variables]
        if None in places:
            raise UserError(
                f"The optimizer {name} of {type(local).__name__} trains variables that are not "
                "the model's.",
                expected="variables of the model's layers",
                fix=f"in build(), model.{name}.build(the variables that it trains)",
            )
        there[name].build([remote.variables[place] for place in places if place is not None])
