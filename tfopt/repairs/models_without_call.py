"""Under a strategy Keras cannot train a model that has no ``call``.

What is wrong: a VAE or a GAN of Keras's guides has parts and a ``train_step``, and no ``call``. One
device trains it. Under a strategy Keras 3.15 on TensorFlow builds a model by calling it before it
trains, and ``fit`` ends with "Unable to automatically build the model".

The mend: such a model is not called. Guarantees: only models whose parts are built by then; where
one is not, an error names it, since its weights would be made by each replica for itself.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from tfopt.errors import UserError
from tfopt.repairs.under_strategies import UnderStrategies

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
        return plain(self, iterator=iterator, data_batch=data_batch)

    TensorFlowTrainer._maybe_symbolic_build = _maybe_symbolic_build


def _require_built_parts(model: Any) -> None:
    unbuilt = [
        f"{layer.name} ({type(layer).__name__})"
        for layer in model._flatten_layers(include_self=False)
        if not layer.built and _makes_weights(layer)
    ]
    if unbuilt:
        raise UserError(
            f"{type(model).__name__} has no call(), and parts of it are not built yet.",
            expected="under several replicas, weights that are made inside tfopt.distribute()",
            received=", ".join(unbuilt[:10]),
            fix="begin these parts with keras.Input(shape), or call them once on a batch inside "
            "the scope, or give the model a call()",
        )


def _makes_weights(layer: Any) -> bool:
    """Whether its build may make some; a Sequential's are those of its layers."""
    import keras

    own = type(layer).build is not keras.layers.Layer.build
    return own and not isinstance(layer, keras.Sequential)
