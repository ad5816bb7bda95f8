"""Find the best file of a trained model among formats and precisions, by measurement."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tfopt.compress.examples import padded
from tfopt.data.sources.open import open_part, open_source
from tfopt.errors import UserError, in_short, require_count, require_one_of
from tfopt.export.bits import fewer_bits
from tfopt.export.export import (
    known_names,
    one_line,
    require_exportable,
    write_files,
)
from tfopt.export.exported import (
    ExportedFile,
    Refused,
    folder_name,
    refused_row,
    score_cell,
    why_refused,
    write_facts,
)
from tfopt.export.formats.format import PRECISIONS, Format, Precision
from tfopt.export.formats.roster import FORMATS
from tfopt.export.latency import Measured, Times, call_s, compare_times, measure_files
from tfopt.export.parity import require_drop
from tfopt.export.reference import ExportData, Reference, make_reference
from tfopt.files import prepared_folder
from tfopt.job.parts import Data
from tfopt.report.display import Display, Verbose, require_verbose
from tfopt.report.format import NOTHING, by_reason, count, factor, speed_and_interval
from tfopt.report.statistics import Comparison
from tfopt.report.table import Cell, Column, Table, figure, speed
from tfopt.subprocesses import Child

if TYPE_CHECKING:
    import keras

Target = Literal["cpu-latency", "gpu-latency", "size"]
TARGETS: tuple[Target, ...] = get_args(Target)
_ANY_LOSS = 100.0
"""max_drop of the outputs where the score decides."""


@dataclass(frozen=True)
class TriedFile:
    """A measured file.

    Attributes:
        file: The file.
        drop: The loss of score against the model: points of accuracy, or percent of the mean
            absolute error; None without labels.
        latency_ms: The time of one call: the reference's median, times the ratio in ``latency``,
            since not all files are timed at the same time; None if not measured.
        latency: The time relative to the reference in the same turns, with its 95 % interval. The
            reference is the model's own graph in TensorFlow if that was tried, else the first file.
        lost: Why it is not the winner; empty for the winner.
    """

    file: ExportedFile
    drop: float | None
    latency_ms: float | None = None
    latency: Comparison | None = None
    lost: str = ""


@dataclass(frozen=True)
class Optimized:
    """The best file of a model, and why the others lost; printed, a table.

    Attributes:
        winner: The best file within ``max_drop``.
        candidates: All files that could be written, the winner first. Only the winner is kept
            (``tfopt.export`` writes another one again).
        refused: The files that could not be written, with their reasons.
        target: The target.
        max_drop: The allowed loss of score.
        score: The score of the Keras model.
        reference: The name of the file that latencies are compared with.
        batch: Examples per measured call.
        threads: CPU threads of the engines.
        notes: Remarks on all files.
    """

    winner: ExportedFile
    candidates: tuple[TriedFile, ...]
    refused: tuple[Refused, ...]
    target: Target
    max_drop: float
    score: float | None
    reference: str
    batch: int
    threads: int
    notes: tuple[str, ...] = ()

    def code(self) -> str:
        """Return a few lines of Python that load and call the winner without tfopt."""
        return self.winner.code()

    def __str__(self) -> str:
        refused = why_refused(self.refused, "{}: not written: {}")
        title, lines = self._in_words()
        return "\n".join([str(self._table()), *refused, *lines, title, self.code()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the candidates as a table for a notebook, and the code that loads the winner."""
        from tfopt.report.notebook import as_fragment

        title, lines = self._in_words()
        table = self._table()
        rows = (*table.rows, *map(refused_row, self.refused))
        return as_fragment(title, replace(table, rows=rows), lines=lines, code=self.code())

    def _table(self) -> Table:
        rows = ((candidate.file.name, candidate) for candidate in self.candidates)
        table = Table.of(_columns(self.reference), rows, self.winner.name)
        files = [candidate.file for candidate in self.candidates]
        notes = by_reason((file.name, note) for file in files for note in file.notes)
        return replace(table, notes=(*notes, *self.notes))

    def _in_words(self) -> tuple[str, list[str]]:
        """Return the title, and the lines below the table."""
        again = "" if self.target == "size" else "; the fastest in three processes each"
        how = f"Calls of {count(self.batch, 'example')}, {count(self.threads, 'thread')}"
        lines = [
            f"{how}, in interleaved turns{again}. A ratio compares turns side by side; ms are "
            f"the median of {self.reference}, divided by the ratio."
        ]
        if self.score is not None:
            lines.insert(0, f"The Keras model's score: {self.score:.4g}.")
        return f"{self.winner.name}: {self.winner.path}", lines


