"""Check a job in another process: build it, estimate its memory, and train some steps.

The job's callbacks are left out, so that it writes no files. Checks are sent immediately, so that
a process that dies loses none.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tfopt.data.host_memory import MIB, available_memory
from tfopt.doctor.check import Check, CheckVerdict, Subject, check_of_error
from tfopt.doctor.hardware_estimate import MEMORY_MARGIN
from tfopt.errors import CannotCombine, UserError
from tfopt.job.recipe_file import chain_from_toml, chain_to_toml
from tfopt.keras_internals import layers_inside, without_scaling
from tfopt.monitor.nvml import gpu_memories
from tfopt.report.format import quantity
from tfopt.subprocesses import ask, in_time

if TYPE_CHECKING:
    from tfopt.run import Prepared

_STEPS = 3
_LISTING_S = 20.0


def job(subject: Subject) -> Iterable[Check]:
    """Yield the checks of the job; "not here" without one."""
    if subject.job is None:
        text = "no job: `tfopt doctor my_package.train:job` checks one"
        yield Check("job", "job", "not here", text)
        return
    memory_mib, owner = _memory_here(subject)
    asked = {
        "job": subject.job,
        "arguments": dict(subject.arguments),
        "chain": chain_to_toml(subject.chain),
        "memory_mib": memory_mib,
        "memory_of": owner,
    }
    outcome = ask(examine_job, asked, subject.job_limit_s)
    yield from outcome.answers
    if outcome.ended is not None:
        fix = "train it without the doctor to see more; with SIGKILL, try a smaller batch first"
        text = f"the job's process ended at this stage: {outcome.at}"
        yield Check("job", "job", "failure", text, (outcome.ended,), fix)


def _memory_here(subject: Subject) -> tuple[float, str]:
    """Return the memory for a step: of the smallest GPU, or what is left of the host's."""
    gpus = in_time(_LISTING_S, gpu_memories)
    if gpus:
        return min(gpu.total_mib for gpu in gpus), "the memory of the GPU"
    memory = available_memory(subject.root)
    return memory.available_bytes / MIB, memory.limited_by


def examine_job(asked: Mapping[str, Any]) -> Iterator[str | Check]:
    """Yield stages, as texts, and checks; runs in another process."""
    from tfopt.job.references import resolve_job
    from tfopt.run import prepared

    yield "making the job"
    try:
        job = resolve_job(asked["job"], asked["arguments"])
        chain = chain_from_toml(asked["chain"])
    except Exception as error:
        name = "transforms" if isinstance(error, CannotCombine) else "job"
        yield check_of_error("job", name, error)
        return
    text = ", ".join(type(part).__name__ for part in chain.parts) or "none: the job is plain"
    yield Check("job", "transforms", "ok", text, tuple(map(repr, chain.parts)))
    yield "building the model and reading the data"
    try:
        with prepared(job.with_(callbacks=()), chain, endless=True) as ready:
            yield _built(ready)
            yield _precision(ready)
            yield "estimating its memory"
            yield _checked(
                "memory", lambda: _memory(ready, asked["memory_mib"], asked["memory_of"])
            )
            yield f"training {_STEPS} steps"
            yield _checked("rehearsal", lambda: _rehearsal(ready))
    except Exception as error:
        yield check_of_error("job", "job", error)


def _checked(name: str, look: Callable[[], Check]) -> Check:
    """Return the check of ``look``, or its exception as a failure."""
    try:
        return look()
    except Exception as error:
        return check_of_error("job", name, error)


def _built(ready: Prepared) -> Check:
    idle = [type(part).__name__ for part, effect in ready.effects if not effect.acted]
    evidence = tuple(f"{type(part).__name__}: {effect.note}" for part, effect in ready.effects)
    text = f"builds: {ready.model.count_params():,} parameters, {ready.data.summary}, "
    text += f"{ready.facts.batch_size or 'as many as the data yields'} examples a step"
    if ready.facts.replicas > 1:
        text += f" over {ready.facts.replicas} replicas"
    if idle:
        text += f"; {', '.join(idle)} change nothing on this machine before training"
    return Check("job", "job", "ok", text, evidence)


def _precision(ready: Prepared) -> Check:
    layers = layers_inside(ready.model)
    kinds = Counter(layer.dtype_policy.name for layer in layers)
    text = ", ".join(f"{count} layers in {name}" for name, count in kinds.most_common())
    scaled = without_scaling(ready.model.optimizer) is not ready.model.optimizer
    if "mixed_float16" in kinds and not scaled:
        fix = "tfopt.mixed_precision(model, 'mixed_float16') adds the scaling"
        text += ", and gradients are not scaled: small ones become zero"
        return Check("job", "precision", "failure", text, (), fix)
    return Check("job", "precision", "ok", text)


def _memory(ready: Prepared, available_mib: float, owner: str) -> Check:
    from tfopt.measure.input_ways import first_batch
    from tfopt.train.memory_estimate import training_memory

    facts = ready.facts
    if facts.replicas > 1:
        text = f"not estimated for {facts.replicas} replicas: check the job without Distribute"
        return Check("job", "memory", "not here", text)
    try:
        estimate = training_memory(ready.model, first_batch(ready), facts.batch_size)
    except UserError:
        raise
    except Exception:  # the rehearsal reports it
        return Check("job", "memory", "not here", "the step cannot be traced: see rehearsal")
    evidence = tuple(str(estimate).splitlines())
    text = f"a step takes about {quantity(estimate.peak_mib)} of {available_mib:,.0f} MiB, {owner}"
    if estimate.peak_mib * MEMORY_MARGIN <= available_mib:
        return Check("job", "memory", "ok", text, evidence)
    is_too_large = estimate.peak_mib > available_mib
    verdict: CheckVerdict = "failure" if is_too_large else "warning"
    text += f": it {'will' if is_too_large else 'may'} not fit"
    fix = "use a smaller batch, tfopt.accumulate(), tfopt.remat() or tfopt.mixed_precision()"
    return Check("job", "memory", verdict, text, evidence, fix)


def _rehearsal(ready: Prepared) -> Check:
    """Train some steps; the last one's time is roughly that of a warm step."""
    import keras

    ends = [time.perf_counter()]

    class Few(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            ends.append(time.perf_counter())
            self.model.stop_training = len(ends) > _STEPS

    ready.train(callbacks=[Few()], epochs=1, validate=False)
    execution = max(int(getattr(ready.model, "steps_per_execution", 1) or 1), 1)
    evidence = (f"the first after {ends[1] - ends[0]:.1f} s, with tracing and compiling",)
    text = f"{(len(ends) - 1) * execution} steps trained"
    if len(ends) > 2:
        text += f", the last in {(ends[-1] - ends[-2]) / execution * 1000:.1f} ms"
    return Check("job", "rehearsal", "ok", text, evidence)
