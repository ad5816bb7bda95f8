"""Bench reports as machines give them: on two CPU cores, on a GPU, on a bad day, at their largest.

Beside them changes of every text of a report, and readers of what is rendered: an HTML parser, a
Markdown parser, a real browser.
"""

from __future__ import annotations

import math
import shutil
import statistics
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

from tfopt.report.bench_report import (
    BenchReport,
    Ceilings,
    Quality,
    Recommendation,
    Roofline,
    SweepPoint,
    TimeSplit,
    VariantReport,
)
from tfopt.report.block import Block, GpuState
from tfopt.report.footprint import Comparison, Footprint, Footprints
from tfopt.report.training import Epoch, Figures

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
    *(f"Custom{number}()" for number in range(5)),
)
FILE = {"artefact": "cnn_mnist.int8.tflite", "artefact_kib": 58.3, "artefact_accuracy": 0.9768}
ON_A_GPU = {
    "gpu_allocator_peak_mib": 21_400.0,
    "gpu_steady_peak_mib": 20_100.0,
    "nvml_process_peak_mib": 38_200.0,
    "nvml_device_peak_mib": 38_700.0,
    "unavailable": {},
}


def gpu_state(throttled: bool = False) -> GpuState:
    reasons = ("heat: the hardware slows down",) if throttled else ()
    state = replace(bench_reports.gpu(), throttled=throttled, throttle_reasons=reasons)
    return replace(state, uuid="GPU-5ca1ab1e", energy_j=4210.0)


def block(
    random: Any,
    step_ms: float,
    batch: int | None,
    *,
    windows: int = 12,
    gpu: bool = False,
    host: float = 940.0,
) -> Block:
    level = step_ms * float(random.lognormal(0, 0.012))
    host = round(host * float(random.lognormal(0, 0.01)), 1)
    made = bench_reports.block(
        level,
        random,
        windows_ms=tuple((level * random.lognormal(0, 0.03, windows)).round(4).tolist()),
        steps=(30,) * windows,
        batch_size=batch,
        host_peak_mib=host,
        gpus=(gpu_state(),) if gpu else (),
        data="embedded MNIST: 10,000 to train, 10,000 to test",
    )
    return replace(made, memory=replace(made.memory, **ON_A_GPU)) if gpu else made


def compared(variant: tuple[Block, ...], reference: tuple[Block, ...], half: float | None = None):
    """What a bootstrap might give; its own tests are elsewhere."""
    logs = [
        math.log(statistics.median(one.per_example_ms) / statistics.median(other.per_example_ms))
        for one, other in zip(variant, reference, strict=False)
    ]
    mean = statistics.mean(logs)
    reach = half or max(0.004, 2.3 * statistics.pstdev(logs) / math.sqrt(len(logs)))
    low, high = (round(math.exp(mean + sign * reach), 5) for sign in (-1, 1))
    return Comparison(round(math.exp(mean), 5), low, high, len(logs))


def split(fit_ms: float, bound: str, shares: tuple[float, float, float]) -> TimeSplit:
    verdicts = {"input": "The input is late", "host": "Python and Keras take most of it"}
    return TimeSplit(
        fit_ms=fit_ms,
        resident_ms=round(fit_ms * (1 - shares[0]), 3),
        input_ms=round(fit_ms * 0.7, 3),
        host_ms=round(fit_ms * shares[1], 3),
        sweep=(SweepPoint(1, fit_ms), SweepPoint(8, fit_ms * 0.8), SweepPoint(32, fit_ms * 0.75)),
        input_share=shares[0],
        host_share=shares[1],
        device_share=shares[2],
        bound=bound,
        told=verdicts.get(bound, "The device is the limit."),
        try_next="Execution(steps_per_execution=16)" if bound == "host" else None,
        note="",
        processes=3,
    )


def roofline(gflops: float, gpu: bool) -> Roofline:
    ceilings = Ceilings(
        "NVIDIA H200" if gpu else "2 cores of AMD EPYC",
        "bfloat16" if gpu else "float32",
        688_000.0 if gpu else 96.0,
    )
    return Roofline(
        gflop_per_step=gflops * 0.005,
        source="XLA's cost analysis",
        gflops=gflops,
        utilisation=round(gflops / ceilings.gflops, 5),
        basis="at the device's own step time",
        ceilings=ceilings,
        note="Counts leave out the copy of the batch.",
    )


def quality(points: float) -> Quality:
    reference = (0.9590, 0.9612, 0.9581)
    return Quality(
        "test accuracy", (0, 1, 2), reference, tuple(round(v + points / 100, 5) for v in reference),
        points, round(points - 0.18, 3), round(points + 0.18, 3), 0.3,
    )  # fmt: skip


