"""Convert a built Keras 3 model to a float LiteRT file, through a SavedModel.

Inputs and outputs keep their names, and the batch size stays free. A model that LiteRT cannot run
raises a UserError that names the operators.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.compress.examples import run_all
from tfopt.compress.model_graph import Array, Ports, output_names
from tfopt.errors import UserError, first_line
from tfopt.export.formats.format import operator_fix
from tfopt.export.litert_forms import litert_forms
from tfopt.export.quiet import quiet
from tfopt.export.shared_vectors import with_shared_vectors
from tfopt.hooks import Hooks
from tfopt.job.compiled_steps import ONE_AT_A_TIME
from tfopt.keras_internals import layers_of

if TYPE_CHECKING:
    import keras

_MISSING_OP = re.compile(r"'tf\.(\w+)' op is neither a custom op nor a flex op")
_OPERATOR_REFUSED = re.compile(r"'\w+\.\w+' op .+")


@dataclass(frozen=True)
class Traced:
    """A model's inference as one TensorFlow function with named inputs and outputs."""

    name: str
    ports: Ports
    outputs: tuple[str, ...]
    function: Any
    variables: tuple[Any, ...]

    def predict(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the float outputs, in the model's order."""

        def run(rows: Sequence[Array]) -> list[Array]:
            result = self.function(*rows)
            return [result[name].numpy() for name in self.outputs]

        return run_all(run, inputs, self.ports.inputs[0].batch)


@contextmanager
def named_as_layers(model: Any) -> Iterator[None]:
    """Make the operations of a layer have its name in the traced graph.

    Keras enters a layer's name scope twice in a call, to build and to compute, and TensorFlow
    numbers the second one: ``conv2d`` would be ``conv2d_1`` in the file, which is another layer.
    """
    hooks = Hooks()
    with ONE_AT_A_TIME, ExitStack() as around:
        around.callback(hooks.remove)
        for layer in layers_of(model):
            hooks.replace(layer, "call", _named(layer))
        yield


def _named(layer: Any) -> Callable[..., Any]:
    import tensorflow as tf

    plain = layer.call

    def call(*args: Any, **kwargs: Any) -> Any:
        around, _, own = tf.get_current_name_scope().rpartition("/")
        if own.removeprefix(layer.name).strip("_0123456789"):  # called outside of its scope
            return plain(*args, **kwargs)
        # TensorFlow does not number a name that ends in a slash.
        with tf.name_scope(f"{around}/{layer.name}/" if around else f"{layer.name}/"):
            return plain(*args, **kwargs)

    return call


def trace(model: keras.Model, ports: Ports) -> Traced:
    """Trace the model's inference (``training=False``)."""
    import keras
    import tensorflow as tf

    specs = [
        tf.TensorSpec((port.batch, *port.shape), port.dtype, name=port.name)
        for port in ports.inputs
    ]
    names: tuple[str, ...] = ()

    def infer(*values: Any) -> dict[str, Any]:
        nonlocal names
        result = model(ports.pack(values), training=False)
        names = output_names(model, result)
        return dict(zip(names, keras.tree.flatten(result), strict=True))

    traced = tf.function(infer, input_signature=specs, autograph=False)
    try:
        with named_as_layers(model):
            function = traced.get_concrete_function()
    except Exception as error:
        raise _not_traceable(model.name, error) from error
    # A layer may update a metric in its call.
    variables = (*model.variables, *model.metrics_variables)
    return Traced(model.name, ports, names, function, tuple(v.value for v in variables))


def serve(model: keras.Model, ports: Ports, *, integers: bool = False) -> Traced:
    """Trace the model's inference in operators of LiteRT, without loops."""
    _refuse_state(model)
    with litert_forms(model, integers=integers):
        return trace(model, ports)


def convert(served: Traced, *, sparse: bool = False) -> bytes:
    """Return the content of a float .tflite file; ``sparse`` compresses sparse kernels."""
    import tensorflow as tf

    try:
        with quiet(), tempfile.TemporaryDirectory(prefix="tfopt-") as folder:
            save(served, Path(folder))
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
            if sparse:
                converter.optimizations = [tf.lite.Optimize.EXPERIMENTAL_SPARSITY]
            content: bytes = converter.convert()
    except UserError:
        raise
    except Exception as error:
        log = "".join(getattr(error, "__notes__", ()))
        raise _not_convertible(served, error, log) from error
    return with_shared_vectors(content, "tensorflow.lite.python")


def save(served: Traced, folder: Path, owner: Any = None) -> Path:
    """Write a traced model as a SavedModel; return its folder.

    ``owner`` is the model, if its lookup tables must be saved too: it would bring its optimizer.
    """
    import tensorflow as tf

    module = tf.Module()
    inside = () if owner is None else tf.train.TrackableView(owner).descendants()
    tables = [p for p in inside if isinstance(p, tf.saved_model.experimental.TrackableResource)]
    module.kept = [*served.variables, *served.function.variables, *tables]
    try:
        tf.saved_model.save(module, str(folder), signatures=served.function)
    except AssertionError as error:
        if "untracked" not in str(error):
            raise
        raise UserError(
            f"The model {served.name!r} has a lookup table, which LiteRT does not support.",
            expected="a model that starts after its TextVectorization, StringLookup, ...",
            received=first_line(error),
            fix="build the model for serving from the layers after the lookup, and look up outside",
        ) from error
    return folder


def _refuse_state(model: keras.Model) -> None:
    stateful = [
        layer.name for layer in layers_of(model) if getattr(layer, "stateful", False) is True
    ]
    if stateful:
        raise UserError(
            f"The model {model.name!r} is stateful.",
            expected="recurrent layers with stateful=False: a LiteRT file has no state",
            received=", ".join(stateful[:5]),
            fix="build it with stateful=False and set_weights, or make the state an input",
        )


def _not_traceable(name: str, error: Exception) -> UserError:
    if "Cannot unroll" in str(error):
        return UserError(
            f"The model {name!r} is recurrent over sequences of any length.",
            expected="a fixed length: recurrent layers are unrolled for LiteRT",
            fix="build the model for serving with keras.Input((length, features)) and set_weights",
        )
    return UserError(
        f"The model {name!r} cannot be turned into a TensorFlow graph.",
        received=first_line(error),
        fix="let call() use keras.ops or TensorFlow only, and accept training=False; a tuple of "
        "examples is (inputs, targets): two inputs of a call() are ((a, b), targets)",
    )


def _not_convertible(served: Traced, error: Exception, log: str) -> UserError:
    text = str(error)
    name, missing = served.name, sorted(set(_MISSING_OP.findall(text)))
    doubled = [
        f"{operation.name} ({operation.type})"
        for operation in served.function.graph.get_operations()
        if operation.type in missing
        and any(result.dtype == np.float64 for result in operation.outputs)
    ]
    if doubled:
        return UserError(
            f"The model {name!r} computes in float64, which LiteRT does not support.",
            expected="float32 throughout",
            received=f"{len(doubled)} operations in float64: {', '.join(doubled[:3])} ...",
            fix="convert NumPy scalars, which turn results into float64: float(np.sqrt(8))",
        )
    if missing:
        return UserError(
            f"LiteRT has no kernel for {', '.join(missing)} in the model {name!r}.",
            expected="operators of LiteRT's built-in set",
            received=", ".join(f"tf.{op}" for op in missing),
            fix=operator_fix(missing),
        )
    if "TensorList" in text:
        return UserError(
            f"The model {name!r} has a loop that LiteRT cannot convert with a free batch size.",
            expected="unrolled loops, or an Input with a fixed batch_size",
            fix="give the Input a fixed length (recurrent layers are then unrolled), or a fixed "
            "batch_size",
        )
    # The operator may be named in the log only.
    refused = _OPERATOR_REFUSED.search(f"{text}\n{log}")
    return UserError(
        f"The model {name!r} could not be converted to LiteRT.",
        received=refused[0][:400] if refused else first_line(error),
        fix="see the chained error of the converter",
    )
