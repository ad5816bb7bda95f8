"""The steps of ``gpu_day.py``: each asks tfopt's own engines, and keeps the figures as they come.

A step's own process leaves the GPU to the processes that it starts, unless it computes itself.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import tfopt
from benchmarks.gpu_day import GRACE_S, Day
from tfopt import Execution, MixedPrecision, Place, chain
from tfopt.doctor.hardware_estimate import gpu_named
from tfopt.errors import DevicesAlreadyInitialised, UserError
from tfopt.job.references import resolve_job
from tfopt.measure.blocks import QUICK, BlockStore, Span
from tfopt.measure.process import WorkerResult, run_worker
from tfopt.measure.rounds import Budget, Measurements, RoundsPlan, matched, rounds
from tfopt.measure.tasks import OneBlock
from tfopt.measure.variant import Variant
from tfopt.measure.watcher import Watcher
from tfopt.monitor.metrics import GPU_METRICS
from tfopt.monitor.nvml import gpu_memories, why_no_gpu
from tfopt.report.block import Block


@dataclass(frozen=True)
class Subject:
    """A job to train, its first batch to try, and arguments that give it few examples."""

    job: str
    arguments: Mapping[str, Any]
    batch: int
    most: int
    few: Mapping[str, Any] = field(default_factory=dict)

    def at(self, batch: int) -> dict[str, Any]:
        return {**self.arguments, "batch_size": batch}


FEW = {"examples": 8}
IMAGES = {"pixels": 224, "examples": 4096, "as_bytes": True}
# The sizes of BERT-base (Devlin et al. 2018, arXiv:1810.04805), at 128 tokens.
BERT = {"tokens": 128, "blocks": 12, "width": 768, "heads": 12, "vocabulary": 30522}
TINY = {"tokens": 16, "blocks": 1, "width": 32, "heads": 2, "vocabulary": 100, "examples": 256}
RESNET50 = Subject("benchmarks.jobs:resnet50", IMAGES, 256, 1024, FEW)
TRANSFORMER = Subject("benchmarks.jobs:transformer", {**BERT, "examples": 8192}, 128, 1024, FEW)
CNN_MNIST = Subject("tfopt.recipes.cnn_mnist:job", {"data": "synthetic"}, 32, 32)
SUBJECTS = {"cnn_mnist": CNN_MNIST, "resnet50": RESNET50, "transformer": TRANSFORMER}
REHEARSED = {
    "cnn_mnist": CNN_MNIST,
    "resnet50": CNN_MNIST,
    "transformer": Subject("benchmarks.jobs:transformer", TINY, 8, 8),
}

PRECISIONS = {
    "float32": MixedPrecision("float32", tf32=False),
    "TF32": MixedPrecision("float32", tf32=True),
    "mixed_float16": MixedPrecision("mixed_float16"),
    "mixed_bfloat16": MixedPrecision("mixed_bfloat16"),
}
# TensorFlow's name of a GPU, and the one that tfopt has published figures under.
PUBLISHED = {
    "NVIDIA H100 80GB HBM3": "H100 SXM",
    "NVIDIA H100 PCIe": "H100 PCIe",
    "NVIDIA H200": "H200 SXM",
}
_XLA = " + XLA"
_TRIAL_S = 40.0


def _subject(day: Day, name: str) -> Subject:
    return (REHEARSED if day.rehearse else SUBJECTS)[name]


def _span(day: Day) -> Span:
    return QUICK if day.rehearse else Span(windows=10, window_ms=250.0, warm_up_s=1.0)


# 1: TensorFlow and the chip


def tensorflow(day: Day) -> None:
    """Say which devices and libraries TensorFlow has, and compare products with NumPy's."""
    import numpy as np
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    details = [{"name": gpu.name, **tf.config.experimental.get_device_details(gpu)} for gpu in gpus]
    built = {name: str(value) for name, value in tf.sysconfig.get_build_info().items()}
    day.keep(gpus=details, tensorflow_built_with=built)
    device = "GPU:0" if gpus else "CPU:0"
    random = np.random.default_rng(0)
    worst = {}
    bounds = {"float32": 1e-5, "TF32": 5e-3, "float16": 5e-3, "bfloat16": 2e-2}
    for name, bound in bounds.items():
        kind, tf32 = name.replace("TF32", "float32"), name == "TF32"
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        a, b = (tf.cast(random.normal(size=(512, 512)), kind) for _ in "ab")
        exact = a.numpy().astype("float64") @ b.numpy().astype("float64")
        with tf.device(device):
            product = tf.linalg.matmul(a, b)
        error = np.abs(product.numpy().astype("float64") - exact).max() / np.abs(exact).max()
        worst[name] = {"largest_error": float(error), "bound": bound, "on": product.device}
    # What cuDNN computes, against the CPU's own.
    tf.config.experimental.enable_tensor_float_32_execution(False)
    images = tf.random.stateless_normal((8, 32, 32, 16), (0, 1))
    kernel = tf.random.stateless_normal((3, 3, 16, 8), (0, 2))
    results = []
    for place in (device, "CPU:0"):
        with tf.device(place):
            results.append(tf.nn.conv2d(images, kernel, 1, "SAME"))
    error = float(tf.reduce_max(abs(results[0] - results[1])) / tf.reduce_max(abs(results[1])))
    worst["convolution"] = {"largest_error": error, "bound": 1e-4, "on": results[0].device}
    day.keep(products=worst, libraries_loaded=_libraries())
    if not gpus and not day.rehearse:
        raise UserError("TensorFlow sees no GPU.", received=why_no_gpu())
    wrong = [name for name, each in worst.items() if each["largest_error"] > each["bound"]]
    if wrong:
        what = "Products on the GPU are not what NumPy computes."
        raise UserError(what, received=f"other results in {', '.join(wrong)}")