def _columns(reference: str) -> tuple[Column, ...]:
    return (
        Column("KiB", make=lambda row: figure(row.file.kib, "")),
        Column("ms a call", make=lambda row: figure(row.latency_ms, "not measured")),
        Column(
            f"Faster than {reference}",
            make=lambda row: speed(row.latency) if row.latency else Cell(NOTHING),
        ),
        Column("Score", make=lambda row: score_cell(row.file)),
        Column("Verdict", make=lambda row: Cell(row.lost or "best")),
    )


def optimize(
    model: keras.Model | str | os.PathLike[str],
    data: Any,
    *,
    folder: str | os.PathLike[str] | None = None,
    target: Target = "cpu-latency",
    max_drop: float = 0.5,
    formats: str | Sequence[str] | None = None,
    precision: Precision | Sequence[Precision] | None = None,
    samples: int = 1000,
    batch: int = 1,
    threads: int = 1,
    turns: int = 15,
    variants: Mapping[str, Callable[[keras.Model], keras.Model]] | None = None,
    verbose: Verbose = "auto",
) -> Optimized:
    """Return the best file of a trained model: written, compared and measured on this machine.

    Args:
        model: A built Keras 3 model, or the path of a .keras file.
        data: ``tfopt.Data(train=..., test=...)``: files are calibrated on ``train`` and scored on
            ``test``. Or one source as ``fit`` takes it, (x, y) or a dataset, for both.
        folder: The folder of the winner; default: ``NAME_optimized``.
        target: "cpu-latency"; "gpu-latency", for which an engine that would compute on the CPU
            is left out with its reason; or "size", which also tries mixed bits: int8 with four
            bits for the kernels that tolerate it.
        max_drop: The allowed loss of score: points of accuracy, or percent of the mean absolute
            error. Without labels the share of changed classes counts, in percent.
        formats: The formats to try; default: all that are installed.
        precision: One precision or several to try; default: all.
        samples: The number of examples for the score; a fourth of them, at most 256, calibrate.
        batch: Examples per measured call.
        threads: CPU threads of the engines.
        turns: The number of measurements per file, interleaved with those of the others.
        variants: Functions that return another model, such as one trained further with fewer
            channels, by the prefix of its files' names. They are called with the model; one that
            raises a UserError is left out with a note.
        verbose: As in ``model.fit``: "auto" shows what runs and each file as it is done, 0 nothing.

    Raises:
        UserError: A setting is unknown, or no file is within ``max_drop``; the reasons are in the
            error.

    Example:
        >>> best = tfopt.optimize("model.keras", (x_test, y_test), max_drop=0.5)
        >>> print(best)
        >>> classify = tfopt.load(best.winner.folder)
    """
    variants = variants or {}
    _require(target, max_drop, variants)
    require_verbose(verbose)
    most, repeats = require_count("samples", samples), require_count("turns", turns, minimum=5)
    size, cores = require_count("batch", batch), require_count("threads", threads)
    on_gpu = target == "gpu-latency"
    with Child(gpu=on_gpu) as child:
        wanted, refused = _usable(target, formats, precision, child)
    from tfopt.compress.saved import as_model

    model = as_model(model)
    require_exportable(model)
    train, test, notes = _parts(data)
    given = ExportData.read(model, train, test, most)
    given = given.calibrated_on(min(256, max(most // 4, 1)))
    with (
        prepared_folder(Path(folder or f"{model.name}_optimized")) as place,
        tempfile.TemporaryDirectory(prefix=".tfopt-", dir=place) as beside,
        Display(verbose=verbose) as display,
    ):
        with Child(gpu=on_gpu) as child:  # files are measured in separate processes
            writer = _Writer(wanted, Path(beside), child, display)
            display.doing(f"tracing {model.name}")
            reference = make_reference(model, given, writer.folder, wanted)
            score = reference.score(reference.expected)[0]
            judge = partial(_tried, score, max_drop)
            results = writer.files(reference, None if score is None else _ANY_LOSS)
            if target == "size":
                results += writer.mixed(reference, results, judge)
            for name, make in variants.items():
                try:
                    results += writer.variant(reference, name, partial(make, model))
                except UserError as error:
                    notes += (f"{name}: not tried: {error.what} {error.received or ''}",)
        refused += [result for result in results if isinstance(result, Refused)]
        rows = [judge(file) for file in results if isinstance(file, ExportedFile)]
        # Latency does not decide for "size".
        eligible = {row.file.name for row in rows if not row.lost and target != "size"}
        inputs = [
            padded(array[:1], reference.graphs.signature.batch or size) for array in given.examples
        ]
        display.doing(f"measuring {len(rows)} files in turns")
        files = [row.file for row in rows]
        measured = measure_files(files, eligible, inputs, threads=cores, turns=repeats, gpu=on_gpu)
        refused += measured.broken
        rows = _judged(rows, measured, target)
        _require_winner(model, rows, refused, max_drop)
        winner = _keep(rows[0].file, place)
    return Optimized(
        winner=winner,
        candidates=(replace(rows[0], file=winner), *rows[1:]),
        refused=tuple(refused),
        target=target,
        max_drop=max_drop,
        score=score,
        reference=next(iter(measured.times)),
        batch=len(inputs[0]),
        threads=cores,
        notes=(*reference.notes, *notes),
    )


@dataclass(frozen=True)
class _Writer:
    """Writes files into a folder, in a child process, and shows each."""

    wanted: Sequence[tuple[Format, Precision]]
    folder: Path
    child: Child
    display: Display

    def files(self, reference: Reference, max_drop: float | None) -> list[ExportedFile | Refused]:
        """Write the files of a model."""
        results = []
        files = write_files(reference, self.wanted, self.folder, self.child, max_drop)
        for kind, precision in self.wanted:
            self.display.doing(f"writing {folder_name(kind.name, precision, reference.variant)}")
            file = next(files)
            if isinstance(file, Refused):
                self.display.say(f"{file.name}: not written: {file.reason}")
            else:
                score = [] if file.score is None else [f"{file.scored_by} {file.score:.4g}"]
                facts = [f"{file.kib:.0f} KiB", file.parity.summary(), *score, *file.notes]
                self.display.say(f"{file.name}: {'; '.join(facts)}")
            results.append(file)
        return results

    def mixed(
        self,
        reference: Reference,
        results: Sequence[ExportedFile | Refused],
        judge: Callable[[ExportedFile], TriedFile],
    ) -> list[ExportedFile]:
        """Write an int8 file with four bits in some kernels, if it is smaller and within limits."""
        self.display.doing("litert_mixed: four bits in single kernels, then in several")
        whole = next((file for file in results if file.name == "litert_int8"), None)
        if not isinstance(whole, ExportedFile):
            return []
        mixed = fewer_bits(reference, self.folder, self.child, lambda file: not judge(file).lost)
        if mixed is None or mixed.kib >= whole.kib:
            return []
        write_facts(mixed)
        return [mixed]

    def variant(
        self, reference: Reference, name: str, make: Callable[[], keras.Model]
    ) -> list[ExportedFile | Refused]:
        """Write the files of a changed model, compared with the outputs of the original one."""
        self.display.doing(f"{name}: building the model")
        folder = self.folder / name
        folder.mkdir()
        changed = make_reference(make(), reference.given, folder, self.wanted)
        changed = replace(changed, expected=reference.expected, variant=name)
        return self.files(changed, _ANY_LOSS)


def _tried(score: float | None, max_drop: float, file: ExportedFile) -> TriedFile:
    """Return a file that is not measured yet, with why it lost if it loses too much."""
    if score is None or file.score is None:
        failure = file.parity.failure(max_drop)
        lost = "" if failure is None else f"{failure}: {file.parity.summary()}"
        return TriedFile(file, None, lost=lost)
    if file.scored_by == "accuracy":
        # One of 200 examples is 0.5, not above it.
        drop, unit = round(100 * (score - file.score), 9), "points of accuracy"
    else:
        drop, unit = 100 * (file.score - score) / max(score, 1e-12), "% of the error"
    return TriedFile(file, drop, lost=f"loses {drop:.2f} {unit}" if drop > max_drop else "")


def _require(target: object, max_drop: object, variants: object) -> None:
    require_one_of("target", target, TARGETS)
    require_drop(max_drop)
    if not isinstance(variants, Mapping) or not all(
        isinstance(name, str) and name.isidentifier() and callable(make)
        for name, make in variants.items()
    ):
        raise UserError(
            "variants must be a dict of functions.",
            expected='{"smaller": function}, which takes the model and returns another',
            received=in_short(variants),
        )


def _usable(
    target: Target,
    formats: str | Sequence[str] | None,
    precision: Precision | Sequence[Precision] | None,
    child: Child,
) -> tuple[list[tuple[Format, Precision]], list[Refused]]:
    """Return the files to try, and those of formats that are not installed or find no GPU."""
    names = list(FORMATS) if formats is None else known_names("format", formats, FORMATS)
    asked = PRECISIONS if precision is None else known_names("precision", precision, PRECISIONS)
    device = "gpu" if target == "gpu-latency" else "cpu"
    wanted: list[tuple[Format, Precision]] = []
    refused: list[Refused] = []
    for file_format in (FORMATS[name] for name in names if device in FORMATS[name].devices):
        kinds = [kind for kind in file_format.precisions if kind in asked]
        try:
            file_format.require()
            if device == "gpu":
                child(file_format.require_gpu)
        except (UserError, RuntimeError) as error:
            refused += [Refused(file_format.name, kind, one_line(error)) for kind in kinds]
        else:
            wanted += [(file_format, kind) for kind in kinds]
    if not wanted:
        raise UserError(
            "No file can be tried here.",
            expected=f"formats for {device} in precisions that they support",
            received="; ".join(why_refused(refused)) or f"{', '.join(names)} in {', '.join(asked)}",
        )
    return wanted, refused


def _parts(data: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """Return the calibration data, the test data, and notes on them."""
    if not isinstance(data, Data):
        data = open_source(data)
        return data, data, ("calibrated on inputs of the test data",)
    return open_part(data, "train"), open_part(data, "test"), ()


# The verdict


def _judged(rows: Sequence[TriedFile], measured: Measured, target: Target) -> list[TriedFile]:
    """Return the timed files in order, the winner first, the others with why they lost."""
    times = measured.times
    reference = next(iter(times), "")
    reference_ms = 1e3 * call_s(times[reference]) if times else 0.0
    timed = []
    for row in (row for row in rows if row.file.name in times):
        own = times[row.file.name]
        beside = None if row.file.name == reference else compare_times(times[reference], own)
        # Not the median of its own turns, some of which took place at other times.
        ms = reference_ms * (beside.ratio if beside else 1.0)
        timed.append(replace(row, latency_ms=ms, latency=beside))

    def order(row: TriedFile) -> tuple[bool, float]:
        return bool(row.lost), row.file.kib if target == "size" else row.latency_ms or 0.0

    timed.sort(key=order)
    if not timed or timed[0].lost:
        return timed
    # Finalists were measured side by side, so that their times can be compared.
    final = [row for row in timed if row.file.name in measured.finalists]
    best = min(final, key=lambda row: row.latency_ms or 0.0, default=timed[0])
    others = [
        row if row.lost else replace(row, lost=_behind(row.file, best.file, times, target))
        for row in timed
        if row is not best
    ]
    return [best, *others]


def _behind(file: ExportedFile, best: ExportedFile, times: Times, target: Target) -> str:
    """Return why a file is behind the best."""
    if target == "size":
        return f"{factor(file.kib / best.kib)} the size of the best"
    beside = compare_times(times[best.name], times[file.name])
    if beside.verdict == "slower":
        return f"slower: {speed_and_interval(beside)} of the best"
    if beside.verdict == "faster":
        return "not measured again"
    return f"{'no' if beside.verdict == 'no difference' else 'no certain'} difference to the best"


def _require_winner(
    model: keras.Model, rows: Sequence[TriedFile], refused: Sequence[Refused], max_drop: float
) -> None:
    """Raise with all reasons unless a file was written and loses no more than ``max_drop``."""
    if rows and not rows[0].lost:
        return
    none = f"is within max_drop={max_drop:g}" if rows else "could be written"
    raise UserError(
        f"No file of {model.name!r} {none}.",
        received="; ".join(f"{row.file.name}: {row.lost}" for row in rows)
        or "; ".join(why_refused(refused)),
        fix="raise max_drop, or allow other precisions" if rows else None,
    )


def _keep(file: ExportedFile, place: Path) -> ExportedFile:
    """Move the winner to its folder."""
    target = place / file.name
    if target.exists():
        shutil.rmtree(target)
    file.folder.rename(target)
    return replace(file, folder=target)
