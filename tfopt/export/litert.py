"""A built Keras 3 model converted to LiteRT, through a SavedModel in a temporary folder.

Guarantees: the model is not changed; inputs and outputs keep their names and the batch stays
free; nothing is left in the temporary folder; a model that LiteRT cannot run raises a UserError
that names the operators.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np

from tfopt.compress.hooks import Hooks
from tfopt.compress.integers.convolutions import patches_by_blocks
from tfopt.compress.integers.own_code import (
    choosing_by_value,
    einsums_by_batch,
    keep_choices_apart,
    keep_indices_whole,
    truths_by_choice,
    turned_by_slices,
)
from tfopt.compress.integers.served_forms import unrolled_soundly
from tfopt.compress.model_graph import Ports, output_names
from tfopt.errors import UserError
from tfopt.job.rebuild import ONE_AT_A_TIME

if TYPE_CHECKING:
    import keras

# Keeps the converter's chatter off the terminal without losing anything else.
#
# Guarantees: known progress lines disappear; every other line written to standard error
# meanwhile, by whatever thread, appears afterwards, also after Ctrl-C; when the body fails, what
# was written is a note on the exception. Without a standard error there is nothing to be done.

_CHATTER = re.compile(
    r"""^(WARNING:\ All\ log\ messages\ before\ absl
      |[IW]\d{4}\ |\d{4}-\d\d-\d\d\ [\d:.]+:\ [IW]\ |INFO:\ |fully_quantize:\ |\s*$)""",
    re.VERBOSE,
)


@contextmanager
def quiet() -> Iterator[None]:
    """Hides what the converter and the interpreter say about their progress."""
    with ONE_AT_A_TIME, _quiet_python(), tempfile.TemporaryFile() as said:
        terminal = _terminal()
        if terminal is None:
            yield
            return
        _flush()
        os.dup2(said.fileno(), 2)
        noted = False
        try:
            yield
        except Exception as error:
            _flush()
            error.add_note("".join(_lines(said)))
            noted = True
            raise
        finally:
            _flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            if not noted:
                _tell(_lines(said))


def _terminal() -> int | None:
    """Standard error under another number; None where there is none to be kept quiet."""
    if sys.__stderr__ is None:
        # Closed when the process began: any file of the user's may have the number 2 by now.
        return None
    try:
        return os.dup(2)
    except OSError:
        return None


def _flush() -> None:
    # A program without a console has None there, and a closed one cannot be flushed.
    with suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()


def _tell(lines: list[str]) -> None:
    # What was made is not lost because nobody reads the lines any more.
    with suppress(OSError):
        for line in lines:
            os.write(2, line.encode())


def _lines(said: IO[bytes]) -> list[str]:
    said.seek(0)
    text = said.read().decode(errors="replace")
    return [line for line in text.splitlines(keepends=True) if not _CHATTER.match(line)]


@contextmanager
def _quiet_python() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in ("absl", "tensorflow")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        # The converter calibrates with the interpreter that it deprecates itself.
        warnings.filterwarnings("ignore", message=r"[\s\S]*tf\.lite\.Interpreter is deprecated")
        warnings.filterwarnings("ignore", message="Statistics for quantized inputs were expected")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


# A LiteRT file in which equal vectors are stored once: the same model, read in the same way.
#
# Guarantees: what is read from the new file is equal to what is read from the old one, and
# tensors lie as they must, on multiples of 16 bytes; where nothing is gained the file is the old
# one. A kernel with a range for each channel has a zero point of 8 bytes for each, and so has its
# bias: all of them zero, and more than a tenth of the file of a net with many channels.

# Of longer vectors none is equal to another, but for copies that the converter has shared.
_LONGEST_COMPARED = 1 << 16
_TENSORS_ALIGNED_TO = 16
# A builder that must grow doubles, and ends where that is beyond two gigabytes.
_ROOM_FOR_EACH = 64


def with_shared_vectors(content: bytes) -> bytes:
    """The file, smaller by what it holds twice."""
    # Of the TensorFlow that wrote the file, so that it knows all there is in it.
    schema: Any = import_module("tensorflow.lite.python.schema_py_generated")
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content, 0))
    if any(buffer.offset for buffer in model.buffers or ()):
        return content  # its tensors lie behind what is read here
    builder = _sharing_builder(len(content) + _ROOM_FOR_EACH * (len(model.buffers or ()) + 1))
    builder.Finish(model.Pack(builder), b"TFL3")
    smaller = bytes(builder.Output())
    return smaller if len(smaller) < len(content) else content


def _sharing_builder(size: int) -> Any:
    flatbuffers: Any = import_module("flatbuffers")

    class Sharing(flatbuffers.Builder):  # type: ignore[misc]
        """Hands out the place of an equal vector that is there."""

        def __init__(self) -> None:
            super().__init__(size)
            self._there: dict[tuple[str, bytes], int] = {}

        def CreateNumpyVector(self, x: Any) -> int:  # noqa: N802 (flatbuffers calls it so)
            if x.nbytes > _LONGEST_COMPARED:
                return self._written(x)
            key = x.dtype.str, x.tobytes()
            if key not in self._there:
                self._there[key] = self._written(x)
            return self._there[key]

        def _written(self, x: Any) -> int:
            # Tensors are the only vectors of bytes without a sign.
            aligned = _TENSORS_ALIGNED_TO if x.dtype == np.uint8 else x.dtype.alignment
            # What the builder writes next ends where this much is free of the boundary.
            self.Prep(aligned, x.nbytes)
            return int(super().CreateNumpyVector(x))

    return Sharing()


# A model traced under the names of its own layers, so that what is told of a file names them.
#
# Guarantees: the layers are as they were afterwards. Keras opens a layer's name twice in a call,
# to build it and to compute, and TensorFlow numbers the second one: ``conv2d`` would be told as
# ``conv2d_1``, which is another layer of the model.


@contextmanager
def named_as_layers(model: Any) -> Iterator[None]:
    """Inside it each layer of the model has one name, however often that is opened."""
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


Array = np.ndarray[Any, Any]
LitertMode = Literal["int8", "dynamic", "float16", "float32", "sparse"]

# Calibrating in batches is several times faster; the ranges found are the same.
_CALIBRATION_BATCH = 16
_MISSING_OP = re.compile(r"'tf\.(\w+)' op is neither a custom op nor a flex op")
_OPERATOR_REFUSED = re.compile(r"'\w+\.\w+' op .+")
_LOOPS = frozenset({"While", "StatelessWhile"})


class RefusedByConverter(UserError):
    """What the converter refuses for a reason of its own; in another form it may take it."""


@dataclass(frozen=True)
class Served:
    """A model's inference as one TensorFlow function with named inputs and outputs."""

    name: str
    ports: Ports
    outputs: tuple[str, ...]
    function: Any
    variables: tuple[Any, ...]

    def predict(self, inputs: Sequence[Array], batch: int = 256) -> list[Array]:
        """The float outputs, in the model's order."""
        step = self.ports.inputs[0].batch or batch
        parts = []
        for start in range(0, len(inputs[0]), step):
            rows = [_padded(a[start : start + step], self.ports.inputs[0].batch) for a in inputs]
            kept = min(step, len(inputs[0]) - start)
            result = self.function(*rows)
            parts.append([result[name].numpy()[:kept] for name in self.outputs])
        return [np.concatenate(column) for column in zip(*parts, strict=True)]