def _libraries() -> list[str]:
    """Return the file names of NVIDIA's libraries in this process, with their versions."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    return sorted(set(re.findall(r"/(lib(?:cu|nv)[\w.-]*\.so[\w.]*)", maps)))


def ceilings(day: Day) -> None:
    """Measure the products that the chip reaches at most."""
    import tensorflow as tf

    from tfopt.measure.ceilings import ceilings as measured

    device = "CPU:0" if day.rehearse else "GPU:0"
    reached: dict[str, Any] = {}
    for name, dtype in zip(PRECISIONS, ("float32", "float32", "float16", "bfloat16"), strict=True):
        tf.config.experimental.enable_tensor_float_32_execution(name == "TF32")
        try:
            found = asdict(measured(dtype, device))
            reached[name] = {**found, "published_gflops": _published_gflops(name)}
        except UserError as error:
            reached[name] = {"gflops": None, "reason": error.what}
        day.keep(ceilings=reached)
        if day.rehearse:
            return


def _published_gflops(precision: str) -> float | str:
    """Return the published peak of this GPU's products, or why it is not known."""
    memories = gpu_memories()
    if isinstance(memories, str) or not memories:
        return why_no_gpu()
    name = memories[0].name
    if name not in PUBLISHED:
        return f"no published figures are known here for {name}"
    gpu = gpu_named(PUBLISHED[name])
    # Without TF32, products in float32 do not run on tensor cores.
    if precision == "float32":
        return 1000 * gpu.other_tflops
    dtype = precision.removeprefix("mixed_").replace("TF32", "float32")
    return 1000 * gpu.products_tflops[dtype]


# 2: the recipe


def cnn_mnist(day: Day) -> None:
    """Run the recipe as users do."""
    flags = ["--data", "embedded", "--transforms", "mixed_precision,execution"]
    if day.rehearse:
        flags = ["--data", "synthetic", "--epochs", "1", "--steps", "8", "--transforms", "pipeline"]
    command = ["-m", "tfopt.recipes.cnn_mnist", *flags, "--output", str(day.work / "recipe")]
    _command(day, command, day.work / "recipe")


