"""Check one job, in another process: build it, estimate its memory, and train some steps.

The job's callbacks are left out, so that none of its files is written. Each finding is handed over
at once, so that a process that dies takes none with it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from tfopt.doctor.check import Check, Subject, Verdict, check_of_error, in_one_line
from tfopt.doctor.disk_checks import read_rate
from tfopt.doctor.isolated import ask
from tfopt.errors import CannotCombine, UserError
from tfopt.export.child import in_time
from tfopt.job.cgroup import memory_limit_gib
from tfopt.job.recipe_file import chain_from_toml, chain_to_toml
from tfopt.monitor.nvml import gpu_memories

if TYPE_CHECKING:
    from tfopt.job.job import Job
    from tfopt.run import Prepared

_MIB = 1024**2
# What processes took of tfopt.training_memory's estimate, in its benchmarks without remat.
_MARGIN = 1.2
_STEPS = 3
_LISTING_S = 20.0
_READING_S = 60.0


def job(subject: Subject) -> Iterable[Check]:
    """Yield what is found in the job; "not here" where none is named."""
    if subject.job is None:
        text = "none is named: `tfopt doctor my_package.train:job` looks at one"
        yield Check("job", "job", "not here", text)
        return
    memory_mib, owner = _memory_here(subject)
    asked = {
        "job": subject.job,
        "arguments": dict(subject.arguments),
        "chain": chain_to_toml(subject.chain),
        "memory_mib": memory_mib,
        "memory_of": owner,
        "read_mib_per_s": None if subject.data is None else _read_rate(subject.data),
    }
    found = ask(examine_job, asked, subject.job_limit_s)
    yield from found.answers
    if found.ended is not None:
        fix = "train it by itself to see more; with SIGKILL, try a smaller batch first"
        text = f"the job's process ended while at: {found.at}"
        yield Check("job", "job", "failure", text, (found.ended,), fix)


def _read_rate(folder: Path) -> float | None:
    try:
        rate = in_time(_READING_S, lambda: read_rate(folder))
    except OSError:  # a TimeoutError too: the disk's own check says what is wrong
        return None
    return None if rate is None else rate[0]


def _memory_here(subject: Subject) -> tuple[float, str]:
    """Return the memory for a step: the smallest GPU's, or the host's within its container."""
    gpus = in_time(_LISTING_S, gpu_memories)
    if isinstance(gpus, list) and gpus:
        return min(gpu.total_mib for gpu in gpus), "the GPU"
    free = psutil.virtual_memory().available / _MIB
    limit = memory_limit_gib(subject.root)
    return (free, "the host") if limit is None else (min(free, limit * 1024), "the container")


def examine_job(asked: Mapping[str, Any]) -> Iterator[str | Check]:
    """Yield the stages, as texts, and the checks; runs in another process."""
    from tfopt.run import prepared

    yield "making the job"
    try:
        job = _made(asked)
    except UserError as error:
        name = "transforms" if isinstance(error, CannotCombine) else "job"
        yield check_of_error("job", name, error)
        return
    kinds = [type(part).__name__ for part in job.applied]
    text = ", ".join(kinds) + (" combine" if len(kinds) > 1 else "")
    text = text or "none: the job is plain"
    yield Check("job", "transforms", "ok", text, tuple(map(repr, job.applied)))
    yield "building the model and reading the data"
    try:
        with prepared(job.with_(callbacks=()), endless=True) as ready:
            yield _built(ready)
            yield _batch(ready)
            yield _policy(ready)
            yield "estimating its memory"
            yield _tried("memory", lambda: _memory(ready, asked["memory_mib"], asked["memory_of"]))
            yield f"training {_STEPS} steps"
            yield _tried("rehearsal", lambda: _rehearsed(ready, asked["read_mib_per_s"]))
    except Exception as error:
        yield _failed("job", error)


def _made(asked: Mapping[str, Any]) -> Job:
    from tfopt.job.references import resolve_job

    return chain_from_toml(asked["chain"]).apply(resolve_job(asked["job"], asked["arguments"]))


def _tried(name: str, look: Callable[[], Check]) -> Check:
    """Return what ``look`` finds, or its exception as a failure: the other checks go on."""
    try:
        return look()
    except Exception as error:
        return _failed(name, error)


def _failed(name: str, error: Exception) -> Check:
    if isinstance(error, UserError):
        return check_of_error("job", name, error)
    fix = "train it by itself to see the whole trace"
    return Check("job", name, "failure", in_one_line(error), (), fix)


def _built(ready: Prepared) -> Check:
    idle = [type(each).__name__ for each, effect in ready.effects if not effect.acted]
    evidence = tuple(f"{type(each).__name__}: {effect.note}" for each, effect in ready.effects)
    text = f"builds: {ready.model.count_params():,} parameters, {ready.data.summary}"
    if idle:
        text += f"; {', '.join(idle)} change nothing on this machine before training"
    return Check("job", "job", "ok", text, evidence)


def _batch(ready: Prepared) -> Check:
    size, replicas = ready.facts.batch_size, ready.facts.replicas
    if size is None:
        return Check("job", "batch", "ok", "as the data yields it")
    text = f"{size} examples a step"
    if replicas > 1:
        text += f" over {replicas} replicas"
        if size % replicas:
            text += ", which it does not divide into"
            return Check("job", "batch", "failure", text, (), f"use a multiple of {replicas}")
        text += f", {size // replicas} on each"
    return Check("job", "batch", "ok", text)


def _policy(ready: Prepared) -> Check:
    kinds = Counter(layer.dtype_policy.name for layer in ready.model._flatten_layers(False))
    text = ", ".join(f"{count} layers in {name}" for name, count in kinds.most_common())
    scaled = hasattr(ready.model.optimizer, "inner_optimizer")
    if any(layer.compute_dtype == "float16" for layer in ready.model._flatten_layers(False)):
        if not scaled:
            fix = "tfopt.mixed_precision(model, 'mixed_float16') puts the scaling on"
            text += ", and gradients are not scaled: small ones become zero"
            return Check("job", "precision", "failure", text, (), fix)
        text += ", with loss scaling"
    return Check("job", "precision", "ok", text)


def _memory(ready: Prepared, available_mib: float, owner: str) -> Check:
    from tfopt.train.memory_estimate import training_memory

    facts = ready.facts
    if facts.replicas > 1:
        text = f"not estimated for {facts.replicas} replicas: look at the job without Distribute"
        return Check("job", "memory", "not here", text)
    try:
        estimate = training_memory(ready.model, first_batch(ready), facts.batch_size)
    except UserError:
        raise
    except Exception:  # the rehearsal says what is wrong
        return Check("job", "memory", "not here", "the step cannot be traced: see rehearsal")
    evidence = tuple(str(estimate).splitlines())
    text = f"a step takes about {estimate.peak_mib:,.1f} MiB; {owner} has {available_mib:,.0f} MiB"
    verdict: Verdict
    if estimate.peak_mib > available_mib:
        verdict, text = "failure", f"{text}: it will not fit"
    elif estimate.peak_mib * _MARGIN > available_mib:
        verdict, text = "warning", f"{text}: it may not fit"
    else:
        return Check("job", "memory", "ok", text, evidence)
    fix = "a smaller batch, tfopt.accumulate(), tfopt.remat() or tfopt.mixed_precision()"
    return Check("job", "memory", verdict, text, evidence, fix)


def first_batch(ready: Prepared) -> tuple[Any, ...]:
    """Return some examples as ``fit`` gives them to a step."""
    import keras

    from tfopt.data.fit_data import Arrays, read_source

    source = read_source(ready.train_input)
    if isinstance(source, Arrays):
        size = ready.facts.batch_size or 1
        batch = keras.tree.map_structure(lambda leaf: leaf[:size], source.structure)
    else:
        batch = source.first
    return batch if isinstance(batch, tuple) else (batch,)


def _rehearsed(ready: Prepared, read_mib_per_s: float | None) -> Check:
    """Train some steps; the last one's time is roughly that of a warm step."""
    import keras

    ends: list[float] = []

    class Few(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            ends.append(time.perf_counter())
            self.model.stop_training = len(ends) >= _STEPS

    begun = time.perf_counter()
    ready.train(callbacks=[Few()], epochs=1, validate=False)
    each = max(int(getattr(ready.model, "steps_per_execution", 1) or 1), 1)
    evidence = [f"the first after {ends[0] - begun:.1f} s, with tracing and compiling"]
    text = f"{len(ends) * each} steps trained"
    if len(ends) > 1:
        step_s = (ends[-1] - ends[-2]) / each
        text += f", the last in {step_s * 1000:.1f} ms"
        needs = _mib(first_batch(ready)) / max(step_s, 1e-9)
        evidence.append(f"at that pace the step takes in {needs:,.0f} MiB/s of examples")
        if read_mib_per_s is not None:
            evidence.append(f"the data's folder gives {read_mib_per_s:,.0f} MiB/s")
            if needs > read_mib_per_s:
                fix = "keep the data in memory or on a faster disk: tfopt.pipeline(cache='memory')"
                text += "; the disk gives less than that, unless files are compressed or cached"
                return Check("job", "rehearsal", "warning", text, tuple(evidence), fix)
    return Check("job", "rehearsal", "ok", text, tuple(evidence))


def _mib(batch: tuple[Any, ...]) -> float:
    import keras
    import numpy as np

    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    return sum(np.asarray(leaf).nbytes for leaf in leaves) / _MIB
