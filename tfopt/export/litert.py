"""A built Keras 3 model converted to LiteRT, through a SavedModel in a temporary folder.

Inputs and outputs keep their names and the batch stays free. A model that LiteRT cannot run raises
a UserError that names the operators.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tfopt.compress.hooks import Hooks
from tfopt.compress.integers.functions import functions_of_litert
from tfopt.compress.integers.graph_edits import keep_choices_apart, keep_indices_whole
from tfopt.compress.integers.served_forms import served_forms
from tfopt.compress.integers.tracing import as_served, shapes_while_running
from tfopt.compress.integers.unrolled import unrolled_soundly
from tfopt.compress.model_graph import Ports, output_names
from tfopt.errors import UserError
from tfopt.export.batches import Array, padded, run_all
from tfopt.export.formats.format import way_round
from tfopt.export.quiet import quiet
from tfopt.export.shared_vectors import with_shared_vectors

if TYPE_CHECKING:
    import keras

LitertMode = Literal["int8", "dynamic", "float16", "float32", "sparse"]

# Calibrating in batches is several times faster; the ranges found are the same.
_CALIBRATION_BATCH = 16
_MISSING_OP = re.compile(r"'tf\.(\w+)' op is neither a custom op nor a flex op")
_OPERATOR_REFUSED = re.compile(r"'\w+\.\w+' op .+")
_LOOPS = frozenset({"While", "StatelessWhile"})


class RefusedByConverter(UserError):
    """What the converter refuses for a reason of its own; in another form it may take it."""


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
    """Give each layer of the model one name inside, however often that is opened.

    Keras opens a layer's name twice in a call, to build it and to compute, and TensorFlow numbers
    the second one: ``conv2d`` would be ``conv2d_1`` in the file, which is another layer.
    """
    hooks = Hooks()
    try:
        for layer in model._flatten_layers():
            if hasattr(layer, "_open_name_scope"):
                hooks.replace(layer, "_open_name_scope", _once(layer, layer._open_name_scope))
        yield
    finally:
        hooks.take_off()


def _once(layer: Any, plain: Callable[[], Any]) -> Callable[[], Any]:
    import tensorflow as tf

    def opened() -> Any:
        scope = plain()
        around = tf.get_current_name_scope()
        # A name that ends so is taken as it is.
        name = f"{around}/{layer.name}/" if around else f"{layer.name}/"
        if hasattr(scope, "_tf_name_scope"):
            scope._tf_name_scope = tf.name_scope(name)
        return scope

    return opened


def trace(model: keras.Model, ports: Ports) -> Traced:
    """Trace the model's inference (``training=False``) as Keras computes it."""
    return _traced(model, ports, named_as_layers(model))


def serve(model: keras.Model, ports: Ports, *, integers: bool = False) -> Traced:
    """Trace the model's inference in the forms that LiteRT computes best, without loops."""
    _refuse_state(model)
    with ExitStack() as around:
        for each in (
            served_forms(model, integers=integers),
            named_as_layers(model),
            unrolled_soundly(model),
            functions_of_litert(),
        ):
            around.enter_context(each)
        return _traced(model, ports, around.pop_all(), integers=integers)


def _traced(
    model: keras.Model,
    ports: Ports,
    around: AbstractContextManager[Any],
    *,
    integers: bool = False,
) -> Traced:
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
        flat = keras.tree.flatten(result)
        if integers:
            keep_choices_apart(tf.compat.v1.get_default_graph(), flat)
            keep_indices_whole(tf.compat.v1.get_default_graph())
        return dict(zip(names, flat, strict=True))

    traced = tf.function(infer, input_signature=specs, autograph=False)
    try:
        with around:
            function = traced.get_concrete_function()
    except Exception as error:
        raise _not_traceable(model.name, str(error)) from error
    return Traced(model.name, ports, names, function, tuple(v.value for v in model.variables))


def convert_model(
    model: keras.Model,
    ports: Ports,
    mode: LitertMode,
    *,
    integers: bool,
    examples: Sequence[Array] | None = None,
    integer_io: bool = False,
) -> tuple[Traced, bytes]:
    """Return a model's inference as it is served, and its file.

    Where the converter refuses shapes that are known, it may take those of a running model.
    """

    def made() -> tuple[Traced, bytes]:
        with as_served():
            served = serve(model, ports, integers=integers)
        return served, convert(served, mode, examples=examples, integer_io=integer_io)

    try:
        return made()
    except RefusedByConverter:
        with shapes_while_running():
            return made()


def convert(
    served: Traced,
    mode: LitertMode,
    *,
    examples: Sequence[Array] | None = None,
    integer_io: bool = False,
) -> bytes:
    """Return the content of a .tflite file; ``examples`` set the ranges of mode "int8".

    Mode "sparse" is float32 too, with kernels that are mostly zeros stored as such.
    """
    import tensorflow as tf

    if mode == "int8":
        _refuse_loops(served)
    try:
        with quiet(), tempfile.TemporaryDirectory(prefix="tfopt-") as folder:
            save(served, Path(folder))
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
            _configure(converter, mode, _feed(served, examples), integer_io)
            content: bytes = converter.convert()
    except UserError:
        raise
    except Exception as error:
        log = "".join(getattr(error, "__notes__", ()))
        raise _not_convertible(served, str(error), log) from error
    return with_shared_vectors(content)