def serve(model: keras.Model, ports: Ports, *, integers: bool = False) -> Served:
    """Traces the model's inference (``training=False``), for a file of integers or of floats."""
    import keras
    import tensorflow as tf

    _refuse_state(model)
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
        with (
            named_as_layers(model),
            unrolled_soundly(model),
            turned_by_slices(),
            choosing_by_value(),
            truths_by_choice(),
            patches_by_blocks(),
            einsums_by_batch(),
        ):
            function = traced.get_concrete_function()
    except Exception as error:
        raise _not_traceable(model.name, str(error)) from error
    return Served(model.name, ports, names, function, tuple(v.value for v in model.variables))


def convert(
    served: Served,
    mode: LitertMode,
    *,
    examples: Sequence[Array] | None = None,
    integer_io: bool = False,
) -> bytes:
    """The content of a .tflite file; ``examples`` set the ranges of mode "int8".

    Mode "sparse" is float32 too, with kernels that are mostly zeros stored as such.
    """
    if mode == "int8":
        _refuse_loops(served)
    try:
        return with_shared_vectors(_converted(served, mode, examples, integer_io))
    except RefusedByConverter as error:
        raise _as_said(error) from error.__cause__


def _converted(
    served: Served, mode: LitertMode, examples: Sequence[Array] | None, integer_io: bool
) -> bytes:
    import tensorflow as tf

    with quiet(), tempfile.TemporaryDirectory(prefix="tfopt-") as folder:
        _save(served, folder)
        try:
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
            _configure(converter, mode, _feed(served, examples), integer_io)
            content: bytes = converter.convert()
        except Exception as error:
            raise _not_convertible(served, str(error)) from error
    return content


