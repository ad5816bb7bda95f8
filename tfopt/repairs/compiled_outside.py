"""A model and what compiles it belong to one strategy; Keras does not look.

What is wrong: ``compile`` outside the scope that a model was built in makes the optimizer and the
metrics for one device, as does an optimizer that was made outside. Keras 3.15 on TensorFlow lets
it pass, and ``fit`` ends with "Mixing different tf.distribute.Strategy objects". Compiled inside
the scope, a model that was built outside it trains on one device.

The mend: ``compile`` enters the scope of its model. Guarantees: what was made elsewhere, the model,
its optimizer or a metric, is refused by name before anything is compiled; models of another
strategy, or of none, compiled outside, are not touched.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import wraps
from typing import Any

from tfopt.errors import UserError
from tfopt.repairs.under_strategies import UnderStrategies, throwaway_model

_mended = UnderStrategies()


def probe(strategy: Any) -> bool:
    """Whether a model that is compiled outside gets an optimizer of no strategy."""
    with strategy.scope():
        model = throwaway_model()
    model.compile("sgd", jit_compile=False)
    return model.optimizer._distribution_strategy is not strategy


def mend(strategy: Any) -> None:
    """Compiles models of this strategy in its scope."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    import tensorflow as tf
    from keras.src.trainers.trainer import Trainer

    plain = Trainer.compile
    signature = inspect.signature(plain)

    @wraps(plain)
    def compile(self: Any, *arguments: Any, **named: Any) -> Any:
        own: Any = getattr(self, "_distribute_strategy", None)
        here = tf.distribute.get_strategy()
        if own not in _mended:
            if here in _mended:
                raise _built_outside(self)
            return plain(self, *arguments, **named)
        given = signature.bind(self, *arguments, **named).arguments
        _require_of(own, self, given)
        with own.scope():
            return plain(self, *arguments, **named)

    Trainer.compile = compile


def _built_outside(model: Any) -> UserError:
    return UserError(
        f"compile() inside tfopt.distribute() of a model that was built outside: {model.name!r} "
        "would train on one device.",
        expected="a model whose weights were made inside the scope",
        received=f"{type(model).__name__} built before or behind it",
        fix="with tfopt.distribute(): model = build(), or keras.models.load_model(path), and then "
        "model.compile(...)",
    )


def _require_of(strategy: Any, model: Any, given: dict[str, Any]) -> None:
    """Refuses what has its variables elsewhere."""
    outside = [
        f"{argument}={type(each).__name__}(...)"
        for argument in ("optimizer", "metrics", "weighted_metrics")
        for each in _objects(given.get(argument))
        if _made_elsewhere(each, strategy)
    ]
    if outside:
        raise UserError(
            f"compile() of {model.name!r}, which was built inside tfopt.distribute(), with what "
            "was made outside.",
            expected="optimizers and metrics that are made inside the scope, as names or objects",
            received=", ".join(outside),
            fix="write model.compile(...) with its optimizer and metrics inside "
            "with tfopt.distribute():, where the model is built",
        )


def _objects(given: Any) -> Iterator[Any]:
    import keras

    for each in keras.tree.flatten(given):
        if isinstance(each, keras.optimizers.Optimizer | keras.metrics.Metric):
            yield each


def _made_elsewhere(each: Any, strategy: Any) -> bool:
    import keras
    import tensorflow as tf

    if isinstance(each, keras.optimizers.Optimizer):
        return each._distribution_strategy is not strategy
    return any(
        not isinstance(variable.value, tf.distribute.DistributedValues)
        for variable in each.variables
    )
