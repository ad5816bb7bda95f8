"""Measure a block: the steps of one variant in a fresh process, until there are enough.

The phases of a start (loading TensorFlow, building, tracing and compiling, warming up) are kept
apart and never counted as steps. The job's own callbacks are measured with it; validation is not
run.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tfopt.data.caching import fills_a_cache
from tfopt.data.fit_data import describe_data
from tfopt.errors import UserError
from tfopt.files import write_atomically
from tfopt.job.job import Job, Transform
from tfopt.job.parts import Effect
from tfopt.job.plain_values import DoesNotFit
from tfopt.measure.machine import SteadyState, gpu_states, why_throttled
from tfopt.measure.memory import block_memory, gpus_in_use
from tfopt.monitor.sampler import sampling
from tfopt.report.block import Block
from tfopt.report.strict import ReportError, decode, show
from tfopt.run import ENDLESS, Prepared, prepared

if TYPE_CHECKING:
    from tfopt.measure.clock import WindowClock

# How long this process has been there.

_STAT = Path("/proc/self/stat")
# Of what follows the command's name, from the third field on: the start is field 22.
_START = 22 - 3


LOADED_S = 0.0
"""The seconds that the process this one was forked from took to load TensorFlow."""


def lifetime_s() -> float:
    """Return the seconds since this process was started."""
    try:
        # psutil adds the same ticks to the time of the boot in whole seconds: off by up to one.
        after_name = _STAT.read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
        ticks = int(after_name.split()[_START])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError):
        import psutil

        return time.time() - float(psutil.Process().create_time())


# A folder of finished blocks, so that a measurement that was stopped can go on.
#
# Blocks of another measurement, of other versions, code or another machine are refused.

_PLAN = "plan.json"
_ANEW = "run it without --resume, which measures everything again"
T = TypeVar("T")


class BlockStore:
    """The blocks of one measurement, a file for each round and place in the plan."""

    def __init__(self, folder: Path, plan: Mapping[str, Any], part: str = "") -> None:
        self.folder = folder
        self._part = part
        self._plan = json.dumps(plan, indent=1, sort_keys=True)

    def part(self, name: str) -> BlockStore:
        """Return the same folder for what is measured apart, under names of its own."""
        return BlockStore(self.folder, json.loads(self._plan), f"{self._part}{name}-")

    def open(self, *, resume: bool) -> None:
        """Make the folder ready: empty, or with the blocks of the same measurement."""
        path = self.folder / _PLAN
        if resume:
            self._require_same(path)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.glob("*.json"):
            old.unlink(missing_ok=True)
        write_atomically(path, self._plan)

    def blocks(self, round_: int, place: int) -> tuple[Block, ...]:
        """Return the blocks tried in this round, the last one the best; none before it."""
        found = self.note(f"{round_:03d}-{place:02d}", _blocks)
        return () if found is None else found

    def keep(self, round_: int, place: int, blocks: Sequence[Block]) -> None:
        """Write what this round gave for this place."""
        self.write_note(f"{round_:03d}-{place:02d}", [asdict(block) for block in blocks])

    def note(self, name: str, read: Callable[[Any], T]) -> T | None:
        """Return something else that was found on the way; None where it was not.

        ``read`` makes it out of JSON values, or raises a ``ValueError``.
        """
        path = self._path(name)
        if not path.exists():
            return None
        return _read(path, read, fix="delete that file, and it is measured again")

    def write_note(self, name: str, content: Any) -> None:
        """Keep it for a measurement that goes on later."""
        write_atomically(self._path(name), json.dumps(content, allow_nan=False))

    def _path(self, name: str) -> Path:
        return self.folder / f"{self._part}{name}.json"

    def _require_same(self, path: Path) -> None:
        if not path.exists():
            raise UserError(
                "There is nothing to resume.",
                expected=f"the blocks of an earlier measurement in {self.folder}",
                received=f"no {_PLAN} there",
                fix="run it without --resume",
            )
        earlier, now = _read(path, _object, fix=_ANEW), json.loads(self._plan)
        other = [key for key in {**now, **earlier} if earlier.get(key) != now.get(key)]
        if other:
            raise UserError(
                "The measurement to resume was another one.",
                expected=f"the same {' and '.join(other)} as in {path}",
                received=f"other {'; other '.join(_differing(earlier, now, key) for key in other)}",
                fix=f"go back to what was measured then, or {_ANEW}",
            )


def _read(path: Path, read: Callable[[Any], T], *, fix: str) -> T:
    """Read one file of the folder."""
    try:
        return read(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} is damaged.",
            expected="what tfopt wrote there",
            received=_problem(error),
            fix=fix,
        ) from error


def _problem(error: Exception) -> str:
    """Return what is wrong, in one line: where it is, and what it should have been."""
    if isinstance(error, DoesNotFit):
        where = f"{error.key}: " if error.key else ""
        return f"{where}{error.received}, where it should be {error.expected}"
    return f"{type(error).__name__}: {error}"


def _blocks(content: Any) -> tuple[Block, ...]:
    if not isinstance(content, list):
        raise ReportError("", expected="a list of blocks", received=show(content))
    return tuple(decode(Block, block, f"[{n}]") for n, block in enumerate(content))


def _object(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ReportError("", expected="an object", received=show(content))
    return content


def _differing(earlier: Mapping[str, Any], now: Mapping[str, Any], key: str) -> str:
    """Return the key; of several values, which of them."""
    before, after = earlier.get(key), now.get(key)
    if not isinstance(before, dict) or not isinstance(after, dict):
        return key
    names = [name for name in {**after, **before} if before.get(name) != after.get(name)]
    return f"{key} ({', '.join(names)})"


@dataclass(frozen=True)
class Span:
    """How long a block measures: how many windows, of what length, after which warm-up."""

    windows: int = 30
    window_ms: float = 250.0
    warm_up_s: float = 1.0

    @property
    def seconds(self) -> float:
        """Return what a block takes at least, beside its process's start."""
        return self.warm_up_s + self.windows * self.window_ms / 1000


