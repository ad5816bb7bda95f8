"""Keras's functions of each value by operators that LiteRT has in integers.

The results are the same but for rounding. No value on the way is much larger than the result, which
256 values could not tell apart: exponentials are only of negative numbers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from tfopt.compress.integers.tracing import Form
from tfopt.compress.model_graph import kinds

_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def own_activation(part: Any) -> Any:
    """Return the function that a layer keeps as its activation, wherever its ``call`` takes it.

    A loop computes with its cell's, as it is, and what cannot be set on the layer stays too.
    """
    return None if "RNN" in kinds(part) else vars(part).get("activation")


def activation_form(function: Any) -> Form | None:
    """Return what stands for one of Keras's functions when it is served; None: it does itself.

    It takes the settings that Keras's takes, which a user's ``call`` may give.
    """
    if not str(getattr(function, "__module__", "")).startswith("keras."):
        return None
    form, *_ = _FORMS.get(getattr(function, "__name__", ""), (None,))
    return form


def activation_layer_form(part: Any) -> Form | None:
    """Return the same for a layer or an operation that is nothing but a function of each value."""
    names = kinds(part)
    for form, classes, settings in _FORMS.values():
        if names & classes:
            return partial(form, **{name: getattr(part, name) for name in settings})
    return None


def _depth(x: Any) -> Any:
    """Return how far below zero values are, as a product with its ReLU.

    A minimum, and a ReLU alone, have one range for what comes in and what goes out, which cuts off
    the other half.
    """
    import tensorflow as tf

    return tf.nn.relu(x * -1.0)


def _above(x: Any) -> Any:
    return x + _depth(x)


def _celu(x: Any, alpha: float = 1.0) -> Any:
    import tensorflow as tf

    depth = _depth(x)
    return x + depth + alpha * (tf.exp(depth * (-1.0 / alpha)) - 1.0)


def _elu(x: Any, alpha: float = 1.0) -> Any:
    import tensorflow as tf

    depth = _depth(x)
    return x + depth + alpha * (tf.exp(depth * -1.0) - 1.0)


def _selu(x: Any) -> Any:
    return _SELU_SCALE * _elu(x, _SELU_ALPHA)


def _softplus(x: Any) -> Any:
    return _above(x) + _rest(x)


def _log_sigmoid(x: Any) -> Any:
    return -1.0 * (_depth(x) + _rest(x))


def _rest(x: Any) -> Any:
    """Return ``log(1 + exp(-|x|))``: how far softplus is from its two straight lines."""
    import tensorflow as tf

    return tf.math.log(1.0 + tf.exp(-1.0 * (x + 2.0 * _depth(x))))


def _mish(x: Any) -> Any:
    import tensorflow as tf

    return x * tf.tanh(_softplus(x))


# By a function's name: its form, the layers and operations that are the function, their settings.
_FORMS: dict[str, tuple[Form, set[str], tuple[str, ...]]] = {
    "selu": (_selu, {"Selu"}, ()),
    "celu": (_celu, {"Celu"}, ("alpha",)),
    "softplus": (_softplus, {"Softplus"}, ()),
    "log_sigmoid": (_log_sigmoid, {"LogSigmoid"}, ()),
    "mish": (_mish, {"Mish"}, ()),
}