def _command(day: Day, arguments: list[str], output: Path) -> None:
    """Run a command of tfopt's until its time is over; keep the reports that it leaves."""
    process = subprocess.Popen([sys.executable, *arguments])
    try:
        code: int | str = process.wait(max(day.left_s - GRACE_S, 1))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # it then writes a report of what it has
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        code = "ended when its time was over"
    finally:
        process.kill()
    reports = {path.name: json.loads(path.read_text()) for path in sorted(output.glob("*.json"))}
    shown = [each if each != str(output) else "FOLDER" for each in arguments]
    day.keep(ran=f"python {' '.join(shown)}", exit_code=code, reports=reports)
    if code != 0:
        raise UserError("The command did not come to its end.", received=f"exit code {code}")


# 3 and 4: batches and steps in every setting


def largest_batch(day: Day, subject: str) -> None:
    """Search the largest batch in float32, the precision that takes most memory."""
    tried, job = [], _subject(day, subject)

    def tell(attempt: Any) -> None:
        tried.append(asdict(attempt))
        day.keep(attempts=tried)

    found = tfopt.find_batch_size(
        job.job,
        arguments=job.at(job.batch),
        under=chain(PRECISIONS["float32"]),
        power_of_two=True,
        at_most=job.most,
        repeats=0,
        within_s=max(day.left_s - _TRIAL_S, 1),
        tell=tell,
    )
    day.keep(**json.loads(found.to_json()))


