"""Write a Keras model as files for serving, each compared with the model before it is kept."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tfopt.compress.examples import run_all
from tfopt.compress.float_copy import require_plain_weights
from tfopt.compress.model_graph import Array
from tfopt.compress.strip import apply_final, awareness_of
from tfopt.errors import UserError, require_count
from tfopt.export.exported import (
    Exported,
    ExportedFile,
    Refused,
    folder_name,
    why_refused,
    write_facts,
    write_summary,
)
from tfopt.export.formats.format import (
    CALIBRATED,
    PRECISIONS,
    Format,
    Graph,
    Precision,
    Signature,
)
from tfopt.export.formats.roster import FORMATS
from tfopt.export.parity import compare, require_drop
from tfopt.export.reference import ExportData, Reference, make_reference
from tfopt.files import prepared_folder
from tfopt.job.cgroup import usable_cores
from tfopt.job.model_checks import require_built_keras3
from tfopt.job.plain_values import did_you_mean
from tfopt.subprocesses import Child

if TYPE_CHECKING:
    import keras

_DEFAULT_FORMATS = ("saved_model", "litert")
_DROPS: dict[Precision, float] = {"float32": 0.1, "float16": 1.0}
_DROP = 10.0
"""Default max_drop for fewer bits, in points: percent of changed classes, or relative error."""


def export(
    model: keras.Model,
    folder: str | os.PathLike[str],
    *,
    formats: str | Sequence[str] | None = None,
    precision: Precision | Sequence[Precision] = "float32",
    calibration: Any = None,
    examples: Any = None,
    samples: int = 256,
    max_drop: float | None = None,
) -> Exported:
    """Write a trained model for serving, each file compared with the model before it is kept.

    Args:
        model: A built Keras 3 model, or a .keras file; mixed precision and models of a strategy
            are exported in float32. It is not changed.
        folder: The folder of the files, with a subfolder per file, such as ``litert_int8``.
        formats: "saved_model", "litert", "onnx", "openvino"; for GPUs "saved_model_xla",
            "onnx_cuda", "tensorrt"; or several, each written in the precisions that it supports.
            Default: the first two, if they support one.
        precision: "float32", "float16", "int8", "int16" (activations; weights int8), "dynamic"
            (int8 weights, activations quantized at run time), "weight_only", "int4"; or several.
        calibration: Examples as ``fit`` takes them, for "int8" and "int16"; of a ``tfopt.Data``
            its train part.
        examples: The examples on which files are compared, (x, y) for a score as well; of a
            ``tfopt.Data`` its test part. Default: the calibration data, else noise.
        samples: The number of examples used, of each.
        max_drop: The most that a file may lose, in points: percent of changed classes, or relative
            error. Default: 0.1 for float32, 1 for float16, 10 for the others.

    Returns:
        An :class:`Exported`; printed, it is a table.

    Raises:
        UserError: The model is not built, a format or a precision is unknown, integers have no
            ``calibration``, or no file could be written; the reasons are in the error.

    Example:
        >>> print(tfopt.export(model, "served", formats="litert", precision="int8", calibration=x))
    """
    wanted = _pairs(formats, precision)
    validate_settings(wanted, calibration, samples, max_drop)
    from tfopt.compress.saved import as_model

    model = as_model(model)
    require_exportable(model)
    given = ExportData.read(model, calibration, examples, samples)
    on_gpu = any("cpu" not in kind.devices for kind, _ in wanted)
    with prepared_folder(Path(folder)) as target, Child(gpu=on_gpu) as child:
        exported = write_all(model, given, wanted, target, max_drop, child)
    write_summary(exported)
    return exported


def validate_settings(
    wanted: Sequence[tuple[Format, Precision]], calibration: Any, samples: int, max_drop: Any
) -> None:
    """Raise for invalid settings, whatever the model is."""
    require_count("samples", samples)
    require_drop(max_drop, optional=True)
    if calibration is None and (asked := [p for _, p in wanted if p in CALIBRATED]):
        raise UserError(
            f"Precision {asked[0]!r} needs calibration examples for its ranges.",
            expected="a few hundred examples of the training data",
            received="no calibration data",
            fix="pass calibration=x_train",
        )


def write_all(
    model: keras.Model,
    given: ExportData,
    wanted: Sequence[tuple[Format, Precision]],
    target: Path,
    max_drop: float | None,
    child: Callable[..., Any],
) -> Exported:
    """Write a model's files into a folder, each compared with it; raise if none can be written."""
    with tempfile.TemporaryDirectory(prefix="tfopt-") as beside:
        reference = make_reference(model, given, Path(beside), wanted)
        results = list(write_files(reference, wanted, target, child, max_drop))
    files = tuple(file for file in results if isinstance(file, ExportedFile))
    refused = tuple(file for file in results if isinstance(file, Refused))
    if not files:
        raise UserError(
            f"No file of {model.name!r} could be written.",
            received="; ".join([*why_refused(refused), *reference.notes]),
        )
    score, _ = reference.score(reference.expected)
    return Exported(target, files, refused, score, reference.notes)


def require_exportable(model: Any) -> None:
    """Raise for a model that cannot be exported to any format."""
    require_built_keras3(model)
    require_plain_weights(model)
    if awareness_of(model):
        raise UserError(
            f"The model {model.name!r} is quantization-aware.",
            expected="a plain model",
            received="a quantization-aware model",
            fix="call tfopt.strip(model) first: it writes the rounded kernels into a plain model",
        )
    apply_final(model)


