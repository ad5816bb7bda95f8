"""Write a saved model for serving, ``tfopt export``, or find its best file, ``tfopt optimize``."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.commands import arguments
from tfopt.errors import UserError
from tfopt.files import keras_file
from tfopt.recipes.flags import add_flags, add_output, in_flags, names, points

if TYPE_CHECKING:
    import keras

    from tfopt.job.job import Job
    from tfopt.job.transform import Transform

_EXPORT = """\
Writes a saved Keras model in all --formats and --precision, and compares each file with the model;
a file that loses too much is deleted. Exit code 1: some could not be made."""
_EXPORT_EXAMPLES = """\
examples:
  tfopt export model.keras --formats saved_model,onnx
  tfopt export model.keras --formats litert --precision int8 --calibration my_package.data:train
"""

_OPTIMIZE = """\
Writes a saved Keras model in all formats that are installed and all their precisions, compares and
scores each file, measures one call of it in turns with the others, and keeps the best. Prints
the table, and the code that loads the best file without tfopt."""
_OPTIMIZE_EXAMPLES = """\
examples:
  tfopt optimize model.keras --data my_package.data:data
  tfopt optimize model.keras --data examples.npz --target size --max-drop 1
"""

# TensorFlow would report the GPU that is not here as an error.
_NO_LOG = ("TF_CPP_MIN_LOG_LEVEL", "3")
_DATA = (
    "package.module:name of a function that returns (x, y), a dataset, or "
    "tfopt.Data(train=..., test=...); or a .npz file with x and y"
)


def add_export(commands: Any) -> None:
    """Add ``tfopt export``."""
    parser = arguments.add_command(
        commands,
        "export",
        _export,
        help="write a saved model for serving, each file compared with it",
        description=_EXPORT,
        epilog=_EXPORT_EXAMPLES,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a .keras file")
    _add_choices(parser, "saved_model and litert, where they have the precision", "float32")
    parser.add_argument("--calibration", metavar="DATA", help=f"for int8 and int16: {_DATA}")
    parser.add_argument(
        "--examples", metavar="DATA", help=f"to compare the files with the model on: {_DATA}"
    )
    parser.add_argument(
        "--max-drop",
        type=points,
        metavar="POINTS",
        help="how much a file may lose, in percent of changed classes or of a relative error "
        "(default: 0.1 for float32, 1 for float16, 10 for the others)",
    )
    add_flags(parser, "--json")
    add_output(parser, "NAME_served")


def add_optimize(commands: Any) -> None:
    """Add ``tfopt optimize``."""
    parser = arguments.add_command(
        commands,
        "optimize",
        _optimize,
        help="find the fastest or smallest file of a saved model",
        description=_OPTIMIZE,
        epilog=_OPTIMIZE_EXAMPLES,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="a .keras file")
    parser.add_argument("--data", required=True, metavar="DATA", help=_DATA)
    parser.add_argument(
        "--target",
        choices=("cpu-latency", "gpu-latency", "size"),
        default="cpu-latency",
        help="what to minimize (default: cpu-latency)",
    )
    arguments.add_max_drop(
        parser, "points of accuracy, or percent of the mean absolute error, that may be lost"
    )
    _add_choices(parser, "all that are installed", None)
    parser.add_argument(
        "--job",
        metavar="MODULE:NAME",
        help="how to train the model further: also tries it with a third of its channels removed, "
        "and trained for integers",
    )
    parser.add_argument(
        "--chain",
        type=Path,
        metavar="FILE",
        help="with --job: the transforms of this recipe file instead, each by itself",
    )
    number = partial(parser.add_argument, type=int, metavar="N")
    number("--samples", default=1000, help="examples to score (default: 1000)")
    number("--batch-size", default=1, dest="batch", help="examples in a call (default: 1)")
    number("--threads", default=1, help="CPU threads (default: 1)")
    add_flags(parser, "--json")
    add_output(parser, "NAME_optimized")


def _add_choices(parser: argparse.ArgumentParser, formats: str, precisions: str | None) -> None:
    parser.add_argument(
        "--formats",
        type=names,
        metavar="NAME,NAME",
        help="saved_model, litert, onnx, openvino; for GPUs saved_model_xla, onnx_cuda, tensorrt "
        f"(default: {formats})",
    )
    parser.add_argument(
        "--precision",
        type=names,
        default=precisions and [precisions],
        metavar="NAME,NAME",
        help="float32, float16, int8, int16, dynamic, weight_only, int4 "
        f"(default: {precisions or 'all'})",
    )


def _export(options: argparse.Namespace) -> int:
    keras_file(options.model)  # before TensorFlow loads
    os.environ.setdefault(*_NO_LOG)
    from tfopt.export.export import export

    with arguments.json_alone(options):
        exported = export(
            options.model,
            options.output or Path(f"{options.model.stem}_served"),
            formats=options.formats,
            precision=options.precision,
            calibration=_read(options.calibration),
            examples=_read(options.examples),
            max_drop=options.max_drop,
        )
    exported = _in_flags(exported, options.parser)
    _print(exported, options, f"{exported}\nin {exported.folder.resolve()}")
    return 1 if exported.refused else 0


def _optimize(options: argparse.Namespace) -> int:
    keras_file(options.model)
    os.environ.setdefault(*_NO_LOG)
    from tfopt.export.optimize import optimize

    with arguments.json_alone(options):
        found = optimize(
            options.model,
            _read(options.data),
            folder=options.output or Path(f"{options.model.stem}_optimized"),
            target=options.target,
            max_drop=options.max_drop,
            formats=options.formats,
            precision=options.precision,
            samples=options.samples,
            batch=options.batch,
            threads=options.threads,
            variants=_variants(options.job, options.chain),
        )
    found = _in_flags(found, options.parser)
    _print(found, options, str(found))
    return 0


def _in_flags(found: Any, parser: argparse.ArgumentParser) -> Any:
    """Return a result whose notes and reasons name the flags of the command."""
    refused = [replace(file, reason=in_flags(file.reason, parser)) for file in found.refused]
    notes = [in_flags(note, parser) for note in found.notes]
    return replace(found, notes=tuple(notes), refused=tuple(refused))


def _variants(
    job: str | None, recipe: Path | None
) -> dict[str, Callable[[keras.Model], keras.Model]]:
    """Return by name how to train the model further: under each transform of a chain alone."""
    from tfopt.compress.quantize_aware import QuantizeAware
    from tfopt.compress.remove_channels import RemoveChannels
    from tfopt.job.recipe_file import read_recipe
    from tfopt.job.references import resolve_job
    from tfopt.job.roster import transform_name

    if job is None:
        if recipe is not None:
            raise UserError(
                "--chain needs --job, which trains under it.",
                expected="--job package.module:function beside --chain",
                received="--chain alone",
            )
        return {}
    plain = resolve_job(job, {})
    parts = read_recipe(recipe).chain.parts if recipe else (RemoveChannels(0.3), QuantizeAware())
    return {transform_name(transform): partial(_trained, plain, transform) for transform in parts}


def _trained(job: Job, transform: Transform, model: keras.Model) -> keras.Model:
    """Return a copy of the model, trained further under a transform, as an ordinary float model."""
    from tfopt.compress.strip import strip
    from tfopt.job.rebuild import blueprint
    from tfopt.run import run

    return strip(run(job.with_(build=blueprint(model)), transform, verbose=0).model)


def _print(found: Any, options: argparse.Namespace, text: str) -> None:
    print(json.dumps(asdict(found), indent=1, default=str) if options.json else text)


def _read(text: str | None) -> Any:
    """Return the data that a function returns, or a file holds."""
    if text is None:
        return None
    if text.endswith(".npz"):
        return _arrays(Path(text).expanduser())
    from tfopt.job.references import resolve_function

    if ":" not in text:
        raise UserError("The data cannot be read.", expected=_DATA, received=text)
    return resolve_function(text)()


def _arrays(path: Path) -> Any:
    import numpy as np

    try:
        with np.load(path) as kept:
            names = set(kept.files)
            if "x" in names:
                return (kept["x"], kept["y"]) if "y" in names else kept["x"]
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} cannot be read.", expected="a .npz file", received=str(error)
        ) from error
    raise UserError(
        f"{path} has no array x.",
        expected="x, and y for labels",
        received=", ".join(sorted(names)),
        fix="numpy.savez(path, x=x_test, y=y_test)",
    )
