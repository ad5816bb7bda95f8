"""One job looked at in a process of its own: made, built, weighed, and some steps of it trained.

Guarantees: the job's callbacks are left out of the rehearsal, so that none of its files is written;
each finding is handed over at once, so that a process that dies takes none with it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt.doctor.check import Check, Verdict, in_one_line, of_error
from tfopt.doctor.job_checks import Product, products_of
from tfopt.errors import CannotCombine, UserError

if TYPE_CHECKING:
    from tfopt.job.job import Job
    from tfopt.run import Prepared

_MIB = 1024**2
# What processes took of what tfopt.training_memory told, in its benchmarks without remat.
_MARGIN = 1.2
_STEPS = 3
_NAMED = 8


def look_at(asked: Mapping[str, Any], at: Any) -> Iterator[Mapping[str, Any]]:
    """In the process: the checks, as JSON values."""
    for check in _checks(asked, at):
        yield asdict(check)


def _checks(asked: Mapping[str, Any], at: Any) -> Iterator[Check]:
    from tfopt.run import prepared

    at("making the job")
    try:
        job, told = _made(asked)
    except CannotCombine as error:
        yield of_error("job", "transforms", error)
        return
    except UserError as error:
        yield of_error("job", "job", error)
        return
    yield Check("job", "transforms", "ok", told, tuple(map(repr, job.applied)))
    at("building the model and reading the data")
    try:
        with prepared(job.with_(callbacks=()), endless=True) as ready:
            yield from _of_prepared(ready, asked, at)
    except UserError as error:
        yield of_error("job", "job", error)
    except Exception as error:
        yield _failed("job", error)


def _made(asked: Mapping[str, Any]) -> tuple[Job, str]:
    from tfopt.job.recipe_file import read_recipe
    from tfopt.job.references import resolve_job

    job = resolve_job(asked["job"], asked["arguments"])
    if asked["chain"]:
        job = read_recipe(Path(asked["chain"])).chain.apply(job)
    kinds = [type(part).__name__ for part in job.applied]
    told = ", ".join(kinds) + (" combine" if len(kinds) > 1 else "")
    return job, told or "none: the job is plain"


def _of_prepared(ready: Prepared, asked: Mapping[str, Any], at: Any) -> Iterator[Check]:
    yield _effects(ready)
    yield _batch(ready)
    yield _policy(ready)
    at("estimating its memory")
    yield _tried("memory", lambda: _memory(ready, asked["memory_mib"], asked["memory_of"]))
    yield from _shapes(list(products_of(ready.model)), ready.model)
    at(f"training {_STEPS} steps")
    yield _tried("rehearsal", lambda: _rehearsed(ready, asked["read_mib_per_s"]))


def _tried(name: str, look: Callable[[], Check]) -> Check:
    """A step that fails is the job's failure, and not the end of the others."""
    try:
        return look()
    except UserError as error:
        return of_error("job", name, error)
    except Exception as error:
        return _failed(name, error)


def _failed(name: str, error: Exception) -> Check:
    told = in_one_line(error)
    fix = "train it by itself to see the whole trace"
    return Check("job", name, "failure", told, (), fix)


def _effects(ready: Prepared) -> Check:
    idle = [type(each).__name__ for each, effect in ready.effects if not effect.acted]
    evidence = tuple(f"{type(each).__name__}: {effect.note}" for each, effect in ready.effects)
    told = f"builds: {ready.model.count_params():,} parameters, {ready.data.summary}"
    if idle:
        told += f"; {', '.join(idle)} change nothing on this machine before training"
    return Check("job", "job", "ok", told, evidence)


def _batch(ready: Prepared) -> Check:
    facts = ready.facts
    if facts.batch_size is None:
        return Check("job", "batch", "ok", "as the data yields it")
    told, evidence = f"{facts.batch_size} examples a step", ()
    if facts.replicas > 1:
        told += f" over {facts.replicas} replicas"
        if facts.batch_size % facts.replicas:
            fix = f"use a multiple of {facts.replicas}"
            told += ", which it does not divide into"
            return Check("job", "batch", "failure", told, evidence, fix)
        told += f", {facts.batch_size // facts.replicas} on each"
    return Check("job", "batch", "ok", told, evidence)


def _policy(ready: Prepared) -> Check:
    kinds = Counter(layer.dtype_policy.name for layer in ready.model._flatten_layers(False))
    told = ", ".join(f"{count} layers in {name}" for name, count in kinds.most_common())
    scaled = hasattr(ready.model.optimizer, "inner_optimizer")
    if any(layer.compute_dtype == "float16" for layer in ready.model._flatten_layers(False)):
        if not scaled:
            fix = "tfopt.mixed_precision(model, 'mixed_float16') puts the scaling on"
            told += ", and gradients are not scaled: small ones become zero"
            return Check("job", "precision", "failure", told, (), fix)
        told += ", with loss scaling"
    return Check("job", "precision", "ok", told)