def save(served: Traced, folder: Path, owner: Any = None) -> Path:
    """Write a traced model as a SavedModel; return its folder.

    ``owner`` is the model itself where more than its variables must go with it, such as tables.
    """
    import tensorflow as tf

    module = tf.Module()
    # The seeds of random layers are among the variables alone.
    module.kept = [*served.variables, owner]
    try:
        tf.saved_model.save(module, str(folder), signatures=served.function)
    except (OSError, tf.errors.OpError) as error:
        raise UserError(
            "The temporary copy that the conversion needs could not be written.",
            expected=f"about {_mib(served)} MiB free in {tempfile.gettempdir()}",
            received=_first_line(str(error)),
            fix="free space there, or point TMPDIR at another folder",
        ) from error
    except AssertionError as error:
        if "untracked" not in str(error):
            raise
        raise UserError(
            f"The model {served.name!r} looks things up in a table, which a LiteRT file has not.",
            expected="a model that begins behind its TextVectorization, StringLookup, ...",
            received=_first_line(str(error)),
            fix="build the model for serving from the layers behind it, and look up before it",
        ) from error
    return folder


def _configure(
    converter: Any, mode: LitertMode, feed: Callable[[], Iterator[Any]], integer_io: bool
) -> None:
    import tensorflow as tf

    if mode == "float32":
        return
    sparse = mode == "sparse"
    kind = tf.lite.Optimize.EXPERIMENTAL_SPARSITY if sparse else tf.lite.Optimize.DEFAULT
    converter.optimizations = [kind]
    if mode == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if mode == "int8":
        converter.representative_dataset = feed
        # The second set lets an operator without an integer kernel stay in float: it is
        # reported, where refusing the whole model would help nobody.
        converter.target_spec.supported_ops = [
            tf.lite.OpsSet.TFLITE_BUILTINS_INT8,
            tf.lite.OpsSet.TFLITE_BUILTINS,
        ]
        if integer_io:
            converter.inference_input_type = tf.int8
            converter.inference_output_type = tf.int8


def _feed(served: Traced, examples: Sequence[Array] | None) -> Callable[[], Iterator[Any]]:
    """Return calibration batches, all of one size: the calibrator fixes its shapes at the first."""
    names = [port.name for port in served.ports.inputs]

    def batches() -> Iterator[dict[str, Array]]:
        assert examples is not None
        size = served.ports.inputs[0].batch or min(_CALIBRATION_BATCH, len(examples[0]))
        for start in range(0, len(examples[0]), size):
            # A repeated row changes no range.
            rows = [padded(a[start : start + size], size) for a in examples]
            yield dict(zip(names, rows, strict=True))

    return batches


def _refuse_state(model: keras.Model) -> None:
    stateful = [
        layer.name for layer in model._flatten_layers() if getattr(layer, "stateful", False) is True
    ]
    if stateful:
        raise UserError(
            f"The model {model.name!r} keeps a state from one call to the next.",
            expected="recurrent layers with stateful=False: a LiteRT file forgets between calls",
            received=", ".join(stateful[:5]),
            fix="build it with stateful=False and set_weights, or give it its state as an input",
        )


def _refuse_loops(served: Traced) -> None:
    graph = served.function.graph.as_graph_def()
    nodes = [n for f in graph.library.function for n in f.node_def] + list(graph.node)
    loops = [node.name for node in nodes if node.op in _LOOPS]
    if loops:
        raise UserError(
            f"The model {served.name!r} holds a loop, and calibrating one ends the whole process.",
            expected='a model without while loops for mode="int8"',
            received=", ".join(loops[:3]),
            fix='unroll the loop, or use mode="dynamic"',
        )


def _not_traceable(name: str, text: str) -> UserError:
    if "Cannot unroll" in text:
        return UserError(
            f"The model {name!r} is recurrent over sequences of any length.",
            expected="a fixed length: LiteRT gets recurrent layers unrolled",
            fix="build the model for serving with keras.Input((length, features)) and set_weights",
        )
    return UserError(
        f"The model {name!r} cannot be turned into a TensorFlow graph.",
        received=_first_line(text),
        fix="let call() use keras.ops or TensorFlow only, and accept training=False",
    )


def _first_line(text: str) -> str:
    # Keras puts the place before the cause, separated by an empty line.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if not line.startswith("Exception encountered")]
    return causes[0][:400] if causes else "no reason given"


def _not_convertible(served: Traced, text: str, log: str) -> UserError:
    name, missing = served.name, sorted(set(_MISSING_OP.findall(text)))
    doubled = [
        f"{each.name} ({each.type})"
        for each in served.function.graph.get_operations()
        if each.type in missing and any(result.dtype == np.float64 for result in each.outputs)
    ]
    if doubled:
        return UserError(
            f"The model {name!r} computes in float64, which LiteRT does not.",
            expected="float32 throughout",
            received=f"{len(doubled)} operations in float64: {', '.join(doubled[:3])} ...",
            fix="a NumPy number makes what it is combined with float64: write float(np.sqrt(8))",
        )
    if missing:
        return UserError(
            f"LiteRT has no kernel for {', '.join(missing)} in the model {name!r}.",
            expected="operators of LiteRT's built-in set",
            received=", ".join(f"tf.{op}" for op in missing),
            fix=way_round(missing),
        )
    if "TensorList" in text:
        return UserError(
            f"The model {name!r} holds a loop that LiteRT cannot convert with a free batch.",
            expected="loops that are unrolled, or an Input with a fixed batch_size",
            fix="give the Input a fixed length (tfopt then unrolls recurrent layers), or a "
            "fixed batch_size",
        )
    # Which operator is refused may be in the log alone.
    refused = _OPERATOR_REFUSED.search(f"{text}\n{log}")
    return RefusedByConverter(
        f"The model {name!r} could not be converted to LiteRT.",
        received=refused[0][:400] if refused else _first_line(text),
        fix="see the chained error for the converter's own words; a division by what is rounded "
        "to zero needs keras.ops.maximum(x, 0.1)",
    )


def _mib(served: Traced) -> int:
    return sum(4 * int(np.prod(v.shape)) for v in served.variables) // 2**20 + 1
