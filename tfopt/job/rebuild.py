"""Rebuild a model: same architecture, same weights, optionally edited layer configs.

Custom classes and functions need no registration. Also here: the models that share layers, and the
lock under which models are changed.
"""

from __future__ import annotations

import copy
import gc
import inspect
import math
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError, first_line
from tfopt.keras_internals import layers_inside, layers_of, sharing_configs, sharing_objects

if TYPE_CHECKING:
    import keras

# Guards temporary changes of a model or of the process: two threads without it would restore each
# other's changes. No training step waits for it.
ONE_AT_A_TIME = threading.RLock()


def models_around(model: Any) -> list[Any]:
    """Return a model and all models that share a layer with it: layers do not know their owners."""
    import keras

    classes = [keras.Model]
    for base in classes:
        classes += [derived for derived in base.__subclasses__() if derived not in classes]
    # An object refers to its class. ``gc.get_objects`` would also return tuples that other threads
    # are still filling, which crashes those threads.
    kinds = set(classes)
    with _without_collection():
        alive = [instance for instance in gc.get_referrers(*classes) if type(instance) in kinds]
    mine = {id(layer) for layer in layers_of(model)}
    # A model still in its constructor has no ``layers`` yet.
    others = [other for other in alive if hasattr(other, "layers") and other is not model]
    sharing = [other for other in others if not mine.isdisjoint(map(id, layers_of(other)))]
    return [model, *sharing]


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collect no garbage inside.

    A collection within ``gc.get_referrers`` ends the process, since it moves the objects that are
    being visited. A visit to an eager tensor may begin one: it makes the tensor's dictionary.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def forget_compiled_steps(model: Any) -> None:
    """Reset the compiled steps, so that ``fit``, ``evaluate`` and ``predict`` trace again.

    A ``tf.function`` of the user's is not reset.
    """
    for owner in models_around(model):
        owner.train_function = owner.test_function = owner.predict_function = None


ConfigEdit = Callable[[dict[str, Any]], dict[str, Any]]


def blueprint(model: keras.Model) -> Callable[..., keras.Model]:
    """Return a function that builds copies of a built model, in the scope of the call.

    The function takes ``edit``, which changes the configuration, and ``weights``, which replace the
    model's own.
    """
    import keras

    require_built_keras3(model)
    name, layers = model.name, layers_of(model)
    with (
        ONE_AT_A_TIME,
        _translate_errors(name),
        custom_objects(layers) as custom,
        sharing_configs(),
    ):
        serialized = {**keras.saving.serialize_keras_object(model), "compile_config": None}
    shared = set(map(id, layers))

    def keep_shared_layers(part: Any) -> None:
        # Keras marks by address, which what a get_config() makes and drops may have one by one.
        if isinstance(part, dict) and part.get("shared_object_id") not in shared:
            part.pop("shared_object_id", None)

    keras.tree.traverse(keep_shared_layers, serialized)
    own_weights = model.get_weights()
    # Neither ``trainable`` nor a vocabulary needs to be in a configuration.
    trainable = [bool(layer.trainable) for layer in layers]
    lookups = [layer if hasattr(layer, "save_assets") else None for layer in layers]

    def build(edit: ConfigEdit | None = None, weights: Any = None) -> keras.Model:
        config: Any = copy.deepcopy(serialized)  # Keras changes what it deserialises
        with keras.saving.custom_object_scope(custom), sharing_objects():
            config = config if edit is None else edit(config)
            with _translate_errors(name):
                rebuilt = keras.saving.deserialize_keras_object(config, safe_mode=False)
                if not rebuilt.built and config.get("build_config"):
                    rebuilt.build_from_config(config["build_config"])
                values = own_weights if weights is None else weights
                if len(values) < len(rebuilt.weights):
                    cause = "call it once on a batch, so that all of its layers are built"
                    if all(layer.built for layer in layers):
                        cause = "a layer that is an attribute of two layers becomes two in a copy"
                    raise ValueError(
                        f"it has {len(values)} weights and its copy {len(rebuilt.weights)}; {cause}"
                    )
                rebuilt.set_weights(values)
        _carry_over(rebuilt, trainable, lookups)
        return rebuilt

    return build


def _carry_over(rebuilt: keras.Model, trainable: list[bool], lookups: list[Any]) -> None:
    """Set what no weight holds, layer by layer: ``trainable``, vocabularies, derived constants."""
    # Outer layers come first: ``trainable`` sets all inner layers too. A KerasHub class may have
    # more layers when it is rebuilt.
    for layer, trains, source in zip(layers_of(rebuilt), trainable, lookups, strict=False):
        if layer.trainable != trains:
            layer.trainable = trains
        if source is not None and layer is not rebuilt:
            with tempfile.TemporaryDirectory() as folder:
                source.save_assets(folder)
                layer.load_assets(folder)
        if hasattr(layer, "finalize_state"):
            layer.finalize_state()  # Normalization derives constants from its weights


