"""Under a strategy Keras cannot train a model that has no ``call``, or one of other arguments.

What is wrong: a VAE or a GAN of Keras's guides has parts and a ``train_step``, and no ``call``. One
device trains it. Under a strategy Keras 3.15 on TensorFlow builds a model by calling it before it
trains, and ``fit`` ends with "Unable to automatically build the model". So it does where the
``train_step`` takes a batch in a way of its own, as the triplets of a Siamese network: ``call`` is
given the first of them alone.

The mend: a model without a ``call`` is not called, and one with a step of its own need not be
callable with what Keras takes for its input. Guarantees: only models whose parts are built by then;
where one is not, an error names it, since its weights would be made by each replica for itself, or
the failure of the call is told, as where ``compile`` was given metrics, which the call would build.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from tfopt.distribute.mends.under_strategies import UnderStrategies, has_own
from tfopt.errors import UserError

_mended = UnderStrategies()


def probe(strategy: Any) -> bool:
    """Whether a model of built parts is called all the same."""
    import keras
    import numpy as np

    with strategy.scope():
        model = keras.Model(name="probe")
        model.compile("sgd", jit_compile=False)
    try:
        model._maybe_symbolic_build(data_batch=np.ones((1, 1), "float32"))
    except (RuntimeError, NotImplementedError):
        return True
    return False


def mend(strategy: Any) -> None:
    """Leaves models without a call uncalled, under this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    import keras
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer

    plain = TensorFlowTrainer._maybe_symbolic_build

    @wraps(plain)
    def _maybe_symbolic_build(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        if self._distribute_strategy in _mended and type(self).call is keras.Model.call:
            _require_built_parts(self)
            return None
        try:
            return plain(self, iterator=iterator, data_batch=data_batch)
        except UserError:
            raise
        except Exception:
            # Keras calls it by what it takes for x, y; only the step itself knows what they are.
            if self._distribute_strategy in _mended and _can_go_on(self):
                return None
            raise

    TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build


def _can_go_on(model: Any) -> bool:
    """Whether it has a step of its own, which finds all variables there."""
    metrics = model._compile_metrics
    return (
        has_own(model, "train_step") and (metrics is None or metrics.built) and not _unbuilt(model)
    )


def _unbuilt(model: Any) -> list[str]:
    """The parts that have yet to make their weights."""
    return [
        f"{layer.name} ({type(layer).__name__})"
        for layer in model._flatten_layers(include_self=False)
        if not layer.built and _makes_weights(layer)
    ]


def _require_built_parts(model: Any) -> None:
    unbuilt = _unbuilt(model)
    if unbuilt:
        raise UserError(
            f"{type(model).__name__} has no call(), and parts of it are not built yet.",
            expected="under several replicas, weights that are made inside tfopt.distribute()",
            received=", ".join(unbuilt[:10]),
            fix="begin these parts with keras.Input(shape), or call them once on a batch inside "
            "the scope, or give the model a call()",
        )


def _makes_weights(layer: Any) -> bool:
    """Whether its build may make some; a model's are those of its layers."""
    import keras

    plain = (keras.layers.Layer.build, keras.Model.build, keras.Sequential.build)
    return type(layer).build not in plain