def _save(served: Served, folder: str) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.variables_kept = list(served.variables)
    try:
        tf.saved_model.save(module, folder, signatures=served.function)
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


def _feed(served: Served, examples: Sequence[Array] | None) -> Callable[[], Iterator[Any]]:
    """Calibration batches, all of one size: the calibrator fixes its shapes at the first."""
    names = [port.name for port in served.ports.inputs]

    def batches() -> Iterator[dict[str, Array]]:
        assert examples is not None
        size = served.ports.inputs[0].batch or min(_CALIBRATION_BATCH, len(examples[0]))
        for start in range(0, len(examples[0]), size):
            rows = [_padded(a[start : start + size], size) for a in examples]
            yield dict(zip(names, rows, strict=True))

    return batches


def _padded(values: Array, size: int | None) -> Array:
    """The rows repeated up to a fixed batch; a repeated row changes no range."""
    return values if size is None else np.resize(values, (size, *values.shape[1:]))


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


def _refuse_loops(served: Served) -> None:
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
    told = [line for line in lines if not line.startswith("Exception encountered")]
    return told[0][:400] if told else "no reason given"


def _as_said(error: RefusedByConverter) -> RefusedByConverter:
    """With the operator that the converter names, far behind its place or in its log alone."""
    log = "".join(getattr(error, "__notes__", ()))
    reason = _OPERATOR_REFUSED.search(f"{error.__cause__}\n{log}")
    received = reason[0][:400] if reason else error.received
    told = RefusedByConverter(error.what, received=received, fix=error.fix)
    told.add_note(log)
    return told


def _not_convertible(served: Served, text: str) -> UserError:
    name, doubled = served.name, _in_float64(served.function.graph)
    if doubled:
        return UserError(
            f"The model {name!r} computes in float64, which LiteRT does not.",
            expected="float32 throughout",
            received=f"{len(doubled)} operations in float64: {', '.join(doubled[:3])} ...",
            fix="a NumPy number makes what it is combined with float64: write float(np.sqrt(8))",
        )
    missing = sorted(set(_MISSING_OP.findall(text)))
    if missing:
        return UserError(
            f"LiteRT has no kernel for {', '.join(missing)} in the model {name!r}.",
            expected="operators of LiteRT's built-in set",
            received=", ".join(f"tf.{op}" for op in missing),
            fix="replace the layer that uses it, keep that step outside the model (text and "
            "lookups belong before it), or serve a SavedModel instead",
        )
    if "div.cc" in text:
        return UserError(
            f"The model {name!r} divides by integers that are zero.",
            expected="a division by values that stay away from zero",
            received=_first_line(text),
            fix="divide outside a call() of your own, and by what has a lowest value: "
            "keras.ops.maximum(x, 0.1)",
        )
    if "TensorList" in text:
        return UserError(
            f"The model {name!r} holds a loop that LiteRT cannot convert with a free batch.",
            expected="loops that are unrolled, or an Input with a fixed batch_size",
            fix="give the Input a fixed length (tfopt then unrolls recurrent layers), or a "
            "fixed batch_size",
        )
    return RefusedByConverter(
        f"The model {name!r} could not be converted to LiteRT.",
        received=_first_line(text),
        fix="see the chained error for the converter's own words",
    )


def _in_float64(graph: Any) -> list[str]:
    """What a graph computes in float64 from its inputs, in its order; the rest is folded."""
    kept = {tensor.op.name for tensor in graph.internal_captures}
    computed = {tensor.op.name for tensor in graph.inputs} - kept
    found = []
    for operation in graph.get_operations():
        if not computed.isdisjoint(tensor.op.name for tensor in operation.inputs):
            computed.add(operation.name)
        if (
            operation.name in computed
            and operation.type not in ("Cast", "Identity")
            and any(result.dtype == np.float64 for result in operation.outputs)
        ):
            found.append(f"{operation.name} ({operation.type})")
    return found


def _mib(served: Served) -> int:
    return sum(4 * int(np.prod(v.shape)) for v in served.variables) // 2**20 + 1