def _pairs(formats: Any, precision: Any) -> list[tuple[Format, Precision]]:
    """Return the pairs of formats and precisions to write.

    Raises for unknown names, formats that are not installed, and names without any file.
    """
    kinds: list[Any] = known_names("precision", precision, PRECISIONS)
    if formats is None:
        fitting = [n for n in _DEFAULT_FORMATS if {*kinds} & {*FORMATS[n].precisions}]
        formats = fitting or list(_DEFAULT_FORMATS)
    names = known_names("format", formats, FORMATS)
    for name in names:
        FORMATS[name].require()
    wanted = dict.fromkeys(
        (FORMATS[name], kind)
        for name in names
        for kind in kinds
        if kind in FORMATS[name].precisions
    )
    written = {part for kind, precision in wanted for part in (kind.name, precision)}
    for idle in (part for part in (*names, *kinds) if part not in written):
        raise UserError(
            f"No file would be written for {idle!r}.",
            expected="; ".join(f"{name}: {', '.join(FORMATS[name].precisions)}" for name in names),
            received=f"{', '.join(names)} in {', '.join(kinds)}",
            fix=f"leave out {idle!r}, or name a format or a precision that it has",
        )
    return list(wanted)


def known_names(what: str, given: str | Sequence[str], known: Collection[str]) -> list[str]:
    """Return one name or several as a list; raise for unknown names."""
    names = [given] if isinstance(given, str) else list(given)
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise UserError(
            f"Unknown {what}.",
            expected=", ".join(known),
            received=", ".join(map(repr, unknown)) or "none",
            fix=did_you_mean(str(unknown[0]), [*known]) if unknown else None,
        )
    return names


def write_files(
    reference: Reference,
    wanted: Sequence[tuple[Format, Precision]],
    target: Path,
    child: Callable[..., Any],
    max_drop: float | None,
) -> Iterator[ExportedFile | Refused]:
    """Write and compare the files one after the other; yield the results."""
    for kind, precision in wanted:
        place = target / folder_name(kind.name, precision, reference.variant)
        limit = _DROPS.get(precision, _DROP) if max_drop is None else max_drop
        try:
            yield _compared_file(reference, kind, precision, place, child, limit)
        except (UserError, RuntimeError) as error:
            reason = one_line(error)
            if place.exists():
                reason += "; the file of an earlier export is still in its folder"
            yield Refused(kind.name, precision, reason, reference.variant)


def _compared_file(
    reference: Reference,
    kind: Format,
    precision: Precision,
    place: Path,
    child: Callable[..., Any],
    limit: float,
) -> ExportedFile:
    form, graphs = _form(reference, kind, precision), reference.graphs
    with tempfile.TemporaryDirectory(prefix=".tfopt-", dir=place.parent) as beside:
        # The folder has its final name, which is in Triton's settings.
        staged = Path(beside) / place.name
        staged.mkdir()
        notes = child(kind.write, graphs, form, precision, staged)
        outputs = child(file_outputs, kind, staged, graphs.signature, reference.given.examples)
        file = exported_file(reference, kind, precision, staged, outputs, notes)
        failure = file.parity.failure(limit)
        if failure is not None:
            raise UserError(
                f"{failure}: {file.parity.summary()}{_worst(reference, outputs)}",
                fix="give more calibration examples, scaled as in the training; or use another "
                "precision; or raise max_drop",
            )
        write_facts(file)
        if place.exists():
            shutil.rmtree(place)
        staged.rename(place)
    return replace(file, folder=place)


def exported_file(
    reference: Reference,
    kind: Format,
    precision: Precision,
    folder: Path,
    outputs: Sequence[Array],
    notes: Sequence[str],
) -> ExportedFile:
    """Return the facts of a file that was written and run."""
    score, scored_by = reference.score(outputs)
    return ExportedFile(
        format=kind.name,
        precision=precision,
        folder=folder,
        kib=sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) / 1024,
        parity=compare(reference.expected, outputs, classifier=reference.classifier),
        score=score,
        scored_by=scored_by,
        signature=reference.graphs.signature,
        notes=tuple(notes),
        variant=reference.variant,
    )


def _form(reference: Reference, kind: Format, precision: Precision) -> Graph:
    choices = kind.forms(precision)
    for form in choices:
        if form in reference.graphs.forms:
            return form
    raise reference.failed[choices[0]]


def _worst(reference: Reference, outputs: Sequence[Array]) -> str:
    """Return the name of the output with the largest error, if there are several."""
    names = reference.graphs.signature.outputs
    if len(names) == 1:
        return ""
    pairs = zip(reference.expected, outputs, strict=True)
    errors = [compare([e], [a]).relative_error for e, a in pairs]
    return f", worst in the output {names[int(np.argmax(errors))]!r}"


def one_line(error: Exception) -> str:
    """Return an error in one line, with what was received and the fix."""
    if not isinstance(error, UserError):
        return str(error)
    parts = [error.what, error.received and f"received: {error.received}", error.fix]
    return "; ".join(str(part).removesuffix(".") for part in parts if part)


# In the child process


def file_outputs(
    kind: Format, folder: Path, signature: Signature, examples: Sequence[Array]
) -> Any:
    """Return a file's outputs for examples, on all cores."""
    run = kind.open(folder, signature, threads=usable_cores())
    return run_all(run, examples, signature.batch)
