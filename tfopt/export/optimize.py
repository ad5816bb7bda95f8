"""Find the best file of a trained model: formats and precisions, compared and measured."""

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

from tfopt.data.sources.open import open_part, open_source
from tfopt.errors import UserError, first_line, in_short, require_count
from tfopt.export.batches import padded
from tfopt.export.bits import fewer_bits
from tfopt.export.export import (
    ExportedFile,
    Refused,
    in_a_line,
    in_words,
    known_names,
    read_file,
    refused_row,
    require_exportable,
    require_gpu,
    score_cell,
    write_facts,
    write_files,
)
from tfopt.export.formats.format import PRECISIONS, Array, Format, Precision, Run
from tfopt.export.formats.roster import FORMATS
from tfopt.export.model_footprint import against, in_turns, timed_turn
from tfopt.export.parity import require_drop
from tfopt.export.reference import Given, Reference, make_reference
from tfopt.files import prepared_folder
from tfopt.job.parts import Data
from tfopt.report.format import NOTHING, by_reason, factor, speed_and_interval, table
from tfopt.report.statistics import LEAST, Comparison, compare_pairs
from tfopt.report.table import Cell, Column, Table, figure, speed
from tfopt.subprocesses import Child

if TYPE_CHECKING:
    import keras

Target = Literal["cpu-latency", "gpu-latency", "size"]
TARGETS: tuple[Target, ...] = get_args(Target)
Turns = list[list[float]]
"""The turns of one process, each the seconds of some calls."""
Times = dict[str, list[Turns]]
"""For each file the processes that it was measured in."""
_FINALISTS, _FINAL = 4, 2
"""So many files are measured again, so many times, each time in a fresh process."""
_ANY_LOSS = 100.0
"""What a file may lose is judged by the score where there is one, and not by its outputs."""


@dataclass(frozen=True)
class Candidate:
    """A file that may be the best.

    Attributes:
        file: The file.
        drop: What its score lost against the model's: points of accuracy, or percent of the
            mean absolute error; None without labels.
        latency_ms: The time of one call in the middle of the file's processes; None where not
            measured.
        latency: The same as a share of the reference's, with its 95 % interval. The reference is
            the model's own graph in TensorFlow where that was tried, else the first file.
        lost: Why it is not the winner; empty for the winner.
    """

    file: ExportedFile
    drop: float | None
    latency_ms: float | None = None
    latency: Comparison | None = None
    lost: str = ""


