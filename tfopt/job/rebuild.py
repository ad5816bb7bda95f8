"""Rebuild a model: same architecture, same weights, optionally edited layer configs.

A user's own classes and functions need no registration. Also here: which other models a change of a
model is seen in, and the lock under which models are changed.
"""

from __future__ import annotations

import copy
import gc
import inspect
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError

if TYPE_CHECKING:
    import keras

# Held by whatever changes a model or the process for a while and puts it back: of two threads
# without it, each would put back what the other had changed. No training step ever waits for it.
ONE_AT_A_TIME = threading.RLock()


def models_around(model: Any) -> list[Any]:
    """Return a model and all others that share a layer with it: a layer does not know its owner."""
    mine = {id(layer) for layer in model._flatten_layers()}
    # A constructor that is not through yet has not made what Keras looks layers up in.
    whole = [each for each in _alive() if "_layers" in vars(each) and each is not model]
    sharing = [each for each in whole if not mine.isdisjoint(map(id, each._flatten_layers()))]
    return [model, *sharing]


def forget_compiled_steps(model: Any) -> None:
    """Let the next ``fit``, ``evaluate`` and ``predict`` trace again, with the layers as they are.

    Steps that a user has compiled themselves (``tf.function``) are theirs to forget.
    """
    for each in models_around(model):
        each.train_function = each.test_function = each.predict_function = None


def _alive() -> list[Any]:
    """Return all models there are: each refers to its class.

    Going through all objects instead would hold tuples that other threads are still making, which
    ends those threads.
    """
    import keras

    classes = [keras.Model]
    for each in classes:
        classes += [below for below in each.__subclasses__() if below not in classes]
    kinds = set(classes)
    return [each for each in gc.get_referrers(*classes) if type(each) in kinds]


ConfigEdit = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Blueprint:
    """A model as plain data: serialised configuration, own classes, weights."""

    name: str
    config: Mapping[str, Any]
    custom_objects: Mapping[str, Any]
    weights: tuple[Any, ...]
    trainable: tuple[bool, ...]
    """Of every layer: a configuration need not say what is frozen."""
    assets: Mapping[int, Mapping[str, bytes]]
    """What layers keep beside weights, such as vocabularies, by their place in the model."""

    def build(self, edit: ConfigEdit | None = None) -> keras.Model:
        """Return a new model under the current scope; ``edit`` may change its configuration."""
        import keras

        # Keras changes the configuration that it deserialises.
        config: Any = {**copy.deepcopy(self.config), "compile_config": None}
        with keras.saving.custom_object_scope(dict(self.custom_objects)):
            config = config if edit is None else edit(config)
            with _told_by_name(self.name):
                model = keras.saving.deserialize_keras_object(config, safe_mode=False)
                if not model.built and config.get("build_config"):
                    model.build_from_config(config["build_config"])
                model.set_weights(list(self.weights))
        # Outer layers come first: setting one sets all inside it.
        # A class of KerasHub's may have more layers when it is made again.
        layers = zip(model._flatten_layers(), self.trainable, strict=False)
        for number, (layer, trainable) in enumerate(layers):
            if layer.trainable != trainable:
                layer.trainable = trainable
            _set_assets(layer, self.assets.get(number))
        return model


def blueprint(model: keras.Model) -> Blueprint:
    """Read a built model into a :class:`Blueprint`."""
    import keras

    require_built_keras3(model)
    with ONE_AT_A_TIME, _named_lambdas(model):
        with _told_by_name(model.name):
            config = keras.saving.serialize_keras_object(model)
        return Blueprint(
            name=model.name,
            config=config,
            custom_objects=_own_objects(model),
            weights=tuple(model.get_weights()),
            trainable=tuple(bool(layer.trainable) for layer in model._flatten_layers()),
            assets=_assets(model),
        )


def rebuild(model: keras.Model, edit: ConfigEdit | None = None) -> keras.Model:
    """Return a new, uncompiled model with the same architecture and weights."""
    return blueprint(model).build(edit)


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
    layers = model._flatten_layers(include_self=False)
    leaves = [layer for layer in layers if not layer._layers]
    return bool(model.built or (model.weights and all(leaf.built for leaf in leaves)))


def require_weights(model: Any) -> None:
    """Refuse what is not a Keras 3 model all of whose weights are there."""
    require_keras3(model)
    if not has_weights(model):
        require_built_keras3(model)


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


def _own_objects(model: keras.Model) -> dict[str, Any]:
    """Return the classes and functions outside Keras that the layers use, by name."""
    import keras

    found: dict[str, Any] = {}
    for layer in model._flatten_layers():
        values = [each for each in vars(layer).values() if callable(each)]
        # Keras puts each layer's own ``build``, wrapped, on the layer.
        own = [
            each for each in values if getattr(inspect.unwrap(each), "__self__", None) is not layer
        ]
        for value in (type(layer), *own):
            if isinstance(value, keras.layers.Layer):
                continue
            target = value if hasattr(value, "__name__") else type(value)
            name, module = target.__name__, getattr(target, "__module__", None) or ""
            if name == "<lambda>" or module.startswith(("keras.", "builtins", "tensorflow.")):
                continue
            if found.setdefault(name, target) is not target:
                # A configuration refers to them by name alone.
                reason = f"it uses two different things named {name!r}"
                raise _cannot_rebuild(model.name, reason)
    return found


@contextmanager
def _named_lambdas(model: keras.Model) -> Iterator[None]:
    """Give the layers' lambdas names: Keras would write their code, without what it refers to."""
    lambdas = [
        value
        for layer in model._flatten_layers()
        for value in vars(layer).values()
        if isinstance(value, FunctionType) and value.__name__ == "<lambda>"
    ]
    own = [each for each in lambdas if not each.__module__.startswith("keras.")]
    try:
        for number, function in enumerate(own):
            function.__name__ = f"lambda_{number}"
        yield
    finally:
        for function in own:
            function.__name__ = "<lambda>"


def _assets(model: keras.Model) -> dict[int, dict[str, bytes]]:
    """Return adapted vocabularies, which are neither in the configuration nor among the weights."""
    found = {}
    for number, layer in enumerate(model._flatten_layers()):
        if layer is not model and hasattr(layer, "save_assets"):
            with tempfile.TemporaryDirectory() as folder:
                layer.save_assets(folder)
                found[number] = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    return found


def _set_assets(layer: Any, files: Mapping[str, bytes] | None) -> None:
    if files is not None:
        with tempfile.TemporaryDirectory() as folder:
            for name, content in files.items():
                (Path(folder) / name).write_bytes(content)
            layer.load_assets(folder)
    if hasattr(layer, "finalize_state"):
        # Normalization computes with constants that it derives from its weights.
        layer.finalize_state()


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
        raise _cannot_rebuild(model_name, shown) from error


def _cannot_rebuild(name: str, reason: str) -> UserError:
    return UserError(
        f"The model {name!r} cannot be rebuilt from its configuration: {reason}",
        expected="every layer and the model itself to round-trip through get_config/from_config",
        fix="define get_config() (and from_config) on the class named above, or describe the "
        "training with tfopt.Job(build=your_factory, ...), which needs no rebuilding",
    )
