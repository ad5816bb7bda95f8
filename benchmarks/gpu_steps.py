"""The steps of ``gpu_day.py``: each asks tfopt's own engines, and keeps the figures as they come.

A step's own process leaves the GPU to the processes that it starts, unless it computes itself.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import tfopt
from benchmarks.gpu_day import GRACE_S, Day
from benchmarks.peers import CHAIN, TUNED, compare_peers, net_of, sides, table
from tfopt import Execution, MixedPrecision, chain
from tfopt.errors import UserError
from tfopt.job.references import resolve_job
from tfopt.job.transform import Transform
from tfopt.measure.engine import Engine
from tfopt.measure.targets import Target


@dataclass(frozen=True)
class Subject:
    """A job to train, its first batch to try, and the largest."""

    job: str
    arguments: Mapping[str, Any]
    batch: int
    most: int

    def at(self, batch: int) -> dict[str, Any]:
        return {**self.arguments, "batch_size": batch}


IMAGES = {"pixels": 224, "examples": 4096, "as_bytes": True}
# The sizes of BERT-base (Devlin et al. 2018, arXiv:1810.04805), at 128 tokens.
BERT = {"tokens": 128, "blocks": 12, "width": 768, "heads": 12, "vocabulary": 30522}
RESNET50 = Subject("benchmarks.jobs:resnet50", IMAGES, 256, 1024)
TRANSFORMER = Subject("benchmarks.jobs:transformer", {**BERT, "examples": 8192}, 128, 1024)
CNN_MNIST = Subject("tfopt.recipes.cnn_mnist:job", {"data": "synthetic"}, 32, 32)

PRECISIONS = {
    "float32": MixedPrecision("float32", tf32=False),
    "mixed_bfloat16": MixedPrecision("mixed_bfloat16"),
}
_TRIAL_S = 40.0


def _subject(day: Day, name: str) -> Subject:
    return RESNET50 if name == "resnet50" and not day.rehearse else CNN_MNIST


# 1: the chip and its kernels


def doctor(day: Day) -> None:
    """Compute on the GPU what broken stacks get wrong."""
    from tfopt.doctor.examine import doctor as examine

    checks = examine(only=["gpu", "compute"])
    day.keep(checks=[asdict(check) for check in checks])
    failures = [check.message for check in checks if check.verdict == "failure"]
    if failures:
        raise UserError("The doctor found failures.", received="; ".join(failures))


def fused_attention(day: Day) -> None:
    """Compare cuDNN's attention with Keras's in float32, and time both at some lengths."""
    import tensorflow as tf

    from tfopt.train.attention import dot_product_attention, refusal

    seen = tf.sequence_mask([16, 9, 5, 2], 16)[:, None, None]
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "causal": {"is_causal": True},
        "mask": {"mask": seen},
        "mask, causal": {"mask": seen, "is_causal": True},
        "mask by head": {"mask": tf.tile(seen[1:2], (1, 4, 1, 1))},
        "lengths": {"lengths": [16, 9, 5, 2]},
        "lengths, causal": {"lengths": [16, 9, 5, 2], "is_causal": True},
        "trained bias": {"bias": tf.random.stateless_normal((1, 4, 16, 16), (0, 9))},
    }
    bounds = {"float16": 5e-3, "bfloat16": 4e-2}  # twice Keras's own in the same precision
    errors, failed = dict[str, float](), dict[str, str]()
    for dtype in bounds:
        exact = [tf.cast(_drawn((4, 16, 4, 64), seed, dtype), "float32") for seed in range(3)]
        for kind, how in kinds.items():
            bias = [how["bias"]] if "bias" in how else []
            rest = {name: value for name, value in how.items() if name != "bias"}
            half = [tf.cast(each, dtype) for each in [*exact, *bias]]
            try:
                found = _with_gradients(dot_product_attention, half, rest)
            except Exception as error:  # the others are computed all the same
                failed[f"{dtype}, {kind}"] = str(error)
                day.keep(failed=failed)
                continue
            wanted = _with_gradients(dot_product_attention, [*exact, *bias], rest)
            pairs = zip(found, wanted, strict=True)
            gaps = [tf.norm(tf.cast(one, "float32") - two) / tf.norm(two) for one, two in pairs]
            errors[f"{dtype}, {kind}"] = max(map(float, gaps))
            day.keep(errors=errors, refusal=refusal(*half[:3]))
    lengths = [(2, 32)] if day.rehearse else [(8, 2048), (32, 512), (128, 128)]
    times = {}
    for batch, tokens in lengths:
        given = [_drawn((batch, tokens, 12, 64), seed, "bfloat16") for seed in range(3)]
        times[f"{batch} x {tokens}"] = _attention_times(given)
        day.keep(milliseconds=times)
    wrong = [name for name, error in errors.items() if not error < bounds[name.partition(",")[0]]]
    if wrong or failed:
        faults = f"differs: {'; '.join(wrong) or 'none'}; fails: {'; '.join(failed) or 'none'}"
        raise UserError("Fused attention differs from Keras's.", received=faults)


def _drawn(shape: tuple[int, ...], seed: int, dtype: str) -> Any:
    import tensorflow as tf

    return tf.cast(tf.random.stateless_normal(shape, (seed, 1)), dtype)


def _with_gradients(attend: Any, given: list[Any], how: Mapping[str, Any]) -> list[Any]:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(given)
        output = attend(*given, **how)
        loss = tf.reduce_sum(tf.cast(output, "float32") ** 2)
    return [output, *tape.gradient(loss, given)]


def _attention_times(given: list[Any], rounds: int = 30) -> dict[str, float]:
    """Return the median milliseconds forward and backward, by turns of ten calls."""
    import keras
    import tensorflow as tf

    from tfopt.train.attention import dot_product_attention

    steps, taken = {}, {}
    both = (("keras", keras.ops.dot_product_attention), ("fused", dot_product_attention))
    for name, attend in both:
        steps[name] = tf.function(
            lambda *each, attend=attend: _with_gradients(attend, [*each], {}), jit_compile=True
        )
        steps[name](*given)
        taken[name] = []
    for _ in range(rounds):
        for name, step in steps.items():
            tf.test.experimental.sync_devices()
            begun = time.perf_counter()
            for _ in range(10):
                step(*given)
            tf.test.experimental.sync_devices()
            taken[name].append(100 * (time.perf_counter() - begun))
    return {name: round(median(each), 4) for name, each in taken.items()}


# 2: beside PyTorch and JAX


def peers(
    day: Day,
    net: str,
    *,
    blocks: int | None = None,
    beside: list[str],
    flags: list[str],
    first: int = 0,
    most: int | None = None,
) -> None:
    """Train a net by turns with some of the sides that ``benchmarks.peers`` has."""
    on = "rehearsal" if day.rehearse else "gpu"
    chosen = net_of(net, on, blocks=None if day.rehearse else blocks)
    most, flags = (4, flags[:1]) if day.rehearse else (most, flags)
    compared = sides(beside, on, flags=flags)
    if flags:  # only what they change
        compared = [side for side in compared if side.chain == TUNED]
    day.keep(net=asdict(chosen))
    rows = compare_peers(chosen, compared[first:most], day.keep, ends_s=day.ends_s)
    day.keep(table=table(rows).splitlines())
    reason = next(row["reason"] for row in rows if row["name"] == CHAIN)
    if reason is not None:
        raise UserError("The chain was not measured.", received=reason)


# 3: the recipe


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


# 4: batches


def largest_batch(day: Day, subject: str) -> None:
    """Search the largest batch in float32, the precision that takes most memory."""
    job = _subject(day, subject)
    found = tfopt.find_batch_size(
        job.job,
        arguments=job.at(job.batch),
        under=chain(PRECISIONS["float32"]),
        at_most=job.most,
        budget_s=max(day.left_s - _TRIAL_S, 1),
        verbose=True,
    )
    day.keep(**json.loads(found.to_json()))


def _timed(
    job: str, arguments: Mapping[str, Any], transform: Transform, day: Day
) -> dict[str, Any]:
    """Return what a process with the machine to itself takes for a job under a transform."""
    variant = Target(repr(transform), job, chain(transform), arguments)
    with Engine(turn_s=0.1 if day.rehearse else 0.25) as engine:
        (candidate,) = engine.admit([variant])
        engine.take_rounds([candidate], 2 if day.rehearse else 12)
    notes = candidate.ready.notes if candidate.ready else {}
    found: dict[str, Any] = {"did": notes.get(repr(transform)), "reason": candidate.out}
    if not candidate.turns:
        return {**found, "gpu_peak_mib": None}
    process = candidate.timed()
    for name in ("host_peak_mib", "gpu_peak_mib", "energy_per_example_j"):
        found[name] = getattr(process, name)
    return {**found, "gpus": [asdict(gpu) for gpu in process.gpus]}


# 5: tune


def tune(day: Day, subject: str) -> None:
    """Run `tfopt tune` on a job, as `tfopt bench` is run."""
    own, output = _subject(day, subject), day.work / "tune"
    batch = own.batch if own is CNN_MNIST else own.batch // 2
    sets = [f"--set={name}={value}" for name, value in own.at(batch).items()]
    budget_s = 30 if day.rehearse else int(day.left_s - _TRIAL_S)
    limits = ["--budget", f"{budget_s}s", "--seeds", "0"]
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
    from tfopt.measure.input_ways import first_batch
    from tfopt.run import prepared

    tfopt.place("none")
    ways = {
        "float32": chain(Execution(jit_compile=False)),
        "mixed_bfloat16": chain(PRECISIONS["mixed_bfloat16"], Execution(jit_compile=False)),
        "float32 + XLA": chain(Execution(jit_compile=True)),
    }
    subjects = [(CNN_MNIST, 32)] if day.rehearse else [(RESNET50, 64), (TRANSFORMER, 64)]
    rows = []
    for subject, batch in subjects:
        arguments = {**subject.at(batch), **({} if day.rehearse else {"examples": 4 * batch})}
        for name, way in list(ways.items())[: 1 if day.rehearse else None]:
            with prepared(resolve_job(subject.job, arguments), way) as ready:
                estimate = tfopt.training_memory(ready.model, first_batch(ready), batch)
            row = {"job": subject.job, "arguments": arguments, "setting": name}
            row |= {"estimate": asdict(estimate), **_timed(subject.job, arguments, way, day)}
            peak = row["gpu_peak_mib"]
            row["measured_over_estimate"] = None if peak is None else peak / estimate.peak_mib
            rows.append(row)
            day.keep(rows=rows)


# 7: memory that runs out


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
        day.keep(placed=placed.note, explained=str(error), phase=error.phase)
        day.keep(asked=asdict(error.asked))
        return
    raise UserError("Memory did not run out.", expected="a step that does not fit 2,048 MiB")
