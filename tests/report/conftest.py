"""A report as the MNIST recipe gives it on two CPU cores, the same with hostile texts, and readers
of what is rendered: an HTML parser, a Markdown parser, a real browser."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from typing import Any

import pytest
from markdown_it import MarkdownIt

from tfopt.report.footprint import Comparison, Footprint, Footprints
from tfopt.report.bench.training import Epoch, Figures
from tfopt.report.schema import Advice, Environment, Noise, Report, Row

NO_GPU = "no NVIDIA driver on this machine"
NO_FILE = "no transform makes a file"
CHAIN = (
    "Place()",
    "MixedPrecision()",
    "Distribute()",
    "LearningRate(peak=0.01, warmup=0.1, decay='cosine')",
    "Pipeline(batch_size=64, cache='memory')",
    "Execution(steps_per_execution=16)",
    "Prune(sparsity=0.8)",
    "Quantize(mode='int8')",
)
HOSTILE = "</script><script>alert(1)</script>|a`b``c\n\n# d\r\n- *e* _f_ [g](http://h) @i &amp; \x1b[31m\u202e\ud800"


def chain_up_to(number: int, leaving_out: tuple[str, ...] = ()) -> str:
    parts = [part for part in CHAIN[:number] if part not in leaving_out]
    return f"chain({', '.join(parts)})"


def figures(step_ms: float, batch: int, train_s: float, accuracies: tuple[float, ...], **more: Any):
    """Figures of four epochs, with what a machine without GPU does not have."""
    values: dict[str, Any] = {
        "step_ms_median": step_ms,
        "step_ms_p90": round(step_ms * 1.13, 4),
        "batch_size": batch,
        "examples_per_s": round(batch * 1000 / step_ms, 1),
        "train_s": train_s,
        "first_step_s": 0.62,
        "peak_host_mib": 812.4,
        "peak_gpu_mib": None,
        "test_accuracy": accuracies[-1],
        "model_kib": 219.7,
        "model_gzip_kib": 203.5,
        "artefact": None,
        "artefact_kib": None,
        "artefact_accuracy": None,
        "epochs": tuple(
            Epoch(round(train_s * (n + 1) / len(accuracies), 4), accuracy)
            for n, accuracy in enumerate(accuracies)
        ),
        "windows_ms": (step_ms, round(step_ms * 1.13, 4), round(step_ms * 0.96, 4)),
        **more,
    }
    reasons = {
        **dict.fromkeys(values, NO_FILE),
        "peak_gpu_mib": NO_GPU,
        "step_ms_p90": "fewer than two executions after the first",
        "first_step_s": "no step was run",
        "test_accuracy": "the job has no test data",
    }
    missing = {name: reasons[name] for name, value in values.items() if value is None}
    return Figures(**values, unavailable=missing)


def _idle(number: int, name: str, reason: str) -> Row:
    row_chain = chain_up_to(number)
    return Row(f"+ {name}", CHAIN[number - 1], row_chain, "no_effect", reason, (reason,), None)


def _measured(number: int, name: str, changed: str, what: Figures) -> Row:
    row_chain = chain_up_to(number)
    return Row(f"+ {name}", CHAIN[number - 1], row_chain, "measured", None, (changed,), what)


def _rows() -> tuple[Row, ...]:
    first = (0.9331, 0.9586, 0.9691, 0.9722)
    better = (0.9462, 0.9701, 0.9772, 0.9789)
    pruned = {"model_gzip_kib": 61.8}
    file = {"artefact": "cnn_mnist.int8.tflite", "artefact_kib": 58.3, "artefact_accuracy": 0.9768}
    kept = figures(3.94, 64, 2.48, (0.9458, 0.9697, 0.9758, 0.9771), **pruned, **file)
    return (
        Row("baseline", None, "chain()", "measured", None, (), figures(4.31, 32, 6.12, first)),
        _idle(1, "Place", f"runs on the CPU: {NO_GPU}"),
        _idle(2, "MixedPrecision", "float32: no GPU, and this CPU has neither AVX512-BF16 nor AMX"),
        _idle(3, "Distribute", "one device: nothing to distribute over"),
        _measured(
            4,
            "LearningRate",
            "learning rate 0.001 to a peak of 0.01, 10 % warm-up, cosine decay",
            figures(4.36, 32, 6.19, (0.9511, 0.9688, 0.9741, 0.9752)),
        ),
        _measured(
            5,
            "Pipeline",
            "batch 64, cached in memory (31.4 MiB of 6,912 MiB free), shuffled, prefetched",
            figures(6.21, 64, 4.33, better, peak_host_mib=861.0),
        ),
        _measured(
            6,
            "Execution",
            "16 steps per execution",
            figures(3.91, 64, 2.46, better, first_step_s=0.71),
        ),
        _measured(
            7,
            "Prune",
            "2 kernels at 80.00 % zeros (15,251 of 19,064 weights)",
            figures(3.97, 64, 2.52, (0.9455, 0.9699, 0.9760, 0.9773), **pruned),
        ),
        _measured(
            8,
            "Quantize",
            "int8 file cnn_mnist.int8.tflite; nothing stayed float",
            figures(3.95, 64, 2.51, (0.9455, 0.9699, 0.9760, 0.9773), **pruned, **file),
        ),
        Row("kept chain", None, _kept_chain(), "measured", None, ("16 steps per execution",), kept),
    )


def _kept_chain() -> str:
    return chain_up_to(8, leaving_out=CHAIN[:3])


@pytest.fixture
def report() -> Report:
    """Ten rows: three without effect, the others measured, everything complete."""
    return Report(
        title="cnn_mnist",
        command="python -m tfopt.recipes.cnn_mnist --data=embedded --epochs=4",
        created="2025-11-21T08:15:30+00:00",
        environment=Environment(
            python="3.11.14",
            tensorflow="2.21.0",
            keras="3.15.1",
            tfopt="0.1.0",
            numpy="2.2.6",
            platform="Linux x86_64",
            cpu="AMD EPYC 7B13",
            cpu_count=2,
            memory_gib=7.8,
            gpus=(),
            driver=None,
            no_gpu_reason=NO_GPU,
        ),
        data="embedded MNIST: 10,000 to train, 10,000 to test",
        rows=_rows(),
        noise=Noise(0.021),
        advice=Advice(
            keep=_kept_chain(),
            brought="trains in 0.41 of the baseline's time at equal epochs (6.1 s to 2.5 s); "
            "test accuracy 97.22% to 97.71%; cnn_mnist.int8.tflite of 58 KiB at 97.68%",
            dropped=(
                f"Place: runs on the CPU: {NO_GPU}",
                "MixedPrecision: float32: no GPU, and this CPU has neither AVX512-BF16 nor AMX",
                "Distribute: one device: nothing to distribute over",
            ),
        ),
        complete=True,
        notes=(),
    )


@pytest.fixture
def served(report: Report) -> Report:
    """The same with what the rows would serve: zeros that are not fast, integers that are."""

    def row(name: str, kib: float, zipped: float, **more: Any) -> Footprint:
        known = {"parameters": 54_410, "zeros": 0, "gflop_per_example": 0.000562, "notes": ()}
        known |= {"sparse_kib": None, "latency_ms": 0.035, "latency": None}
        return Footprint(**{"name": name, "kib": kib, "gzip_kib": zipped, **known, **more})

    zeros, alike = {"zeros": 43_500}, Comparison(0.998, 0.991, 1.006, 40)
    note = ("its batch is fixed: the latency is that of 8 examples",)
    rows = (
        row("baseline", 215.0, 198.0),
        row("+ Prune", 215.0, 51.3, **zeros, sparse_kib=67.2, latency=alike),
        row("+ Cluster", 215.0, 40.1, latency_ms=None, parameters=None, gflop_per_example=None),
        row(
            "kept chain",
            58.3,
            18.6,
            **zeros,
            latency_ms=0.0124,
            latency=Comparison(0.354, 0.349, 0.361, 40),
            notes=note,
        ),
    )
    missing = ("+ Quantize: A weight is not finite.",)
    return replace(report, serving=Footprints("LiteRT 2.3.0", rows, missing))


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same report with ``change`` applied to every text that may be any text."""
    fixed = {"created", "status", "kind", "bound", "roof"}
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(with_texts(item, change) for item in value)
    if isinstance(value, dict):
        return {key: with_texts(item, change) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: with_texts(getattr(value, field.name), change)
            for field in fields(value)
            if field.name not in fixed
        }
        if isinstance(value, Row | Footprint) and value.name in ("baseline", "kept chain"):
            changed["name"] = value.name  # these names have a meaning
        return replace(value, **changed)
    return value