@dataclass(frozen=True)
class Optimized:
    """The best file of a model, and what the others lost by; printed, a table.

    Attributes:
        winner: The best file that keeps to the drop.
        candidates: All files that could be made, the winner first; the winner's is kept, the
            folders of the others are gone (``tfopt.export`` writes one of them again).
        refused: Those that could not, with their reasons.
        target: What was to be small.
        max_drop: How much of the score might be lost.
        score: The Keras model's own.
        reference: The file that latencies are compared with.
        batch: Examples in a measured call.
        threads: CPU threads of the engines.
        notes: What to know about all of them.
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
        head = ("", "KiB", "ms a call", f"faster than {self.reference}", "score", "verdict")
        lines = table(head, map(_row, self.candidates))
        lines += [f"{each.name}: not made: {each.reason}" for each in self.refused]
        files = [each.file for each in self.candidates]
        lines += by_reason((file.name, note) for file in files for note in file.notes)
        if self.score is not None:
            lines.append(f"The Keras model's score: {self.score:.4g}.")
        lines += [
            self._how(),
            *(f"note: {each}" for each in self.notes),
            f"{self.winner.name}: {self.winner.path}",
            self.code(),
        ]
        return "\n".join(lines)

    def _how(self) -> str:
        again = "" if self.target == "size" else "; the fastest in three processes each"
        return (
            f"Calls of {self.batch} example{'s' if self.batch > 1 else ''}, "
            f"{self.threads} thread{'s' if self.threads > 1 else ''}, in interleaved turns{again}."
        )

    def _repr_html_(self) -> str:
        """Return the candidates as a table for a notebook, and the code that loads the winner."""
        from tfopt.report.notebook import as_fragment

        made = Table.of(
            _columns(self.reference), ((c.file.name, c) for c in self.candidates), self.winner.name
        )
        files = [each.file for each in self.candidates]
        notes = (*by_reason((f.name, note) for f in files for note in f.notes), *self.notes)
        rows = (*made.rows, *map(refused_row, self.refused))
        score = "" if self.score is None else f"The Keras model's score: {self.score:.4g}."
        title = f"{self.winner.name}: {self.winner.path}"
        return as_fragment(
            title,
            replace(made, rows=rows, notes=notes),
            lines=(score, self._how()),
            code=self.code(),
        )


def _columns(reference: str) -> tuple[Column, ...]:
    return (
        Column("KiB", make=lambda each: figure(each.file.kib, "")),
        Column("ms a call", make=lambda each: figure(each.latency_ms, "not measured")),
        Column(
            f"Faster than {reference}",
            make=lambda each: speed(each.latency) if each.latency else Cell(NOTHING),
        ),
        Column("Score", make=lambda each: score_cell(each.file)),
        Column("Verdict", make=lambda each: Cell(each.lost or "best")),
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
        folder: Where the winner is left; default: ``NAME_optimized``.
        target: "cpu-latency"; "gpu-latency", for which an engine that would compute on the CPU
            is left out with its reason; or "size", which also tries bits by layer: int8 with four
            bits for the kernels that bear it.
        max_drop: How much of the score may be lost: points of accuracy, or percent of the mean
            absolute error. Without labels the share of changed classes counts, in percent.
        formats: Those to try; default: all that are installed.
        precision: One or several to try; default: all.
        samples: How many examples score a file; a fourth of them, at most 256, calibrate it.
        batch: Examples in a measured call.
        threads: CPU threads of the engines.
        turns: How often each file is measured, in turns with the others.
        variants: Other models to make files of, by the names that these files begin with. Each
            function is called with the model and returns another, such as one trained further
            with fewer channels; one that raises a UserError is left out, and a note says so.
        progress: Called with a line on each file that was tried, and on what comes next.

    Raises:
        UserError: A setting is unknown, or no file keeps to ``max_drop``; the reasons are in the
            error.

    Example:
        >>> best = tfopt.optimize("model.keras", (x_test, y_test), max_drop=0.5)
        >>> print(best)
        >>> classify = tfopt.load(best.winner.folder)
    """
    variants = variants or {}
    _require(target, max_drop, variants)
    count, each_time = require_count("samples", samples), require_count("turns", turns, minimum=5)
    size, cores = require_count("batch", batch), require_count("threads", threads)
    on_gpu = target == "gpu-latency"
    wanted, missing = _wanted(target, formats, precision)
    from tfopt.compress.saved import as_model

    model = as_model(model)
    require_exportable(model)
    train, test, notes = _parts(data)
    given = Given.read(model, train, test, count)
    given = given.calibrated_on(min(256, max(count // 4, 1)))
    with (
        prepared_folder(Path(folder or f"{model.name}_optimized")) as place,
        tempfile.TemporaryDirectory(prefix=".tfopt-", dir=place) as beside,
        Child(gpu=on_gpu) as child,
    ):
        work = Path(beside)
        if on_gpu:
            wanted, blind = _seeing_the_gpu(wanted, child)
            missing += blind
        reference = make_reference(model, given, work, wanted)
        score = reference.score(reference.expected)[0]
        limit = None if given.labels is None else _ANY_LOSS
        tried = write_files(reference, wanted, work, child, limit)
        made = list(_reported(tried, progress))
        files = [each for each in made if isinstance(each, ExportedFile)]
        if target == "size":
            progress("litert_mixed: four bits in one kernel after the other, then in several")
            files += _mixed(reference, files, work, child, score, max_drop)
        for name, make in variants.items():
            (work / name).mkdir()
            progress(f"{name}: making the model")
            try:
                other = make_reference(make(model), given, work / name, wanted)
            except UserError as error:
                notes = (*notes, f"{name}: not tried: {error.what} {error.received or ''}")
                continue
            # Compared with the model that was given, whose answers are to be kept.
            other = replace(other, expected=reference.expected, variant=name)
            tried = write_files(other, wanted, work, child, _ANY_LOSS)
            made += _reported(tried, progress)
        files += [e for e in made if isinstance(e, ExportedFile) and e.variant]
        child.end()  # each file that is measured has a process of its own
        refused = [*missing, *(each for each in made if isinstance(each, Refused))]
        rows = [Candidate(each, _drop(each, score)) for each in files]
        inputs = [padded(a[:1], reference.graphs.signature.batch or size) for a in given.examples]
        borne = {row.file.name for row in rows if not _too_far(row, max_drop)}
        if target == "size":
            borne = set()  # none is chosen by its latency
        progress(f"measuring {len(rows)} files in turns")
        times, finalists, broken = _times(rows, borne, inputs, cores, each_time, gpu=on_gpu)
        rows = _judged(rows, times, finalists, target, max_drop)
        if not rows or rows[0].lost:
            raise UserError(
                f"No file of {model.name!r} keeps to max_drop={max_drop:g}.",
                received="; ".join(f"{r.file.name}: {r.lost}" for r in rows)
                or "; ".join(f"{r.name}: {r.reason}" for r in (*refused, *broken)),
                fix="raise max_drop, or allow other precisions",
            )
        winner = _keep(rows[0].file, place)
    return Optimized(
        winner=winner,
        candidates=(replace(rows[0], file=winner), *rows[1:]),
        refused=(*refused, *broken),
        target=target,
        max_drop=max_drop,
        score=score,
        reference=next(iter(times)),
        batch=len(inputs[0]),
        threads=cores,
        notes=(*reference.notes, *notes),
    )


def _reported(
    made: Iterable[ExportedFile | Refused], progress: Callable[[str], None]
) -> Iterator[ExportedFile | Refused]:
    """Yield what became of each file, reported first."""
    for each in made:
        said = in_words(each) if isinstance(each, ExportedFile) else f"not made: {each.reason}"
        progress(f"{each.name}: {said.strip()}")
        yield each


def _mixed(
    reference: Reference,
    files: Sequence[ExportedFile],
    work: Path,
    child: Child,
    score: float | None,
    max_drop: float,
) -> list[ExportedFile]:
    """Return an int8 file with four bits where the drop bears it, if that is smaller than int8."""

    def borne(file: ExportedFile) -> bool:
        return not _too_far(Candidate(file, _drop(file, score)), max_drop)

    whole = [each for each in files if each.name == "litert_int8"]
    if not whole:
        return []
    found = fewer_bits(reference, work, child, borne)
    if found is None or found.kib >= whole[0].kib:
        return []
    write_facts(found)
    return [found]


def _require(target: object, max_drop: object, variants: object) -> None:
    if target not in TARGETS:
        raise UserError(
            "The target is unknown.", expected=", ".join(TARGETS), received=in_short(target)
        )
    require_drop(max_drop)
    if not isinstance(variants, Mapping) or not all(
        isinstance(name, str) and name.isidentifier() and callable(make)
        for name, make in variants.items()
    ):
        raise UserError(
            "The variants are not functions by name.",
            expected='such as {"smaller": function}, which takes the model and returns another',
            received=in_short(variants),
        )


def _wanted(
    target: Target,
    formats: str | Sequence[str] | None,
    precision: Precision | Sequence[Precision] | None,
) -> tuple[list[tuple[Format, Precision]], list[Refused]]:
    """Return what is to be tried, and what cannot be since it is not installed."""
    names = list(FORMATS) if formats is None else known_names("format", formats, FORMATS)
    asked = PRECISIONS if precision is None else known_names("precision", precision, PRECISIONS)
    device = "gpu" if target == "gpu-latency" else "cpu"
    wanted: list[tuple[Format, Precision]] = []
    missing = []
    for each in (FORMATS[name] for name in names):
        if device not in each.devices:
            continue
        kinds = [p for p in each.precisions if p in asked]
        try:
            each.require()
        except UserError as error:
            if formats is not None:
                raise
            missing += [Refused(each.name, p, error.fix or error.what) for p in kinds]
        else:
            wanted += [(each, p) for p in kinds]
    if not wanted:
        raise UserError(
            "There is nothing to try.",
            expected=f"formats for {device} in precisions that they have",
            received=f"{', '.join(names)} in {', '.join(asked)}",
        )
    return wanted, missing


def _seeing_the_gpu(
    wanted: Sequence[tuple[Format, Precision]], child: Child
) -> tuple[list[tuple[Format, Precision]], list[Refused]]:
    """Return what runs on a GPU in the child, and what would run on its CPU in silence."""
    reasons: dict[str, str] = {}
    for name in dict.fromkeys(kind.name for kind, _ in wanted):
        try:
            child(require_gpu, name)
        except (UserError, RuntimeError) as error:
            reasons[name] = in_a_line(error)
    seeing = [each for each in wanted if each[0].name not in reasons]
    if not seeing:
        raise UserError(
            "Nothing would run on a GPU here.",
            received="; ".join(f"{name}: {reason}" for name, reason in reasons.items()),
            fix='target="cpu-latency", or a machine with an NVIDIA GPU',
        )
    left = [(kind, precision) for kind, precision in wanted if kind.name in reasons]
    return seeing, [Refused(kind.name, p, reasons[kind.name]) for kind, p in left]


def _parts(data: Any) -> tuple[Any, Any, tuple[str, ...]]:
    """Return what files are calibrated on and what they are scored on."""
    if not isinstance(data, Data):
        data = open_source(data)
        note = "calibrated on inputs of the data that they are scored on"
        return data, data, (note,)
    return open_part(data, "train"), open_part(data, "test"), ()


def _drop(file: ExportedFile, score: float | None) -> float | None:
    """Return how much worse a file's score is: points of accuracy, or percent of the error."""
    if score is None or file.score is None:
        return None
    if file.scored_by == "accuracy":
        return 100 * (score - file.score)
    return 100 * (file.score - score) / max(score, 1e-12)


# Latency: a process for each file, measured by turns.


def _times(
    rows: Sequence[Candidate],
    borne: Set[str],
    inputs: Sequence[Array],
    threads: int,
    turns: int,
    *,
    gpu: bool,
) -> tuple[Times, list[str], list[Refused]]:
    """Return the times of each file, turn by turn, the finalists, and what cannot be run.

    The fastest of those that may win are measured again, beside the reference: neither lucky turns
    nor a process whose memory lies well decide.
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
        times = {name: [found] for name, found in in_turns(measure, turns).items()}
        fastest = sorted(borne & times.keys(), key=lambda name: _level(times[name]))[:_FINALISTS]
        again = list(dict.fromkeys([*list(times)[:1], *fastest])) if fastest else []
        for _ in range(_FINAL):
            for name in tuple(again):
                children[name].end()
                try:
                    measure[name]()
                except UserError:  # it may have no room beside the others: its first turns count
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
            fix="leave it out: formats and precision say what is tried",
        ) from error


def _level(processes: Sequence[Turns]) -> float:
    """Return the seconds of a call in the middle process: in some the memory lies badly."""
    return float(np.median(_medians(processes)))


def _against(times: Times, reference: str, name: str) -> Comparison:
    """Compare two files by the times at which both had a process.

    The process is what repeats: its memory lies well or badly for all of its turns. Where there
    is one only, its turns have to do.
    """
    pairs = list(zip(times[reference], times[name], strict=False))
    if len(pairs) < LEAST:
        return against(*pairs[0])
    return compare_pairs(*(_medians(side) for side in zip(*pairs, strict=True)))


def _medians(processes: Sequence[Turns]) -> list[float]:
    """Return the seconds of a call in each process."""
    return [float(np.median([np.median(turn) for turn in turns])) for turns in processes]


@cache
def _run_here(name: str, folder: Path, threads: int) -> Run:
    return FORMATS[name].open(folder, read_file(folder).signature, threads)


def turn_of(name: str, folder: Path, threads: int, inputs: Sequence[Array]) -> list[float]:
    """Return the seconds of each call in one turn, in the process of the file."""
    return timed_turn(partial(_run_here(name, folder, threads), inputs))


# The verdict.


def _judged(
    rows: Sequence[Candidate],
    times: Times,
    finalists: Sequence[str],
    target: Target,
    max_drop: float,
) -> list[Candidate]:
    """Return the files that were timed in order, each but the winner with what it lost by."""
    reference = next(iter(times), "")
    timed = []
    for row in (row for row in rows if row.file.name in times):
        name = row.file.name
        beside = None if name == reference else _against(times, reference, name)
        ms = 1e3 * _level(times[name])
        timed.append(replace(row, latency_ms=ms, latency=beside, lost=_too_far(row, max_drop)))

    def order(row: Candidate) -> tuple[bool, float]:
        # Beside the reference: the turns of some were earlier than those of others.
        slow = row.latency.ratio if row.latency else 1.0
        return bool(row.lost), row.file.kib if target == "size" else slow

    timed.sort(key=order)
    if not timed or timed[0].lost:
        return timed
    # Finalists were measured side by side to the end: their own times say more.
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
        return f"{row.drop:.2f} {unit} more lost" if row.drop > max_drop else ""
    lost = 100 * row.file.parity.lost
    return f"{row.file.parity.tell()}" if lost > max_drop else ""


def _behind(file: ExportedFile, best: ExportedFile, times: Times, target: Target) -> str:
    if target == "size":
        return f"{factor(file.kib / best.kib)} the size of the best"
    beside = _against(times, best.name, file.name)
    if beside.verdict == "slower":
        return f"slower: {speed_and_interval(beside)} of the best"
    return "not measured again" if beside.verdict == "faster" else "not told apart from the best"


def _keep(file: ExportedFile, place: Path) -> ExportedFile:
    """Move the winner where it stays."""
    target = place / file.name
    if target.exists():
        shutil.rmtree(target)
    file.folder.rename(target)
    return replace(file, folder=target)


def _row(each: Candidate) -> tuple[str, ...]:
    return (
        each.file.name,
        f"{each.file.kib:,.0f}",
        "" if each.latency_ms is None else f"{each.latency_ms:.3f}",
        "" if each.latency is None else speed_and_interval(each.latency),
        "" if each.file.score is None else f"{each.file.score:.4g}",
        each.lost or "best",
    )
