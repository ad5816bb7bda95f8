"""Name the transform to try next, from what binds a step and from what the chain has already.

It can stand in the chain, added to it or, where the words say so, in the place of one of its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tfopt.data.pipeline import Pipeline
from tfopt.job.job import Transform
from tfopt.measure.turns import Modes, Setting
from tfopt.report.bench.bench_report import Bound
from tfopt.train.execution import Execution
from tfopt.train.host_memory import KeepHostMemory

_T = TypeVar("_T", bound=Transform)
_COMPUTES = (
    "it computes: `tfopt tune` measures what half precision, XLA, a larger batch and more GPUs "
    "bring here, each of which makes some models slower"
)
_STEPS_TO_TRY = 16
_STEPS_MORE = 4


@dataclass(frozen=True)
class Advice:
    """A transform or none, and the words about it."""

    transform: Transform | None
    words: str = ""


def advise(
    bound: Bound,
    modes: Modes,
    applied: Sequence[Transform],
    *,
    input_ms: float | None,
    host_ms: float | None,
    waits_ms: float,
    computes_ms: float,
) -> Advice:
    """Return what to try where this binds.

    Args:
        input_ms: How long a batch takes to make.
        host_ms: What Python and Keras add to a step, between epochs included.
        waits_ms: How long a step waits for its input.
        computes_ms: How long it takes on a resident batch.
    """
    if bound == "nothing alone":
        return Advice(None, "no part of the step stands out of the noise")
    if bound == "input":
        advice = _for_input(modes.setting, applied, input_ms, waits_ms, computes_ms)
    elif _gives_memory_back(modes.setting) and _in(applied, KeepHostMemory) is None:
        words = (
            "a Python generator makes TensorFlow give the memory of each step back to the system"
        )
        advice = Advice(KeepHostMemory(), words)
    elif bound == "host":
        advice = _for_host(modes, applied, host_ms or 0.0)
    else:
        advice = Advice(None, _COMPUTES)
    given = None if advice.transform is None else _in(applied, type(advice.transform))
    if given is None:
        return advice
    words = f"try it in the place of {given!r}"
    return replace(advice, words="; ".join(filter(None, (words, advice.words))))


def _gives_memory_back(setting: Setting) -> bool:
    """Return whether a CPU step takes all its memory anew: see ``tfopt.train.host_memory``."""
    return not setting.gpus and setting.source in ("generator", "pydataset") and not setting.eager


def _in(applied: Sequence[Transform], kind: type[_T]) -> _T | None:
    return next((each for each in applied if isinstance(each, kind)), None)


def _for_input(
    setting: Setting,
    applied: Sequence[Transform],
    input_ms: float | None,
    waits_ms: float,
    computes_ms: float,
) -> Advice:
    given = _in(applied, Pipeline)
    if setting.own_input:
        return Advice(None, "the job makes its input by a function of its own: make that cheaper")
    base = given or _plain(setting)
    # Prefetching hides what is made faster than a step computes; the rest only a cache can.
    hides = given is None and input_ms is not None and input_ms <= computes_ms
    if not hides and _can_cache(setting, base):
        words = "the cache shows every epoch what the first one yielded"
        return Advice(replace(base, cache="memory"), words)
    handing = input_ms is not None and input_ms < waits_ms / 2
    if setting.gpus and setting.replicas == 1 and base.device is None and (handing or given):
        return Advice(replace(base, device="auto"))
    if given is None:
        return Advice(base)
    if base.map_batch is not None:
        return Advice(
            None,
            "map_batch runs on every batch of every epoch: make it cheaper, or do in map, before "
            "the cache, what is the same in every epoch",
        )
    return Advice(None, "the pipeline has what it can have: make what it reads cheaper")


def _plain(setting: Setting) -> Pipeline:
    """Return a pipeline of a known length, where the source does not know it."""
    return Pipeline() if setting.endless else Pipeline(examples=setting.examples)


def _can_cache(setting: Setting, pipeline: Pipeline) -> bool:
    in_memory = setting.source == "arrays" and pipeline.map is None
    unknown = setting.source == "generator" and pipeline.examples is None
    return pipeline.cache is None and not (setting.endless or in_memory or unknown)


def _for_host(modes: Modes, applied: Sequence[Transform], host_ms: float) -> Advice:
    setting = modes.setting
    between_ms = modes.resident.between_ms(modes.steps_per_epoch) if modes.resident else 0.0
    if between_ms > host_ms / 2:
        return Advice(None, "most of it passes between epochs: look at what the callbacks do there")
    if setting.eager:
        return Advice(None, "the model is compiled with run_eagerly=True: leave that out")
    if setting.replicas > 1:
        return Advice(None, "Keras 3.15 cannot run several steps a call under several replicas")
    now = setting.steps_per_execution
    wanted = _STEPS_TO_TRY if now < _STEPS_TO_TRY else now * _STEPS_MORE
    steps = _fitting(wanted, setting.whole_executions, modes.steps_per_epoch)
    if steps <= now:
        return Advice(None, "an epoch has too few steps for more of them a call")
    given = _in(applied, Execution) or Execution()
    words = "callbacks then run once in so many steps"
    return Advice(replace(given, steps_per_execution=steps), words)


def _fitting(wanted: int, divides: int | None, epoch: int | None) -> int:
    """Return the most steps up to those wanted that an epoch holds, whole where it must be."""
    most = min(wanted, epoch or wanted)
    if divides is None:
        return most
    return max(each for each in range(1, most + 1) if divides % each == 0)