@pytest.fixture(scope="session")
def texts() -> Callable[..., Any]:
    """Changes every text of a report of either kind."""
    return with_texts


@pytest.fixture
def hostile(served: Report) -> Report:
    """Every text ends in what could break out of Markdown, HTML or the terminal."""
    noted = replace(served, notes=("note",))
    changed = with_texts(noted, lambda text: f"{text}{HOSTILE}")
    assert isinstance(changed, Report)
    return changed


@pytest.fixture
def endless(served: Report) -> Report:
    """Every text ends in a word wider than any screen."""
    changed = with_texts(replace(served, notes=("note",)), lambda text: text + "x" * 400)
    assert isinstance(changed, Report)
    return changed


@pytest.fixture
def alone(served: Report) -> Report:
    """A file made after the training, on a machine that slept meanwhile; nothing else in force."""
    slow = {"train_s": 21.8, "examples_per_s": 2085.0}
    kept = replace(served.kept, chain="chain(Quantize())", same_training=True)
    kept = replace(kept, figures=replace(kept.figures, **slow))
    changed = replace(served, rows=(served.rows[0], kept))
    assert isinstance(changed, Report)
    return changed


@pytest.fixture
def left(served: Report) -> Report:
    """All the work for nothing: what was tried as a whole did not hold."""
    advice = Advice("chain()", "nothing: together they cost 1.2 points", ("Place: one device",))
    changed = replace(served, advice=advice)
    assert isinstance(changed, Report)
    return changed


