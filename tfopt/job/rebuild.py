"""Rebuild a model: same architecture, same weights, optionally edited layer configs.

Custom classes and functions need no registration.
"""

from __future__ import annotations

import copy
import inspect
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError, first_line
from tfopt.job.compiled_steps import ONE_AT_A_TIME
from tfopt.job.model_checks import require_built_keras3
from tfopt.keras_internals import layers_of, sharing_configs, sharing_objects

if TYPE_CHECKING:
    import keras

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
                _require_as_many(values, rebuilt.weights, layers)
                rebuilt.set_weights(values)
        _carry_over(rebuilt, trainable, lookups)
        return rebuilt

    return build


def _require_as_many(values: list[Any], weights: list[Any], layers: list[Any]) -> None:
    if len(values) < len(weights):
        cause = "call it once on a batch, so that all of its layers are built"
        if all(layer.built for layer in layers):
            cause = "a layer that is an attribute of two layers becomes two in a copy"
        raise ValueError(f"it has {len(values)} weights and its copy {len(weights)}; {cause}")


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
