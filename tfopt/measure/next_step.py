"""Name the transform to try next, from what binds a step and from what the chain has already.

It can stand in the chain, added to it or, where the words say so, in the place of one of its kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from tfopt.job.job import Transform
from tfopt.measure.turns import Circumstances, Modes
from tfopt.report.bench_report import Bound
from tfopt.train.execution import Execution
from tfopt.train.host_memory import KeepHostMemory

_T = TypeVar("_T", bound=Transform)
_COMPUTES = (
    "it computes: `tfopt tune` measures what half precision, XLA, a larger batch and more GPUs "
    "bring here, each of which makes some models slower"
)
_WAITS = "`tfopt bench JOB --input` measures what the input waits for, and what a change brings"
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
    host_ms: float | None,
) -> Advice:
    """Return what to try where this binds.

    ``host_ms`` is what Python and Keras add to a step, between epochs included.
    """
    if bound == "nothing alone":
        return Advice(None, "no part of the step stands out of the noise")
    if bound == "input":
        advice = Advice(None, _WAITS)
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


def _gives_memory_back(setting: Circumstances) -> bool:
    """Return whether a CPU step takes all its memory anew: see ``tfopt.train.host_memory``."""
    return not setting.gpus and setting.source in ("generator", "pydataset") and not setting.eager


def _in(applied: Sequence[Transform], kind: type[_T]) -> _T | None:
    return next((each for each in applied if isinstance(each, kind)), None)


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
