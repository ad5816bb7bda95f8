"""Rebuild a model: same architecture, same weights, optionally edited layer configs.

A user's own classes and functions need no registration. Also here: which other models a change of a
model is seen in, and the lock under which models are changed.
"""

from __future__ import annotations

import copy
import gc
import inspect
import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError
from tfopt.keras_internals import layers_inside, layers_of

if TYPE_CHECKING:
    import keras

# Held by whatever changes a model or the process for a while and puts it back: of two threads
# without it, each would put back what the other had changed. No training step ever waits for it.
ONE_AT_A_TIME = threading.RLock()


def models_around(model: Any) -> list[Any]:
    """Return a model and all others that share a layer with it: a layer does not know its owner."""
    import keras

    classes = [keras.Model]
    for each in classes:
        classes += [below for below in each.__subclasses__() if below not in classes]
    # Each object refers to its class. Going through all objects instead would hold tuples that
    # other threads are still making, which ends those threads.
    kinds = set(classes)
    alive = [each for each in gc.get_referrers(*classes) if type(each) in kinds]
    mine = {id(layer) for layer in layers_of(model)}
    # A constructor that is not through yet has not made what Keras looks layers up in.
    whole = [each for each in alive if hasattr(each, "layers") and each is not model]
    sharing = [each for each in whole if not mine.isdisjoint(map(id, layers_of(each)))]
    return [model, *sharing]


def forget_compiled_steps(model: Any) -> None:
    """Let the next ``fit``, ``evaluate`` and ``predict`` trace again, with the layers as they are.

    Steps that a user has compiled themselves (``tf.function``) are theirs to forget.
    """
    for each in models_around(model):
        each.train_function = each.test_function = each.predict_function = None


ConfigEdit = Callable[[dict[str, Any]], dict[str, Any]]


def blueprint(model: keras.Model) -> Callable[..., keras.Model]:
    """Return a function that makes copies of a built model, as it is now.

    It makes them under the scope in which it is called. Its ``edit`` may change the configuration,
    and its ``weights`` take the place of the model's own.
    """
    import keras

    require_built_keras3(model)
    name, layers = model.name, layers_of(model)
    with ONE_AT_A_TIME, _told_by_name(name), _own_objects(layers) as own:
        kept = {**keras.saving.serialize_keras_object(model), "compile_config": None}
    own_weights = model.get_weights()
    # A configuration need not say what is frozen.
    trainable = [bool(layer.trainable) for layer in layers]
    # What these keep, such as a vocabulary, is neither in it nor among the weights.
    lookups = [layer if hasattr(layer, "save_assets") else None for layer in layers]

    def build(edit: ConfigEdit | None = None, weights: Any = None) -> keras.Model:
        config: Any = copy.deepcopy(kept)  # Keras changes what it deserialises
        with keras.saving.custom_object_scope(own):
            config = config if edit is None else edit(config)
            with _told_by_name(name):
                made = keras.saving.deserialize_keras_object(config, safe_mode=False)
                if not made.built and config.get("build_config"):
                    made.build_from_config(config["build_config"])
                made.set_weights(own_weights if weights is None else weights)
        # Outer layers come first: setting one sets all inside it.
        # A class of KerasHub's may have more layers when it is made again.
        for layer, trains, source in zip(layers_of(made), trainable, lookups, strict=False):
            if layer.trainable != trains:
                layer.trainable = trains
            if source is not None and layer is not made:
                with tempfile.TemporaryDirectory() as folder:
                    source.save_assets(folder)
                    layer.load_assets(folder)
            if hasattr(layer, "finalize_state"):
                # Normalization computes with constants that it derives from its weights.
                layer.finalize_state()
        return made

    return build


def rebuild(model: keras.Model, edit: ConfigEdit | None = None, weights: Any = None) -> keras.Model:
    """Return a new, uncompiled model with the same architecture and weights."""
    return blueprint(model)(edit, weights)


def is_keras2(model: Any) -> bool:
    """Return whether a model's class derives from one of tf_keras."""
    return any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)


def require_keras3(model: Any) -> None:
    """Refuse what is not a Keras 3 model."""
    import keras

    if isinstance(model, keras.Model):
        return
    fix = "build the model with `import keras`"
    if is_keras2(model):
        fix += (
            "; models of tf_keras can be pruned, clustered, made quantization-aware and stripped, "
            "and what tfopt.strip returns is for tf.lite.TFLiteConverter.from_keras_model"
        )
    raise UserError(
        "This needs a Keras 3 model.",
        expected="a keras.Model (Sequential, Functional or subclassed)",
        received=f"{type(model).__name__} from {type(model).__module__.split('.')[0]}",
        fix=fix,
    )


