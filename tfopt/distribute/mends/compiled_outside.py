"""A model and what compiles it belong to one strategy; Keras does not look.

What is wrong: ``compile`` outside the scope that a model was built in makes the optimizer and the
metrics for one device, as does an optimizer that was made outside. Keras 3.15 on TensorFlow lets
it pass, and ``fit`` ends with "Mixing different tf.distribute.Strategy objects". Compiled inside
the scope, a model that was built outside it trains on one device. A model that is put together
outside of parts from inside, such as a Distiller, ends in "tuple indices must be integers", and one
with a part from outside in "colocate_vars_with".

The mend: ``compile`` enters the scope of its model, which is the one that the weights of its parts
were made in. Guarantees: what was made elsewhere, the model, its optimizer or a metric, is refused
by name before anything is compiled, and weights that an optimizer of elsewhere would train before
it makes its variables; models of another strategy, or of none, trained outside, are not touched.
What is only read, as a frozen part, may come from outside.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import wraps
from typing import Any

from tfopt.distribute.mends.under_strategies import UnderStrategies, throwaway_model
from tfopt.errors import UserError

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
    import keras
    import tensorflow as tf
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from keras.src.trainers.trainer import Trainer

    plain = Trainer.compile
    signature = inspect.signature(plain)

    @wraps(plain)
    def compile(self: Any, *arguments: Any, **named: Any) -> Any:
        own: Any = getattr(self, "_distribute_strategy", None)
        here = tf.distribute.get_strategy()
        if own not in _mended:
            if here in _mended:
                raise _built_outside(self, "compile()")
            own = _of_parts(self) if own is None else None
            if own is None:
                return plain(self, *arguments, **named)
            _require_own_metrics_of(own, self)
            self._distribute_strategy = own
        given = signature.bind(self, *arguments, **named).arguments
        _require_of(own, self, given)
        with own.scope():
            return plain(self, *arguments, **named)

    Trainer.compile = compile

    built = TensorFlowTrainer._maybe_symbolic_build

    @wraps(built)
    def _maybe_symbolic_build(self: Any, *arguments: Any, **named: Any) -> Any:
        if self._distribute_strategy is None and tf.distribute.get_strategy() in _mended:
            raise _built_outside(self, "fit() or evaluate()")
        return built(self, *arguments, **named)

    TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build

    with_variables = keras.optimizers.Optimizer.build

    @wraps(with_variables)
    def build(self: Any, variables: Any) -> Any:
        _require_trained_of(self, variables)
        return with_variables(self, variables)

    keras.optimizers.Optimizer.build = build


def _of_parts(model: Any) -> Any:
    """The one of our strategies that weights of this model were made under; None: of none."""
    found = (_strategy_of(variable) for variable in model.variables)
    return next((each for each in found if each in _mended), None)


def _strategy_of(variable: Any) -> Any:
    # Not .value, which is a tensor where it is cast.
    return getattr(getattr(variable, "_value", variable), "distribute_strategy", None)


def _require_trained_of(optimizer: Any, variables: Any) -> None:
    """Refuses weights that were made on another side than the optimizer that is to train them."""
    own = optimizer._distribution_strategy
    ours = own in _mended
    outside = [each for each in variables if (_strategy_of(each) in _mended) is not ours]
    if outside:
        names = ", ".join(str(getattr(each, "path", each.name)) for each in outside[:5])
        more = f" and {len(outside) - 5} more" if len(outside) > 5 else ""
        raise UserError(
            f"{type(optimizer).__name__} was made {_side(ours)} tfopt.distribute(), and weights "
            f"that it would train {_side(not ours)}.",
            expected="the model with all parts that are trained, and its optimizer, made inside "
            "with tfopt.distribute():",
            received=f"{names}{more}, made {_side(not ours)}",
            fix="build or load these parts, and compile, inside the scope; a part that is only "
            "read (a teacher, a frozen base) may come from outside: part.trainable = False",
        )


def _side(inside: bool) -> str:
    return "inside" if inside else "outside"


def _require_own_metrics_of(strategy: Any, model: Any) -> None:
    """Refuses a model from outside, of parts from inside, that tracks metrics of its own."""
    layers = model._flatten_layers()
    metrics = [metric for layer in layers for metric in getattr(layer, "_metrics", ())]
    outside = [each.name for each in metrics if _made_elsewhere(each, strategy)]
    if outside:
        raise UserError(
            f"{model.name!r} was made outside tfopt.distribute(), of parts from inside, and so "
            "were metrics that it keeps.",
            expected="metrics of the replicas",
            received=f"{type(model).__name__} with {', '.join(outside)}",
            fix="make it inside: with tfopt.distribute(): model = "
            f"{type(model).__name__}(...), and then model.compile(...)",
        )


def _built_outside(model: Any, call: str) -> UserError:
    return UserError(
        f"{call} inside tfopt.distribute() of a model that was built outside: {model.name!r} "
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
            f"compile() of {model.name!r}, which trains under tfopt.distribute(), with what was "
            "made outside.",
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
