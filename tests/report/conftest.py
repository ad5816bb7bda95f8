"""Bench reports as machines give them: on two CPU cores, on a GPU, on a bad day, at their largest.

Beside them changes of every text of a report, and readers of what is rendered: an HTML parser, a
Markdown parser, a real browser.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from typing import Any

import bench_reports
import numpy as np
import pytest
from bench_reports import NOT_ASKED
from markdown_it import MarkdownIt

from tfopt.report.bench_report import BenchReport, Quality, Recommendation, VariantReport
from tfopt.report.footprints import Footprint, Footprints
from tfopt.report.statistics import Comparison, compare
from tfopt.report.timed_process import GpuState, TimedProcess
from tfopt.report.training import Training

IS_REFERENCE = "it is the reference"
HOSTILE = (
    "</script><script>alert(1)</script>|a`b``c $x^2$ $\\frac{1}{0}$ \\$\n\n# d\r\n- *e* _f_ "
    "[g](http://h) @i &amp; \x1b[31m\u202e\ud800\uffff \u05e9\u05dc\u05d5\u05dd \U0001f680\u6f22\u5b57"
)
CHAIN = (
    "LearningRate(peak=0.01, warmup=0.1, decay='cosine')",
    "Pipeline(batch_size=50, cache='memory')",
    "Execution(jit_compile=True, steps_per_execution=25)",
    "Prune(sparsity=0.8)",
    "Quantize()",
)
FILE = {"artefact": "cnn_mnist.int8.tflite", "artefact_kib": 58.3, "artefact_accuracy": 0.9768}
ON_A_GPU = {"gpu_peak_mib": 21_400.0, "energy_per_example_j": 0.0213}


def gpu_state(throttled: bool = False) -> GpuState:
    reasons = ("heat: the hardware slows down",) if throttled else ()
    state = replace(bench_reports.gpu(), throttled=throttled, throttle_reasons=reasons)
    return replace(state, uuid="GPU-5ca1ab1e", energy_j=4210.0)


def process(
    random: Any,
    step_ms: float,
    batch: int | None,
    *,
    gpu: bool = False,
    host: float = 940.0,
    **more: Any,
) -> TimedProcess:
    known: dict[str, Any] = {
        "noise": 0.03,
        "batch_size": batch,
        "host_peak_mib": round(host * float(random.lognormal(0, 0.01)), 1),
        "gpus": (gpu_state(),) if gpu else (),
        "data": "embedded MNIST: 10,000 to train, 10,000 to test",
        **(ON_A_GPU if gpu else {}),
        **more,
    }  # fmt: skip
    return bench_reports.process(step_ms * float(random.lognormal(0, 0.012)), random, **known)


def compared(variant: tuple[TimedProcess, ...], reference: tuple[TimedProcess, ...]) -> Comparison:
    sides = ([each.example_ms for each in side] for side in (reference, variant))
    return compare(*sides)


def quality(points: float) -> Quality:
    reference = (0.9590, 0.9612, 0.9581)
    return Quality(
        "test accuracy", (0, 1, 2), reference, tuple(round(v + points / 100, 5) for v in reference),
        points, round(points - 0.18, 3), round(points + 0.18, 3), 0.3,
    )  # fmt: skip


def variant(
    name: str, number: int, processes: tuple[TimedProcess, ...], **more: Any
) -> VariantReport:
    """Number 0 is the reference. What is not given is None, with a reason."""
    against = ("against_reference", "against_previous", "quality")
    reasons = {} if number or not processes else dict.fromkeys(against, IS_REFERENCE)
    return bench_reports.variant(
        name,
        processes,
        **{
            "job": "tfopt.recipes.cnn_mnist:job",
            "arguments": {"data": "embedded", "epochs": "3"},
            "transform": None if number == 0 else CHAIN[number - 1],
            "chain": f"chain({', '.join(CHAIN[:number])})",
            "exact": number in (0, 3),
            "changed": () if number == 0 else (f"{name.removeprefix('+ ')} is on",),
            "unavailable": reasons,
            **more,
        },
    )


def changed(made: VariantReport, **more: Any) -> VariantReport:
    """The same variant with other figures; what is None has a reason, of those in ``unavailable``."""
    reasons = {**made.unavailable, **more.pop("unavailable", {})}
    values = {name: more.get(name, getattr(made, name)) for name in bench_reports.COMPARED}
    absent = [name for name, value in values.items() if value is None]
    return replace(
        made, **more, unavailable={name: reasons.get(name, NOT_ASKED) for name in absent}
    )


def idle(name: str, number: int, status: str, reason: str) -> VariantReport:
    return variant(name, number, (), status=status, reason=reason, changed=())


def bench_report(
    variants: tuple[VariantReport, ...], *, gpu: bool = False, **more: Any
) -> BenchReport:
    here = {"cpu": "AMD EPYC 9354", "gpus": ("NVIDIA H200",)}
    values: dict[str, Any] = {
        "title": "cnn_mnist",
        "command": "tfopt bench tfopt.recipes.cnn_mnist:job --chain recipes/cnn_mnist.toml",
        "data": "embedded MNIST: 10,000 to train, 10,000 to test",
        "recommendation": Recommendation(
            variants[-1].chain, "runs an example in less time", ("Place: no GPU",)
        ),
        **more,
    }
    values["asked"] = {"kind": "prefixes", **more.get("asked", {})}
    return bench_reports.report(*variants, provenance=here if gpu else None, **values)


LINKS = (
    # name, step ms, batch, quality points
    ("baseline", 9.59, 32, None),
    ("+ LearningRate", 9.48, 32, 0.41),
    ("+ Pipeline", 11.2, 50, 0.33),
    ("+ Execution", 6.62, 50, 0.33),
    ("+ Prune", 6.55, 50, 0.12),
)


def walked(*, gpu: bool = False) -> tuple[VariantReport, ...]:
    """The links of a chain, each against the first and the one before."""
    random = np.random.default_rng(7)
    found: list[VariantReport] = []
    for number, (name, step, batch, points) in enumerate(LINKS):
        processes = tuple(
            process(random, step, batch, gpu=gpu, host=900 + 40 * number) for _ in range(5)
        )
        more: dict[str, Any] = {}
        if number:
            more["against_reference"] = compared(processes, found[0].processes)
            more["against_previous"] = compared(processes, found[-1].processes)
            more["quality"] = quality(points)
        if batch != 32:
            more["scaling"] = "global batch 50 instead of 32"
        found.append(variant(name, number, processes, **more))
    return tuple(found)


@pytest.fixture(scope="session")
def cpu() -> BenchReport:
    """Five prefixes on two cores; the last one is kept."""
    return bench_report(walked())


@pytest.fixture(scope="session")
def gpu() -> BenchReport:
    """The same on a GPU, with what its driver tells."""
    return bench_report(walked(gpu=True), gpu=True)


def footprint(name: str, kib: float, zipped: float, **more: Any) -> Footprint:
    known = {"parameters": 54_410, "zeros": 0, "gflop_per_example": 0.000562, "notes": ()}
    known |= {"sparse_kib": None, "latency_ms": 0.035, "latency": None}
    return Footprint(**{"name": name, "kib": kib, "gzip_kib": zipped, **known, **more})


def trainings(steps: int, last: float, seeds: int, **more: Any) -> tuple[Training, ...]:
    return tuple(
        bench_reports.training(round(last + 0.0002 * seed, 5), steps, seed=seed, **more)
        for seed in range(seeds)
    )


@pytest.fixture(scope="session")
def trained() -> BenchReport:
    """Trained with three seeds, the last link but one with two; with what the variants would serve."""
    made = []
    shares = (1.0, 0.98, 0.7, 0.4, 0.42)
    for variant, share in zip(walked(), shares, strict=True):
        pruned = {"model_gzip_kib": 61.8, **FILE} if variant.name == "+ Prune" else {}
        seeds = 2 if variant.name == "+ Execution" else 3
        last = 0.955 if variant.name == "+ LearningRate" else 0.962
        steps = 500 * 32 // variant.batch_size
        more: dict[str, Any] = {"trainings": trainings(steps, last, seeds, **pruned)}
        if share != 1:
            whole = Comparison(share, round(0.97 * share, 4), round(1.03 * share, 4), 3)
            more |= {"whole": whole, "to_accuracy": whole, "steps_to_accuracy": whole}
            if variant.name == "+ LearningRate":
                missed = ("to_accuracy", "steps_to_accuracy")
                reason = "with seed 0 no reading reached 96.20 %"
                more |= dict.fromkeys(missed) | {"unavailable": dict.fromkeys(missed, reason)}
        made.append(changed(variant, **more))
    note = ("its batch is fixed: the latency is that of 8 examples",)
    zeros, alike = {"zeros": 43_500}, Comparison(0.998, 0.991, 1.006, 40)
    fast = Comparison(0.354, 0.349, 0.361, 40)
    rows = (
        footprint("baseline", 215.0, 198.0),
        footprint("+ Pipeline", 215.0, 51.3, **zeros, sparse_kib=67.2, latency=alike),
        footprint("+ Execution", 215.0, 40.1, latency_ms=None, parameters=None,
                  gflop_per_example=None),
        footprint("+ Prune", 58.3, 18.6, **zeros, latency_ms=0.0124, latency=fast, notes=note),
    )  # fmt: skip
    serving = Footprints("LiteRT 2.3.0", rows, ("+ Quantize: A weight is not finite.",))
    return bench_report(tuple(made), asked={"whole": True}, serving=serving)


@pytest.fixture(scope="session")
def rough_bench() -> BenchReport:
    """Failed, refused, without effect, interrupted, with a hot GPU; nothing kept."""
    first, second, *_ = walked()
    hot = replace(second.processes[3], gpus=(gpu_state(True),))
    shaky = replace(second, processes=(*second.processes[:3], hot))
    refused = (
        "Execution and Distribute cannot run together.\n"
        "  expected: steps_per_execution=1 under several replicas\n"
        "  received: steps_per_execution=16\n"
        "  fix: drop one of them"
    )
    others = (
        idle("+ Place", 2, "no_effect", "runs on the CPU: no NVIDIA driver"),
        idle("+ Distribute", 3, "refused", refused),
        idle("+ Prune", 4, "failed", "MemoryError: no room"),
        idle("+ Quantize", 5, "interrupted", "Ctrl-C"),
    )
    notes = (
        "interrupted: the rows above are complete",
        "forced: another program was using the CPU",
    )
    return bench_report((first, shaky, *others), recommendation=None, complete=False, notes=notes)


@pytest.fixture(scope="session")
def lossy() -> BenchReport:
    """The fastest variant loses accuracy; whoever wrote the recommendation did not see it."""
    *found, last = walked()
    return bench_report((*found, replace(last, quality=quality(-1.2))))


@pytest.fixture(scope="session")
def ablation() -> BenchReport:
    """A chain of two links beside the chain without each."""
    full, first, _, other, _ = walked()
    gone = dict.fromkeys(("against_previous", "quality"))
    slower, same = Comparison(1.62, 1.58, 1.66, 5), Comparison(1.001, 0.992, 1.010, 5)
    variants = (
        replace(full, name="whole chain", chain="chain(Execution(), Pipeline())"),
        changed(first, **gone, name="without Execution", against_reference=slower),
        changed(other, **gone, name="without Pipeline", against_reference=same),
    )
    return bench_report(variants, asked={"kind": "ablation"}, recommendation=None)


@pytest.fixture(scope="session")
def single() -> BenchReport:
    """One job alone, without a known batch."""
    random = np.random.default_rng(5)
    reason = {"batch_size": "a generator does not tell"}
    made = [process(random, 9.6, None) for _ in range(2)]
    told = tuple(replace(each, unavailable={**each.unavailable, **reason}) for each in made)
    alone = variant("my job", 0, told)
    return bench_report((alone,), asked={"kind": "single"}, recommendation=None)


@pytest.fixture(scope="session")
def hostile_bench(gpu: BenchReport, trained: BenchReport, texts: Callable[..., Any]) -> BenchReport:
    """Every text ends in what could break out of Markdown, HTML, SVG or the terminal."""
    noted = replace(gpu, notes=("note",), serving=trained.serving)
    report = texts(noted, lambda text: f"{text}{HOSTILE}")
    assert isinstance(report, BenchReport)
    return report


@pytest.fixture(scope="session")
def endless_bench(gpu: BenchReport, texts: Callable[..., Any]) -> BenchReport:
    """Every text ends in a word wider than any screen."""
    report = texts(replace(gpu, notes=("note",)), lambda text: text + "W" * 400)
    assert isinstance(report, BenchReport)
    return report


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same report with ``change`` applied to every text that may be any text."""
    fixed = {"created", "status", "kind"}
    if isinstance(value, str):
        return change(value)
    if isinstance(value, tuple):
        return tuple(with_texts(item, change) for item in value)
    if isinstance(value, dict):
        return {key: with_texts(item, change) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        texts = {
            field.name: with_texts(getattr(value, field.name), change)
            for field in fields(value)
            if field.name not in fixed
        }
        return replace(value, **texts)
    return value


@pytest.fixture(scope="session")
def texts() -> Callable[..., Any]:
    """Changes every text of a report."""
    return with_texts


VOID = {"meta", "link", "br"}
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """Tags, attributes, tables' cells and the text outside of style; every tag must be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self.style = ""
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if self._open and self._open[-1] == "style":
            self.style += data
            return
        self.text += data
        if {"td", "th"} & {*self._open}:
            self.tables[-1][-1][-1] += data


@pytest.fixture(scope="session")
def page_of() -> type[Page]:
    """Parses a page; a tag that is not closed is an error."""
    return Page


@pytest.fixture(scope="session")
def markdown_of() -> Callable[[str], Page]:
    """Reads Markdown as a pull request would."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table")
    return lambda markdown: Page(parser.render(markdown))


@pytest.fixture(scope="session")
def chromium(tmp_path_factory) -> Callable[..., str]:
    """Shows a page in a headless Chromium with a profile of its own; returns what that printed."""
    if CHROMIUM is None:
        pytest.skip("no chromium on PATH (Debian: apt install chromium)")
    folder = tmp_path_factory.mktemp("chromium")

    def show(html: str) -> str:
        page = folder / "report.html"
        page.write_text(html, encoding="utf-8")
        command = [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--disable-sync", "--hide-scrollbars", f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=20000", "--dump-dom", page.as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    return show