def settings(day: Day, subject: str, precisions: list[str]) -> None:
    """Measure a step in turns, in each precision with and without XLA, and in plain float32."""
    tfopt.place("none")  # in this process: the workers have the GPU to themselves
    own = _subject(day, subject)
    largest = day.earlier(f"{subject}_batch").get("largest")
    # Without a search, half of where it would begin: that should fit in every setting.
    batch = largest or max(own.batch // 2, 1)
    told = f"found by the step {subject}_batch"
    gflop = _gflop_per_example(own)
    day.keep(
        job=own.job,
        arguments=own.at(batch),
        batch_from=told if largest else f"assumed, not {told}",
        product_gflop_per_example=gflop,
    )
    chains = {
        f"{name}{_XLA if jit else ''}": chain(PRECISIONS[name], Execution(jit_compile=jit))
        for jit in (False, True)
        for name in dict.fromkeys(["float32", *precisions])
        if not jit or name in precisions
    }
    if day.rehearse:  # one setting: TF32 with XLA, or mixed_float16 without
        chains = dict([list(chains.items())[-1 if "TF32" in precisions else 1]])
    plan = RoundsPlan(
        tuple(Variant(name, own.job, each, own.at(batch)) for name, each in chains.items()),
        span=_span(day),
        budget=Budget(2, 20),
    )
    store = BlockStore(day.work / "blocks", plan.to_dict())
    store.open(resume=False)
    begun = time.monotonic()
    for _ in rounds(plan, store, _Settings(day, plan, gflop)):
        took_s, begun = time.monotonic() - begun, time.monotonic()
        if day.rehearse or day.left_s < 1.1 * took_s:
            return


class _Settings(Watcher):
    """A listener to the rounds that sums up after each block: a step may be cut off."""

    def __init__(self, day: Day, plan: RoundsPlan, gflop: float | None) -> None:
        self.day, self.plan, self.gflop = day, plan, gflop
        self.blocks: dict[str, list[Block]] = {each.name: [] for each in plan.variants}
        self.failed: dict[str, str] = {}

    def doing(self, what: str, variant: str, left_s: tuple[float, float] | None) -> None:
        print(f"{what}: {variant}", flush=True)

    def block_ended(self, variant: str, block: Block) -> None:
        self.blocks[variant].append(block)
        self._keep()

    def left_out(self, variant: str, reason: str) -> None:
        self.failed[variant] = reason
        self._keep()

    def _keep(self) -> None:
        tries = {name: tuple((each,) for each in own) for name, own in self.blocks.items()}
        found = Measurements(self.plan, tries, self.failed)
        told = [{"setting": n, **asdict(each)} for n, own in self.blocks.items() for each in own]
        rows = {name: _setting(self.day, found, name, self.gflop) for name in self.blocks}
        self.day.keep(settings=rows, left_out=self.failed, blocks=told)


def _gflop_per_example(subject: Subject) -> float | None:
    """Return the products of a training step for one example; None where nobody can count them."""
    from tfopt.measure.step_cost import step_cost
    from tfopt.run import prepared

    job = resolve_job(subject.job, {**subject.at(8), **subject.few})
    with prepared(Execution(jit_compile=False).apply(job)) as ready:
        cost = step_cost(ready)
    if isinstance(cost, str):
        print(f"the products of a step are not counted: {cost}")
        return None
    return cost.product_gflop / 8


def _setting(day: Day, found: Measurements, name: str, gflop: float | None) -> dict[str, Any]:
    """Return what the rounds so far say of a setting; shares are of products alone."""
    blocks = [block for block in found.blocks(name) if block.invalid is None]
    precision = name.removesuffix(_XLA)
    row: dict[str, Any] = {
        "rounds": len(blocks),
        "invalid": [block.invalid for block in found.blocks(name) if block.invalid is not None],
        "left_out": found.left_out.get(name),
        "time_against_float32": _against(found, "float32", name),
        "time_against_without_xla": _against(found, precision, name),
    }
    if not blocks:
        return row
    step_ms = median(block.step_ms for block in blocks)
    per_s = 1000 * (blocks[0].examples_per_step or 0) / step_ms
    gflops = None if gflop is None else gflop * per_s
    roofs = {"published": _published_gflops(precision), "measured": _ceiling(day, precision)}
    known = {roof: each for roof, each in roofs.items() if isinstance(each, float)}
    return {
        **row,
        "step_ms": step_ms,
        "examples_per_s": per_s,
        "product_gflops": gflops,
        **{f"share_of_{r}_peak": gflops / each if gflops else None for r, each in known.items()},
        "without_a_share": {roof: each for roof, each in roofs.items() if roof not in known},
        "energy_per_example_j": blocks[-1].energy_per_example_j,
        "gpu_steady_peak_mib": blocks[-1].memory.gpu_steady_peak_mib,
        "first_step_s": median(block.first_step_s for block in blocks),
    }


def _ceiling(day: Day, precision: str) -> float | str:
    reached = day.earlier("ceilings").get("ceilings", {}).get(precision, {}).get("gflops")
    return float(reached) if reached else f"the step ceilings has measured none in {precision}"


def _against(found: Measurements, reference: str, name: str) -> dict[str, Any] | None:
    """Return the time of an example as a share of the reference's, beside it in each round."""
    if reference == name or not {reference, name} <= found.tries.keys():
        return None
    compared = found.compared(reference, name)
    if compared is not None:
        return asdict(compared)
    pairs = matched(found.blocks(reference), found.blocks(name))
    if not pairs:
        return None
    one, other = (median(block.per_example_ms) for block in pairs[0])
    return {"ratio": other / one, "low": None, "high": None, "rounds": 1, "note": "no interval"}


# 5: tune


def tune(day: Day, subject: str) -> None:
    """Run `tfopt tune` on a job, as `tfopt bench` is run."""
    own, output = _subject(day, subject), day.work / "tune"
    batch = own.batch if own is CNN_MNIST else own.batch // 2
    sets = [f"--set={name}={value}" for name, value in own.at(batch).items()]
    budget_s = 30 if day.rehearse else int(day.left_s - _TRIAL_S)
    limits = ["--budget", f"{budget_s}s", "--seeds", "0", "--anew"]
    _command(day, ["-m", "tfopt", "tune", own.job, *sets, *limits, "--output", str(output)], output)


# 6: memory


def serving(day: Day) -> None:
    """Hold exported files beside their model, and their calls beside TensorFlow's on the GPU."""
    import keras
    import numpy as np

    tfopt.place(memory_growth=True)
    size = 32 if day.rehearse else 224
    model = keras.applications.MobileNetV2(weights=None, input_shape=(size, size, 3))
    x = np.random.default_rng(0).random((64, size, size, 3)).astype("float32")
    on_cpu = {"target": "cpu-latency", "formats": ["saved_model", "litert"], "turns": 5}
    settings = {**on_cpu, "precision": ["float32"]} if day.rehearse else {"target": "gpu-latency"}
    # With random weights only the errors show which files are right.
    best = tfopt.optimize(model, x, folder=day.work / "served", max_drop=100, **settings)
    files = {
        each.file.name: {
            "ms": each.latency_ms,
            "relative_error": each.file.parity.relative_error,
            "kib": each.file.kib,
        }
        for each in best.candidates
    }
    refused = {each.name: each.reason for each in best.refused}
    day.keep(chosen=best.winner.name, files=files, refused=refused, table=str(best).splitlines())


def memory(day: Day) -> None:
    """Put the estimate of a step beside the peak of TensorFlow's allocator in a real one."""
    from tfopt.doctor.job_checks import first_batch
    from tfopt.run import prepared

    tfopt.place("none")
    ways = {
        "float32": chain(Execution(jit_compile=False)),
        "mixed_bfloat16": chain(PRECISIONS["mixed_bfloat16"], Execution(jit_compile=False)),
        f"float32{_XLA}": chain(Execution(jit_compile=True)),
    }
    subjects = [(CNN_MNIST, 32)] if day.rehearse else [(RESNET50, 64), (TRANSFORMER, 64)]
    rows = []
    for subject, batch in subjects:
        arguments = {**subject.at(batch), **({} if day.rehearse else {"examples": 4 * batch})}
        for name, way in list(ways.items())[: 1 if day.rehearse else None]:
            with prepared(way.apply(resolve_job(subject.job, arguments))) as ready:
                told = tfopt.training_memory(ready.model, first_batch(ready), batch)
            result = _block(subject.job, arguments, way, QUICK)
            row = {"job": subject.job, "arguments": arguments, "setting": name}
            row.update(estimate=asdict(told), measured_over_estimate=None, reason=result.reason)
            if result.value is not None:
                peak = result.value.memory.gpu_steady_peak_mib
                row["measured"] = asdict(result.value.memory)
                row["measured_over_estimate"] = None if peak is None else peak / told.peak_mib
            rows.append(row)
            day.keep(rows=rows)


def _block(job: str, arguments: Any, transforms: Any, span: Span) -> WorkerResult[Block]:
    return run_worker(OneBlock(span), job=job, arguments=arguments, chain=chain(transforms))


# 7: monitoring


def monitoring(day: Day) -> None:
    """List what NVML tells here, what asking costs a step, and the energy of an example."""
    own = _subject(day, "resnet50")
    arguments = own.at(max(own.batch // 2, 1))
    result = _block(own.job, arguments, PRECISIONS["mixed_bfloat16"], _span(day))
    energy = {"job": own.job, "arguments": arguments, "setting": "mixed_bfloat16"}
    energy.update(energy_per_example_j=None, reason=result.reason)
    if result.value is not None:
        energy["energy_per_example_j"] = result.value.energy_per_example_j
        energy["gpus"] = [asdict(gpu) for gpu in result.value.gpus]
    day.keep(energy=energy)
    from monitor_overhead import OFF, RATES, Windows
    from paired import paired_ratio
    from tfopt.measure.clock import WindowClock
    from tfopt.monitor.sampler import sampling
    from tfopt.run import prepared

    turns, seconds = (2, 0.1) if day.rehearse else (8, 1.5)
    windows = Windows(turns, seconds)
    job = resolve_job(CNN_MNIST.job, {**CNN_MNIST.arguments, "steps": 10**9})
    with prepared(job, endless=True) as ready:
        ready.train(callbacks=[windows], epochs=1, validate=False)
        # The first turn of all traces and warms up.
        times = {name: each[1:] for name, each in windows.step_s.items()}
        cost = [paired_ratio(f"{n} / without", times[n], times[OFF]) for n in RATES]
        day.keep(step_time_when_sampled=[asdict(ratio) for ratio in cost])
        # Longer than the slowest metric's pause.
        span = Span(windows=2, window_ms=100) if day.rehearse else Span(windows=12, window_ms=1000)
        clock = WindowClock(None, windows=span.windows, window_ms=span.window_ms, warm_up_s=0.0)
        with sampling(os.getpid(), clock=time.perf_counter) as sampler:
            ready.train(callbacks=[clock], epochs=1, validate=False)
        recording = sampler.recording()
    fields = [
        {
            "name": gpu.name,
            "given": {m.name: _newest(recording, place, m.name) for m in GPU_METRICS},
            "missing": dict(gpu.missing),
        }
        for place, gpu in enumerate(recording.gpus)
    ]
    day.keep(fields=fields, samples=len(recording.samples), no_gpu_reason=recording.no_gpu_reason)


def _newest(recording: Any, place: int, metric: str) -> float | None:
    values = [getattr(sample.gpus[place], metric) for sample in recording.samples]
    return next((value for value in reversed(values) if value is not None), None)


# 8: memory that runs out


def out_of_memory(day: Day, jit_compile: bool) -> None:
    """Train a step that is far too large for a limit, and keep how tfopt explains it."""
    placed = tfopt.place(memory_limit_mib=2048)
    import keras
    import numpy as np

    from tfopt.train.out_of_memory import OutOfMemory

    layers, examples = keras.layers, 1024
    inputs = x = keras.Input((128, 128, 3))
    for _ in range(3):
        x = layers.Conv2D(64, 3, padding="same", activation="relu")(x)
    pooled = layers.GlobalAveragePooling2D()(x)
    if day.rehearse:  # a CPU has no limit to be set: 16 TiB, which no machine has
        inputs, examples = keras.Input((4,)), 64
        x = layers.Dense(1 << 20, "relu")(inputs)
        x = layers.Lambda(lambda t: t[:, :, None] * t[:, None, : 1 << 16])(x)
        pooled = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(1)(pooled))
    model.compile("adam", "mse", jit_compile=jit_compile)
    x, y = np.zeros((examples, *inputs.shape[1:]), "float32"), np.zeros((examples, 1), "float32")
    try:
        with tfopt.explain_out_of_memory(model):
            model.fit(x, y, batch_size=examples, verbose=0)
    except OutOfMemory as error:
        ways = [asdict(way) for way in error.ways]
        day.keep(placed=placed.note, explained=str(error), phase=error.phase, ways=ways)
        day.keep(asked=asdict(error.asked))
        return
    raise UserError("Memory did not run out.", expected="a step that does not fit 2,048 MiB")


# 9: placement


def placement(day: Day) -> None:
    """Hold a process's memory under each way of tfopt.place beside what was asked for."""
    parts = {
        "memory growth": Place(),
        "all at once": Place(memory_growth=False),
        "limit of 4096 MiB": Place(memory_limit_mib=4096),
        "most free": Place("most_free"),
        "none": Place("none"),
    }
    arguments = {**CNN_MNIST.arguments, "batch_size": 32}
    ways: dict[str, Any] = {}
    for name, part in list(parts.items())[: 1 if day.rehearse else None]:
        result = _block(CNN_MNIST.job, arguments, part, QUICK)
        ways[name] = {"did": result.notes_of(part), "reason": result.reason}
        if result.value is not None:
            used = [gpu.name for gpu in result.value.gpus]
            ways[name].update(memory=asdict(result.value.memory), gpus_used=used)
        day.keep(ways=ways)
    import tensorflow as tf

    tf.config.list_logical_devices()
    try:
        late = tfopt.place(memory_growth=True).note
    except DevicesAlreadyInitialised as error:
        late = f"refused: {error.what}"
    day.keep(place_after_the_devices_are_initialised=late)
