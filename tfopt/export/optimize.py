"""Find the best file of a trained model among formats and precisions, by measurement."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from tfopt.compress.examples import padded
from tfopt.compress.model_graph import Array
from tfopt.data.sources.open import open_part, open_source
from tfopt.errors import UserError, first_line, in_short, require_count, require_one_of
from tfopt.export.bits import fewer_bits
from tfopt.export.export import (
    ExportedFile,
    Refused,
    in_words,
    known_names,
    one_line,
    read_file,
    refused_row,
    require_exportable,
    require_gpu,
    score_cell,
    why_refused,
    write_facts,
    write_files,
)
from tfopt.export.formats.format import PRECISIONS, Format, Precision, Runner
from tfopt.export.formats.roster import FORMATS
from tfopt.export.model_footprint import against, in_turns, timed_turn
from tfopt.export.parity import require_drop
from tfopt.export.reference import ExportData, Reference, make_reference
from tfopt.files import prepared_folder
from tfopt.job.parts import Data
from tfopt.report.format import NOTHING, by_reason, count, factor, speed_and_interval
from tfopt.report.statistics import LEAST, Comparison, compare_pairs
from tfopt.report.table import Cell, Column, Table, figure, speed
from tfopt.subprocesses import Child

if TYPE_CHECKING:
    import keras

Target = Literal["cpu-latency", "gpu-latency", "size"]
TARGETS: tuple[Target, ...] = get_args(Target)
Turns = list[list[float]]
"""The turns of one process: lists of seconds per call."""
Times = dict[str, list[Turns]]
"""The turns of a file's processes, by the file's name."""
_FINALISTS, _FINAL = 4, 2
"""Number of files that are measured again, and how often, each time in a fresh process."""
_ANY_LOSS = 100.0
"""max_drop of the outputs where the score decides."""


@dataclass(frozen=True)
class Candidate:
    """A measured file.

    Attributes:
        file: The file.
        drop: The loss of score against the model: points of accuracy, or percent of the mean
            absolute error; None without labels.
        latency_ms: The median time of one call over the file's processes; None if not measured.
        latency: The same relative to the reference, with its 95 % interval. The reference is the
            model's own graph in TensorFlow if that was tried, else the first file.
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
    candidates: tuple[Candidate, ...]
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
        """Return the winner, and what else is to be said."""
        again = "" if self.target == "size" else "; the fastest in three processes each"
        how = f"Calls of {count(self.batch, 'example')}, {count(self.threads, 'thread')}"
        lines = [f"{how}, in interleaved turns{again}."]
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
    progress: Callable[[str], None] = lambda line: None,
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
        progress: Called with a line per file, and per stage.

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
    most, repeats = require_count("samples", samples), require_count("turns", turns, minimum=5)
    size, cores = require_count("batch", batch), require_count("threads", threads)
    on_gpu = target == "gpu-latency"
    wanted, missing = _wanted(target, formats, precision)
    from tfopt.compress.saved import as_model

    model = as_model(model)
    require_exportable(model)
    train, test, notes = _parts(data)
    given = ExportData.read(model, train, test, most)
    given = given.calibrated_on(min(256, max(most // 4, 1)))
    with (
        prepared_folder(Path(folder or f"{model.name}_optimized")) as place,
        tempfile.TemporaryDirectory(prefix=".tfopt-", dir=place) as beside,
        Child(gpu=on_gpu) as child,
    ):
        work = Path(beside)
        if on_gpu:
            wanted, on_cpu = _on_gpu(wanted, child)
            missing += on_cpu
        reference = make_reference(model, given, work, wanted)
        score = reference.score(reference.expected)[0]
        limit = None if given.labels is None else _ANY_LOSS
        tried = write_files(reference, wanted, work, child, limit)
        results = list(_reported(tried, progress))
        if target == "size":
            progress("litert_mixed: four bits in single kernels, then in several")
            results += _mixed(reference, results, work, child, score, max_drop)
        for name, make in variants.items():
            progress(f"{name}: building the model")
            try:
                other = _variant(reference, name, make(model), work, wanted)
            except UserError as error:
                notes = (*notes, f"{name}: not tried: {error.what} {error.received or ''}")
                continue
            tried = write_files(other, wanted, work, child, _ANY_LOSS)
            results += _reported(tried, progress)
        child.end()  # files are measured in separate processes
        files = [file for file in results if isinstance(file, ExportedFile)]
        refused = [*missing, *(file for file in results if isinstance(file, Refused))]
        rows = [Candidate(file, _drop(file, score)) for file in files]
        inputs = [padded(a[:1], reference.graphs.signature.batch or size) for a in given.examples]
        eligible = {row.file.name for row in rows if not _too_far(row, max_drop)}
        eligible = eligible if target != "size" else set()  # where latency does not decide
        progress(f"measuring {len(rows)} files in turns")
        times, finalists, broken = _times(rows, eligible, inputs, cores, repeats, gpu=on_gpu)
        rows = _judged(rows, times, finalists, target, max_drop)
        refused += broken
        _require_winner(model, rows, refused, max_drop)
        winner = _keep(rows[0].file, place)
    return Optimized(
        winner=winner,
        candidates=(replace(rows[0], file=winner), *rows[1:]),
        refused=tuple(refused),
        target=target,
        max_drop=max_drop,
        score=score,
        reference=next(iter(times)),
        batch=len(inputs[0]),
        threads=cores,
        notes=(*reference.notes, *notes),
    )


def _reported(
    results: Iterable[ExportedFile | Refused], progress: Callable[[str], None]
) -> Iterator[ExportedFile | Refused]:
    """Yield the results, reporting each to ``progress`` first."""
    for file in results:
        line = in_words(file) if isinstance(file, ExportedFile) else f"not written: {file.reason}"
        progress(f"{file.name}: {line.strip()}")
        yield file


def _variant(
    reference: Reference,
    name: str,
    model: keras.Model,
    work: Path,
    wanted: Sequence[tuple[Format, Precision]],
) -> Reference:
    """Return the forms of a changed model, compared with the outputs of the original one."""
    (work / name).mkdir()
    made = make_reference(model, reference.given, work / name, wanted)
    return replace(made, expected=reference.expected, variant=name)


def _mixed(
    reference: Reference,
    results: Sequence[ExportedFile | Refused],
    work: Path,
    child: Child,
    score: float | None,
    max_drop: float,
) -> list[ExportedFile]:
    """Return an int8 file with four bits in some kernels, if it is smaller and within max_drop."""

    def within(file: ExportedFile) -> bool:
        return not _too_far(Candidate(file, _drop(file, score)), max_drop)

    for whole in results:
        if isinstance(whole, ExportedFile) and whole.name == "litert_int8":
            mixed = fewer_bits(reference, work, child, within)
            if mixed is not None and mixed.kib < whole.kib:
                write_facts(mixed)
                return [mixed]
    return []


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


def _wanted(
    target: Target,
    formats: str | Sequence[str] | None,
    precision: Precision | Sequence[Precision] | None,
) -> tuple[list[tuple[Format, Precision]], list[Refused]]:
    """Return the files to try, and those whose packages are not installed."""
    names = list(FORMATS) if formats is None else known_names("format", formats, FORMATS)
    asked = PRECISIONS if precision is None else known_names("precision", precision, PRECISIONS)
    device = "gpu" if target == "gpu-latency" else "cpu"
    wanted: list[tuple[Format, Precision]] = []
    missing = []
    for file_format in (FORMATS[name] for name in names):
        if device not in file_format.devices:
            continue
        kinds = [p for p in file_format.precisions if p in asked]
        try:
            file_format.require()
        except UserError as error:
            if formats is not None:
                raise
            missing += [Refused(file_format.name, p, error.fix or error.what) for p in kinds]
        else:
            wanted += [(file_format, p) for p in kinds]
    if not wanted:
        raise UserError(
            "No format supports these precisions.",
            expected=f"formats for {device} in precisions that they support",
            received=f"{', '.join(names)} in {', '.join(asked)}",
        )
    return wanted, missing


def _on_gpu(
    wanted: Sequence[tuple[Format, Precision]], child: Child
) -> tuple[list[tuple[Format, Precision]], list[Refused]]:
    """Return the files that run on a GPU in the child, and those that would run on its CPU."""
    reasons: dict[str, str] = {}
    for name in dict.fromkeys(kind.name for kind, _ in wanted):
        try:
            child(require_gpu, name)
        except (UserError, RuntimeError) as error:
            reasons[name] = one_line(error)
    usable = [pair for pair in wanted if pair[0].name not in reasons]
    if not usable:
        raise UserError(
            "No format would run on a GPU here.",
            received="; ".join(f"{name}: {reason}" for name, reason in reasons.items()),
            fix='target="cpu-latency", or a machine with an NVIDIA GPU',
        )
    others = [(kind, precision) for kind, precision in wanted if kind.name in reasons]
    return usable, [Refused(kind.name, p, reasons[kind.name]) for kind, p in others]


def _parts(data: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """Return the calibration data, the test data, and notes on them."""
    if not isinstance(data, Data):
        data = open_source(data)
        return data, data, ("calibrated on inputs of the test data",)
    return open_part(data, "train"), open_part(data, "test"), ()


def _drop(file: ExportedFile, score: float | None) -> float | None:
    """Return the loss of a file's score: points of accuracy, or percent of the error."""
    if score is None or file.score is None:
        return None
    if file.scored_by == "accuracy":
        return round(100 * (score - file.score), 9)  # one of 200 examples is 0.5, not above it
    return 100 * (file.score - score) / max(score, 1e-12)


# Latency: a process per file, measured in turns


def _times(
    rows: Sequence[Candidate],
    eligible: Set[str],
    inputs: Sequence[Array],
    threads: int,
    turns: int,
    *,
    gpu: bool,
) -> tuple[Times, list[str], list[Refused]]:
    """Return the times of the files, the finalists, and the files that cannot be run.

    The fastest of the eligible files and the reference are measured again in fresh processes, so
    that neither lucky turns nor a lucky memory layout decide.
    """
    broken: list[Refused] = []
    measure: dict[str, Callable[[], list[float]]] = {}
    children: dict[str, Child] = {}
    with ExitStack() as around:
        for file in (row.file for row in rows):
            child = around.enter_context(Child(gpu=gpu))
            turn = partial(child, turn_of, file.format, file.folder, threads, list(inputs))
            try:
                turn()
            except (RuntimeError, UserError) as error:
                broken.append(Refused(file.format, file.precision, str(error), file.variant))
                child.end()
            else:
                measure[file.name], children[file.name] = partial(_turn, file.name, turn), child
        times = {name: [series] for name, series in in_turns(measure, turns).items()}
        fastest = sorted(eligible & times.keys(), key=lambda name: _level(times[name]))[:_FINALISTS]
        again = list(dict.fromkeys([*list(times)[:1], *fastest])) if fastest else []
        for _ in range(_FINAL):
            for name in tuple(again):
                children[name].end()
                try:
                    measure[name]()
                except UserError:  # out of memory beside the others: its first turns count
                    again.remove(name)
            for name, more in in_turns({name: measure[name] for name in again}, turns).items():
                times[name].append(more)
    return times, [name for name in fastest if name in again], broken


def _turn(name: str, call: Callable[[], list[float]]) -> list[float]:
    try:
        return call()
    except (RuntimeError, UserError) as error:
        raise UserError(
            f"{name} ran once, and failed while it was measured.",
            received=first_line(error),
            fix="leave it out of formats or precision",
        ) from error


def _level(processes: Sequence[Turns]) -> float:
    """Return the median seconds of a call over processes, as memory layouts differ."""
    return float(np.median(_medians(processes)))


def _against(times: Times, reference: str, name: str) -> Comparison:
    """Compare two files by pairs of their processes; with few processes, by pairs of turns.

    The process is the repetition: its memory layout affects all of its turns.
    """
    pairs = list(zip(times[reference], times[name], strict=False))
    if len(pairs) < LEAST:
        return against(*pairs[0])
    return compare_pairs(*(_medians(side) for side in zip(*pairs, strict=True)))


def _medians(processes: Sequence[Turns]) -> list[float]:
    return [float(np.median([np.median(turn) for turn in turns])) for turns in processes]


@cache
def _run_here(name: str, folder: Path, threads: int) -> Runner:
    return FORMATS[name].open(folder, read_file(folder).signature, threads)


def turn_of(name: str, folder: Path, threads: int, inputs: Sequence[Array]) -> list[float]:
    """Return the seconds of the calls in one turn, in the process of the file."""
    return timed_turn(partial(_run_here(name, folder, threads), inputs))


# The verdict


def _require_winner(
    model: keras.Model, rows: Sequence[Candidate], refused: Sequence[Refused], max_drop: float
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


def _judged(
    rows: Sequence[Candidate],
    times: Times,
    finalists: Sequence[str],
    target: Target,
    max_drop: float,
) -> list[Candidate]:
    """Return the timed files in order, the winner first, the others with why they lost."""
    reference = next(iter(times), "")
    timed = []
    for row in (row for row in rows if row.file.name in times):
        name = row.file.name
        beside = None if name == reference else _against(times, reference, name)
        ms = 1e3 * _level(times[name])
        timed.append(replace(row, latency_ms=ms, latency=beside, lost=_too_far(row, max_drop)))

    def order(row: Candidate) -> tuple[bool, float]:
        # Relative to the reference, as turns took place at different times.
        slow = row.latency.ratio if row.latency else 1.0
        return bool(row.lost), row.file.kib if target == "size" else slow

    timed.sort(key=order)
    if not timed or timed[0].lost:
        return timed
    # Finalists were measured side by side, so that their times can be compared.
    final = [row for row in timed if row.file.name in finalists]
    best = min(final, key=lambda row: row.latency_ms or 0.0, default=timed[0])
    others = [
        row if row.lost else replace(row, lost=_behind(row.file, best.file, times, target))
        for row in timed
        if row is not best
    ]
    return [best, *others]


def _too_far(row: Candidate, max_drop: float) -> str:
    if row.drop is not None:
        unit = "points of accuracy" if row.file.scored_by == "accuracy" else "% of the error"
        return f"loses {row.drop:.2f} {unit}" if row.drop > max_drop else ""
    failure = row.file.parity.failure(max_drop)
    return "" if failure is None else f"{failure}: {row.file.parity.summary()}"


def _behind(file: ExportedFile, best: ExportedFile, times: Times, target: Target) -> str:
    if target == "size":
        return f"{factor(file.kib / best.kib)} the size of the best"
    beside = _against(times, best.name, file.name)
    if beside.verdict == "slower":
        return f"slower: {speed_and_interval(beside)} of the best"
    if beside.verdict == "faster":
        return "not measured again"
    return f"{'no' if beside.verdict == 'no difference' else 'no certain'} difference to the best"


def _keep(file: ExportedFile, place: Path) -> ExportedFile:
    """Move the winner to its folder."""
    target = place / file.name
    if target.exists():
        shutil.rmtree(target)
    file.folder.rename(target)
    return replace(file, folder=target)