def variant(name: str, number: int, blocks: tuple[Block, ...], **more: Any) -> VariantReport:
    """Number 0 is the reference. What is not given is None, with a reason."""
    made = bench_reports.variant(
        name,
        blocks,
        **{
            "job": "tfopt.recipes.cnn_mnist:job",
            "arguments": {"data": "embedded", "epochs": "3"},
            "transform": None if number == 0 else CHAIN[number - 1],
            "chain": f"chain({', '.join(CHAIN[:number])})",
            "exact": number in (0, 3),
            "changed": () if number == 0 else (f"{name.removeprefix('+ ')} is on",),
            **more,
        },
    )
    if number or not blocks:
        return made
    against = dict.fromkeys(("against_reference", "against_previous", "quality"), IS_REFERENCE)
    return replace(made, unavailable={**made.unavailable, **against})


def idle(name: str, number: int, status: str, reason: str) -> VariantReport:
    return variant(name, number, (), status=status, reason=reason, changed=())


def bench_report(
    variants: tuple[VariantReport, ...], *, gpu: bool = False, **more: Any
) -> BenchReport:
    here = {"cpu": "AMD EPYC 9354", "gpus": ("NVIDIA H200",), "no_gpu_reason": None}
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
    # name, step ms, batch, quality points, (bound, shares), gflops
    ("baseline", 9.59, 32, None, ("host", (0.08, 0.55, 0.37)), 21.0),
    ("+ LearningRate", 9.48, 32, 0.41, ("host", (0.09, 0.54, 0.37)), 21.3),
    ("+ Pipeline", 11.2, 50, 0.33, ("host", (0.02, 0.46, 0.52)), 28.4),
    ("+ Execution", 6.62, 50, 0.33, ("device", (0.03, 0.12, 0.85)), 48.0),
    ("+ Prune", 6.55, 50, 0.12, ("device", (0.03, 0.11, 0.86)), 48.4),
)


def walked(*, gpu: bool = False, rounds: int = 6, **shape: int) -> tuple[VariantReport, ...]:
    """The links of a chain, each against the first and the one before."""
    random = np.random.default_rng(7)
    found: list[VariantReport] = []
    for number, (name, step, batch, points, (bound, shares), gflops) in enumerate(LINKS):
        blocks = tuple(
            block(random, step, batch, gpu=gpu, host=900 + 40 * number, **shape)
            for _ in range(rounds)
        )
        more: dict[str, Any] = {
            "split": split(step, bound, shares),
            "roofline": roofline(gflops * (6000 if gpu else 1), gpu),
        }
        if number:
            more["against_reference"] = compared(blocks, found[0].blocks)
            more["against_previous"] = compared(blocks, found[-1].blocks)
            more["quality"] = quality(points)
        if batch != 32:
            more["scaling"] = "global batch 50 instead of 32"
        found.append(variant(name, number, blocks, **more))
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


def trainings(level: float, last: float, rounds: int, **more: Any) -> tuple[Figures, ...]:
    """So many whole trainings of two epochs, the first at half of the time."""
    return tuple(
        bench_reports.training_figures(
            seconds, round(last + 0.0002 * seed, 5), seed=seed,
            epochs=(Epoch(seconds / 2, last - 0.001), Epoch(seconds, round(last + 0.0002 * seed, 5))),
            **more,
        )
        for seed, seconds in ((seed, round(level * (1 + 0.01 * seed), 4)) for seed in range(rounds))
    )  # fmt: skip


@pytest.fixture(scope="session")
def trained() -> BenchReport:
    """Trained whole in three rounds, the last link twice; with what the variants would serve."""
    made = []
    speeds = (1.0, 0.98, 0.7, 0.4, 0.42)
    for variant, share in zip(walked(), speeds, strict=True):
        pruned = {"model_gzip_kib": 61.8, **FILE} if variant.name == "+ Prune" else {}
        rounds = 2 if variant.name == "+ Execution" else 3
        last = 0.955 if variant.name == "+ LearningRate" else 0.962
        more = {"trainings": trainings(6.12 * share, last, rounds, **pruned)}
        if share != 1:
            whole = Comparison(share, round(0.97 * share, 4), round(1.03 * share, 4), rounds)
            gone = {name: why for name, why in variant.unavailable.items() if name != "whole"}
            reached = variant.name != "+ LearningRate"
            if reached:
                gone.pop("to_accuracy")
            else:
                gone["to_accuracy"] = "with seed 0 no epoch reached 96.20 %"
            more |= {
                "whole": whole, "to_accuracy": whole if reached else None, "unavailable": gone,
            }  # fmt: skip
        made.append(replace(variant, **more))
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
    """Failed, refused, without effect, interrupted, with invalid blocks; nothing kept."""
    first, second, *_ = walked()
    random = np.random.default_rng(3)
    hot = replace(
        block(random, 14.1, 32),
        invalid="the machine was busy: 3.1 of 2 cores",
        gpus=(gpu_state(True),),
        round=3,
    )
    blocks = (*second.blocks[:3], hot, *second.blocks[3:])
    shaky = replace(second, blocks=blocks)
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
def quick() -> BenchReport:
    """Less than the default."""
    return bench_report(walked(rounds=3, windows=4), asked={"quick": True})