@pytest.fixture
def rough(report: Report) -> Report:
    """What a bad day leaves: refused, failed, slower, interrupted, nothing to keep yet."""
    slower = figures(9.7, 32, 13.4, (0.91, 0.93, 0.95, 0.9612), model_gzip_kib=299.0)
    blind = figures(
        4.2, 32, 6.1, (0.9,), step_ms_p90=None, test_accuracy=None, first_step_s=None, epochs=()
    )
    refused = (
        "Execution and Distribute cannot run together.\n"
        "  expected: steps_per_execution=1 under several replicas\n"
        "  received: steps_per_execution=16\n"
        "  fix: drop one of them"
    )
    rows = (
        report.rows[0],
        Row("+ Execution", "Execution(16)", "chain()", "refused", refused, (), None),
        Row("+ Prune", "Prune(0.8)", "chain()", "failed", "MemoryError: no room", (), None),
        Row("+ Pipeline", "Pipeline()", "chain()", "measured", None, ("batch 32",), blind),
        Row("+ MixedPrecision", "M()", "chain()", "measured", None, ("bfloat16",), slower),
        Row("+ Quantize", "Quantize()", "chain()", "interrupted", "Ctrl-C", (), None),
    )
    notes = ("interrupted: the rows above are complete",)
    changed = replace(report, rows=rows, noise=None, advice=None, complete=False, notes=notes)
    assert isinstance(changed, Report)
    return changed


VOID = {"meta", "link", "br"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """Tags, attributes and the text outside of style; every tag must be closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.style = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "style":
            self.style += data
        else:
            self.text += data


class MarkdownTexts(HTMLParser):
    """The tables' cells, and every tag there is."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self._in_cell = False

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data):
        self.text += data
        if self._in_cell:
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="session")
def page_of() -> type[Page]:
    """Parses a page; a tag that is not closed is an error."""
    return Page


@pytest.fixture(scope="session")
def markdown_of() -> Callable[[str], MarkdownTexts]:
    """Reads Markdown as a pull request would."""

    def read(markdown: str) -> MarkdownTexts:
        parser = MarkdownTexts()
        parser.feed(MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown))
        return parser

    return read


@pytest.fixture(scope="session")
def chromium(tmp_path_factory) -> Callable[..., str]:
    """Shows a page in a headless Chromium with a profile of its own; returns what that printed."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH (Debian: apt install chromium)")

    folder = tmp_path_factory.mktemp("chromium")

    def show(html: str, *options: str, errors: bool = False) -> str:
        page = folder / "report.html"
        page.write_text(html, encoding="utf-8")
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}",
            *options, page.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stderr if errors else done.stdout

    return show