def _memory(ready: Prepared, there_mib: float, of: str) -> Check:
    from tfopt.train.memory_estimate import training_memory

    facts = ready.facts
    if facts.replicas > 1:
        told = f"not told for {facts.replicas} replicas at once: look at the job without Distribute"
        return Check("job", "memory", "not here", told)
    try:
        told_by = training_memory(ready.model, first_batch(ready), facts.batch_size)
    except UserError:
        raise
    except Exception:  # the rehearsal tells what is wrong
        return Check("job", "memory", "not here", "the step cannot be traced: see rehearsal")
    evidence = tuple(str(told_by).splitlines())
    told = f"a step takes about {told_by.peak_mib:,.1f} MiB; {of} has {there_mib:,.0f} MiB"
    verdict: Verdict
    if told_by.peak_mib > there_mib:
        verdict, told = "failure", told + ": it will not fit"
    elif told_by.peak_mib * _MARGIN > there_mib:
        verdict, told = "warning", told + ": it may not fit"
    else:
        return Check("job", "memory", "ok", told, evidence)
    fix = "a smaller batch, tfopt.accumulate(), tfopt.remat() or tfopt.mixed_precision()"
    return Check("job", "memory", verdict, told, evidence, fix)


def first_batch(ready: Prepared) -> tuple[Any, ...]:
    """Some examples as ``fit`` gives them to a step."""
    import keras

    from tfopt.data.sources import Arrays, read_source

    source = read_source(ready.train_input)
    if isinstance(source, Arrays):
        size = ready.facts.batch_size or 1
        batch = keras.tree.map_structure(lambda leaf: leaf[:size], source.structure)
    else:
        batch = source.first
    return batch if isinstance(batch, tuple) else (batch,)


def _shapes(products: list[Product], model: Any) -> Iterator[Check]:
    import tensorflow as tf

    if not products:
        return
    uneven = [told for each in products if (told := each.uneven(8))]
    in_int8 = [told for each in products if (told := each.uneven(16))]
    on_gpu = bool(tf.config.get_visible_devices("GPU"))
    evidence = (*_few(uneven, "of 8"), *_few(in_int8, "of 16, for int8"))
    if not uneven:
        told = f"all {len(products)} products have sizes in multiples of 8"
        yield Check("job", "tensor cores", "ok", told, evidence)
        return
    told = f"{len(uneven)} of {len(products)} products have sizes that are no multiple of 8"
    if not on_gpu:
        told += "; that matters on a GPU, in half precision"
    fix = "pad widths as listed; inputs of the first and outputs of the last layer cost little"
    # Of the two ends of a model nobody need be warned: their sizes are given.
    inner = [each for each in products[1:-1] if each.uneven(8)]
    serious = on_gpu and inner
    yield Check("job", "tensor cores", "warning" if serious else "ok", told, evidence, fix)


def _few(told: list[str], what: str) -> list[str]:
    shown = [f"no multiple {what}: {each}" for each in told[:_NAMED]]
    more = len(told) - len(shown)
    return [*shown, f"and {more} more that are no multiple {what}"] if more else shown


def _rehearsed(ready: Prepared, read_mib_per_s: float | None) -> Check:
    """Some steps of real training; the last one's time is that of a warm step, roughly."""
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
    told = f"{len(ends) * each} steps trained"
    if len(ends) > 1:
        step_s = (ends[-1] - ends[-2]) / each
        told += f", the last in {step_s * 1000:.1f} ms"
        needs = _mib(first_batch(ready)) / max(step_s, 1e-9)
        evidence.append(f"at that pace the step takes in {needs:,.0f} MiB/s of examples")
        if read_mib_per_s is not None:
            evidence.append(f"the data's folder gives {read_mib_per_s:,.0f} MiB/s")
            if needs > read_mib_per_s:
                fix = "keep the data in memory or on a faster disk: tfopt.pipeline(cache='memory')"
                told += "; the disk gives less than that, unless files are compressed or cached"
                return Check("job", "rehearsal", "warning", told, tuple(evidence), fix)
    return Check("job", "rehearsal", "ok", told, tuple(evidence))


def _mib(batch: tuple[Any, ...]) -> float:
    import keras
    import numpy as np

    leaves = [leaf for leaf in keras.tree.flatten(batch) if leaf is not None]
    return sum(np.asarray(leaf).nbytes for leaf in leaves) / _MIB