def rebuild(model: keras.Model, edit: ConfigEdit | None = None, weights: Any = None) -> keras.Model:
    """Return a new, uncompiled model with the same architecture and weights."""
    return blueprint(model)(edit, weights)


def is_keras2(model: Any) -> bool:
    """Return whether a model's class derives from one of tf_keras."""
    return any(base.__module__.startswith("tf_keras.") for base in type(model).__mro__)


def require_keras3(model: Any) -> None:
    """Raise unless ``model`` is a Keras 3 model."""
    import keras

    if isinstance(model, keras.Model):
        return
    is_path = isinstance(model, str | os.PathLike)
    fix = "load it: tfopt.load(path)" if is_path else "build the model with `import keras`"
    if is_keras2(model):
        fix += (
            "; models of tf_keras can be pruned, clustered, made quantization-aware and stripped, "
            "and what tfopt.strip returns is for tf.lite.TFLiteConverter.from_keras_model"
        )
    raise UserError(
        "`model` must be a Keras 3 model.",
        expected="a keras.Model (Sequential, Functional or subclassed)",
        received=f"{type(model).__name__} from {type(model).__module__.split('.')[0]}",
        fix=fix,
    )


def require_compiled(model: Any, function: str) -> None:
    """Raise unless ``model`` is compiled; ``function`` is named in the error."""
    require_keras3(model)
    if not getattr(model, "compiled", False):
        raise UserError(
            f"{function}() needs a compiled model.",
            expected="a model on which compile(optimizer, loss) was called",
            received=type(model).__name__,
            fix="call model.compile(...) first",
        )


def has_weights(model: Any) -> bool:
    """Return whether all weights exist; a model that only trains other models may be unbuilt."""
    layers = layers_inside(model)
    leaves = [layer for layer in layers if not layers_inside(layer, recursive=False)]
    return bool(model.built or (model.weights and all(leaf.built for leaf in leaves)))


def require_weights(model: Any) -> None:
    """Raise unless ``model`` is a Keras 3 model whose weights exist and are finite."""
    require_keras3(model)
    if not has_weights(model):
        require_built_keras3(model)
    require_finite_weights(model)


def require_built_keras3(model: Any) -> None:
    """Raise unless ``model`` is a built Keras 3 model."""
    require_keras3(model)
    if not model.built:
        raise UserError(
            f"The model {model.name!r} is not built.",
            expected="a model whose input shape is known",
            received=f"{type(model).__name__} with built=False",
            fix="add keras.Input(...) as its first layer, or call it once on a batch; if it only "
            "trains other models, pass those",
        )


def require_finite_weights(model: keras.Model) -> None:
    """Raise for a model with NaN or infinite weights."""
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
def custom_objects(layers: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the classes and functions outside Keras that the layers use, by name.

    Lambdas get names meanwhile: Keras would serialise their code without its closure.
    """
    custom = [part for layer in layers for part in _custom_parts(layer)]
    lambdas = [part for part in custom if part.__name__ == "<lambda>"]
    for number, function in enumerate(lambdas):
        function.__name__ = f"lambda_{number}"
    try:
        by_name = {part.__name__: part for part in custom}
        for part in custom:
            if by_name[part.__name__] is not part:
                # A configuration refers to them by name alone.
                raise ValueError(f"it uses two different objects named {part.__name__!r}")
        yield by_name
    finally:
        for function in lambdas:
            function.__name__ = "<lambda>"


def _custom_parts(layer: Any) -> Iterator[Any]:
    import keras

    for value in (type(layer), *vars(layer).values()):
        if not callable(value) or isinstance(value, keras.layers.Layer):
            continue
        if getattr(inspect.unwrap(value), "__self__", None) is layer:
            continue  # Keras wraps a layer's ``build`` and sets it on the instance
        part = value if hasattr(value, "__name__") else type(value)
        if not (part.__module__ or "").startswith(("keras.", "builtins", "tensorflow.")):
            yield part


@contextmanager
def _translate_errors(model_name: str) -> Iterator[None]:
    """Raise an error of Keras's as a UserError that names the model."""
    try:
        yield
    except Exception as error:
        raise UserError(
            f"The model {model_name!r} cannot be rebuilt from its configuration: "
            f"{first_line(error)}",
            expected="every layer and the model itself to round-trip through "
            "get_config/from_config",
            fix="define get_config() (and from_config) on the class named above, or describe the "
            "training with tfopt.Job(build=your_factory, ...), which needs no rebuilding",
        ) from error