@pytest.fixture(scope="session")
def pair() -> BenchReport:
    """Two jobs that hardly differ, with an interval that reaches too far."""
    first, second, *_ = walked()
    wide = Comparison(0.998, 0.93, 1.08, 6)
    other = replace(
        second, name="my job", job="project.train:job", transform=None, chain="chain()",
        against_reference=wide, against_previous=None, quality=None, split=None, roofline=None,
        unavailable={
            **second.unavailable,
            **dict.fromkeys(("against_previous", "quality", "split", "roofline"), NOT_ASKED),
        },
    )  # fmt: skip
    return bench_report((first, other), asked={"kind": "pair"}, recommendation=None)


@pytest.fixture(scope="session")
def ablation() -> BenchReport:
    """A chain of two links beside the chain without each."""
    full, first, _, other, _ = walked()
    missing = dict.fromkeys(("against_previous", "quality"), NOT_ASKED)
    slower = replace(
        first, name="without Execution", against_reference=Comparison(1.62, 1.58, 1.66, 6),
        against_previous=None, quality=None, unavailable={**first.unavailable, **missing},
    )  # fmt: skip
    same = replace(
        other, name="without Pipeline", against_reference=Comparison(1.001, 0.992, 1.010, 6),
        against_previous=None, quality=None, unavailable={**other.unavailable, **missing},
    )  # fmt: skip
    whole = replace(full, name="whole chain")
    return bench_report((whole, slower, same), asked={"kind": "ablation"}, recommendation=None)


@pytest.fixture(scope="session")
def single() -> BenchReport:
    """One job alone, without a known batch."""
    random = np.random.default_rng(5)
    blocks = tuple(
        replace(
            block(random, 9.6, None),
            unavailable={"batch_size": "a generator does not tell"},
        )
        for _ in range(2)
    )
    alone = variant("my job", 0, blocks)
    return bench_report((alone,), asked={"kind": "single"}, recommendation=None)


@pytest.fixture(scope="session")
def largest() -> BenchReport:
    """Ten variants, twenty rounds, thirty windows, everything a GPU tells."""
    random = np.random.default_rng(11)
    found: list[VariantReport] = []
    for number in range(10):
        blocks = tuple(block(random, 9 - 0.5 * number, 64, windows=30, gpu=True) for _ in range(20))
        more: dict[str, Any] = {
            "split": split(9 - 0.5 * number, "device", (0.05, 0.15, 0.8)),
            "roofline": roofline(90_000 + 30_000 * number, True),
        }
        if number:
            more["against_reference"] = compared(blocks, found[0].blocks)
            more["against_previous"] = compared(blocks, found[-1].blocks)
            more["quality"] = quality(0.1)
        found.append(variant(f"+ Transform{number}", number, blocks, **more))
    return bench_report(tuple(found), gpu=True)


@pytest.fixture(scope="session")
def hostile_bench(gpu: BenchReport, trained: BenchReport, texts: Callable[..., Any]) -> BenchReport:
    """Every text ends in what could break out of Markdown, HTML, SVG or the terminal."""
    noted = replace(gpu, notes=("note",), serving=trained.serving)
    changed = texts(noted, lambda text: f"{text}{HOSTILE}")
    assert isinstance(changed, BenchReport)
    return changed


@pytest.fixture(scope="session")
def endless_bench(gpu: BenchReport, texts: Callable[..., Any]) -> BenchReport:
    """Every text ends in a word wider than any screen."""
    changed = texts(replace(gpu, notes=("note",)), lambda text: text + "W" * 400)
    assert isinstance(changed, BenchReport)
    return changed


def with_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The same report with ``change`` applied to every text that may be any text."""
    fixed = {"created", "status", "kind", "bound"}
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
        return replace(value, **changed)
    return value


@pytest.fixture(scope="session")
def texts() -> Callable[..., Any]:
    """Changes every text of a report."""
    return with_texts


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