QUICK = Span(windows=20, window_ms=50.0, warm_up_s=0.5)


def measure_block(
    job: Job, span: Span, *, skip_if_idle: Transform | None = None
) -> tuple[Block | None, tuple[tuple[Transform, Effect], ...]]:
    """Train the job under the clock until the span is measured; the model is thrown away.

    ``skip_if_idle`` is the transform that the variant adds: where it changed nothing on this
    machine, there is no block.
    """
    start_s = _load_tensorflow()
    begun = time.perf_counter()
    with prepared(job, endless=True) as ready:
        build_s = time.perf_counter() - begun
        if skip_if_idle is not None and ready.is_idle(skip_if_idle):
            return None, ready.effects
        return _block(ready, span, start_s, build_s), ready.effects


def _load_tensorflow() -> float:
    """Return the seconds from this process's start until TensorFlow and Keras are there."""
    import keras
    import tensorflow as tf

    # Both load most of themselves when they are first touched.
    keras.Model, tf.Variable  # noqa: B018
    return LOADED_S + lifetime_s()


def _block(ready: Prepared, span: Span, start_s: float, build_s: float) -> Block:
    from tfopt.measure.clock import WindowClock

    used = gpus_in_use()
    with sampling(os.getpid(), clock=time.perf_counter, wanted=used) as sampler:
        steady = SteadyState(sampler)
        clock = WindowClock(
            ready.facts.steps_per_epoch,
            windows=span.windows,
            window_ms=span.window_ms,
            warm_up_s=span.warm_up_s,
            warm_up_epochs=int(fills_a_cache(ready.train_input)),
            on_steady=steady.begin,
            on_enough=steady.end,
        )
        ready.train(callbacks=[clock], epochs=ENDLESS, validate=False)
    _require_enough(clock, span)
    states = gpu_states(steady.recording())
    batch = ready.facts.batch_size
    return Block(
        start_s=round(start_s, 4),
        build_s=round(build_s, 4),
        first_step_s=round(clock.first_step_s or 0, 4),
        warm_up_s=round(clock.warm_up_s, 4),
        windows_ms=tuple(round(window, 4) for window in clock.windows_ms),
        steps=tuple(clock.steps),
        between_epochs_ms=tuple(round(gap, 4) for gap in clock.between_epochs_ms),
        batch_size=batch,
        examples_per_step=examples_per_step(ready, clock),
        replicas=ready.facts.replicas,
        memory=block_memory(steady.allocators, sampler.recording()),
        gpus=states,
        unavailable={} if batch else {"batch_size": "the data yields its own batches"},
        data=describe_data(ready.data),
        invalid=why_throttled(states),
        round=0,  # who runs several says which
    )


def examples_per_step(ready: Prepared, clock: WindowClock) -> float | None:
    """Return the mean: an epoch's last batch may hold fewer. An epoch that did not end had none."""
    batch = ready.facts.batch_size
    if batch is None or not clock.epoch_examples or ready.facts.replicas > 1:
        return batch
    return round(statistics.median(clock.epoch_examples), 4)


def _require_enough(clock: WindowClock, span: Span) -> None:
    from tfopt.measure.clock import LONGEST_WARM_UP_S

    if not clock.warmed_up_whole:
        raise UserError(
            "The first epoch, which fills a cache, takes too long to be waited for.",
            expected=f"an epoch within {LONGEST_WARM_UP_S:g} s",
            received=f"{clock.warm_up_s:.0f} s without its end",
            fix="measure with less data, or with fewer steps_per_epoch",
        )
    if len(clock.windows_ms) < span.windows:
        raise ended_early(span.windows, len(clock.windows_ms))


def ended_early(wanted: int, got: int) -> UserError:
    """Return the error for a training that stopped by itself."""
    return UserError(
        "The training ended before enough of it was measured.",
        expected=f"{wanted} windows",
        received=f"{got} windows",
        fix="leave out callbacks that stop the training, such as EarlyStopping",
    )