def require_compiled(model: Any, function: str) -> None:
    """Refuse a model on which compile() was not called, where ``function`` needs it."""
    require_keras3(model)
    if not getattr(model, "compiled", False):
        raise UserError(
            f"{function}() needs a compiled model.",
            expected="a model on which compile(optimizer, loss) was called",
            received=type(model).__name__,
            fix="call model.compile(...) first",
        )


def has_weights(model: Any) -> bool:
    """Return whether all weights are there: a model that only trains others may be unbuilt."""
    layers = layers_inside(model)
    leaves = [layer for layer in layers if not layers_inside(layer, recursive=False)]
    return bool(model.built or (model.weights and all(leaf.built for leaf in leaves)))


def require_weights(model: Any) -> None:
    """Refuse what is not a Keras 3 model all of whose weights are there, and finite."""
    require_keras3(model)
    if not has_weights(model):
        require_built_keras3(model)
    require_finite_weights(model)


def require_built_keras3(model: Any) -> None:
    """Refuse what is not a Keras 3 model that was built, or called on a batch."""
    require_keras3(model)
    if not model.built:
        raise UserError(
            f"The model {model.name!r} is not built.",
            expected="a model whose input shape is known",
            received=f"{type(model).__name__} with built=False",
            fix="add keras.Input(...) as its first layer, or call it once on a batch; of a model "
            "that only trains others give those",
        )


def require_finite_weights(model: keras.Model) -> None:
    """Raise for a model with weights that are not numbers: nothing of it could be compared."""
    import keras
    import numpy as np

    for variable in model.weights:
        if not keras.backend.is_float_dtype(variable.dtype):
            continue
        if lost := np.count_nonzero(~np.isfinite(np.asarray(variable.numpy()))):
            raise UserError(
                f"The weight {variable.path!r} holds NaN or infinite values.",
                expected="a model whose training converged",
                received=f"{lost} of {math.prod(variable.shape)}",
                fix="train again with a lower learning rate, or load an earlier checkpoint",
            )


@contextmanager
def _own_objects(layers: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the classes and functions outside Keras that the layers use, by name.

    Lambdas have names meanwhile: Keras would write their code, without what it refers to.
    """
    own = [each for layer in layers for each in _own_parts(layer)]
    lambdas = [each for each in own if each.__name__ == "<lambda>"]
    for number, function in enumerate(lambdas):
        function.__name__ = f"lambda_{number}"
    try:
        found = {each.__name__: each for each in own}
        for each in own:
            if found[each.__name__] is not each:
                # A configuration refers to them by name alone.
                raise ValueError(f"it uses two different things named {each.__name__!r}")
        yield found
    finally:
        for function in lambdas:
            function.__name__ = "<lambda>"


def _own_parts(layer: Any) -> Iterator[Any]:
    import keras

    for value in (type(layer), *vars(layer).values()):
        if not callable(value) or isinstance(value, keras.layers.Layer):
            continue
        if getattr(inspect.unwrap(value), "__self__", None) is layer:
            continue  # Keras puts each layer's own ``build``, wrapped, on the layer
        part = value if hasattr(value, "__name__") else type(value)
        if not (part.__module__ or "").startswith(("keras.", "builtins", "tensorflow.")):
            yield part


@contextmanager
def _told_by_name(model_name: str) -> Iterator[None]:
    """Raise whatever Keras finds wrong as one error that names the model."""
    try:
        yield
    except Exception as error:
        # Keras puts the cause after this phrase and the whole configuration before it.
        cause = str(error).rpartition("Exception encountered:")[2].strip().splitlines()
        # Of an error in a layer's call the first line names the layer alone.
        shown = " ".join(line for line in cause[:3] if line.strip()) or type(error).__name__
        raise UserError(
            f"The model {model_name!r} cannot be rebuilt from its configuration: {shown}",
            expected="every layer and the model itself to round-trip through "
            "get_config/from_config",
            fix="define get_config() (and from_config) on the class named above, or describe the "
            "training with tfopt.Job(build=your_factory, ...), which needs no rebuilding",
        ) from error
