"""Train a job in turns, in a child process: what happens between two messages of the parent.

The child trains by Keras's own loop and waits inside a callback. A turn's first execution is not
counted, since disks and networks went on while the process was stopped, nor are the first and last
executions of an epoch, which make an iterator or hold a smaller batch.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from tfopt.data.fit_data import INFINITE, describe_data
from tfopt.data.stages import fills_a_cache
from tfopt.errors import UserError
from tfopt.job.job import Job
from tfopt.job.transform import Chain
from tfopt.keras_internals import last_step
from tfopt.measure.job_facts import JobFacts, facts_of
from tfopt.measure.memory import gpu_states, gpus_in_use, peak_gpu_mib, peak_host_mib
from tfopt.monitor.sampler import Sampler, sampling
from tfopt.report.timed_process import GpuState
from tfopt.run import ENDLESS, Prepared, prepared
from tfopt.train.compile_cache import kept_in

# Iterators of ended epochs that are kept: letting go of one waits for as long as it lived.
_MOST_ITERATORS = 1000
FILLS_S, _SHORT_FILL_S = 60.0, 10.0
_SHORT_EPOCH = 2  # executions: there, none is neither the first nor the last


@dataclass(frozen=True)
class Ready:
    """What a candidate says after its first execution, or before it where it ``is_idle``.

    Attributes:
        first_steps: How many steps the first execution had.
        steps: Of a whole training; None where its length is not known.
        epoch_steps: Of one epoch; likewise.
        shapes: As a ``TimedProcess`` has them.
        filled_s: What the first epoch took to read, which filled a cache; 0 without one.
        new_programs: As a ``TimedProcess`` has it, or why it is not known.
        idle: The transforms that change nothing here, by their repr.
        facts: What may be tried on the job; None where that was not asked for.
        notes: What each transform did, by its repr.
        is_idle: The last transform changes nothing on this machine.
    """

    build_s: float
    first_step_s: float
    first_steps: int
    batch_size: int | None
    replicas: int
    steps: int | None
    epoch_steps: int | None
    data: str
    notes: dict[str, str]
    idle: frozenset[str]
    facts: JobFacts | None = None
    is_idle: bool = False
    shapes: tuple[str, ...] = ()
    filled_s: float = 0.0
    new_programs: int | str = "it was not looked for"


@dataclass(frozen=True)
class Turn:
    """One turn: the counted steps, their seconds, and all of its seconds.

    ``peaks`` are what the process has taken so far, as a ``TimedProcess`` holds it, and
    ``processor_s`` are the seconds of processor time that the way reports.
    """

    steps: int
    seconds: float
    lasted_s: float
    peaks: dict[str, Any]
    processor_s: float = 0.0


class Way:
    """A way to train in turns other than by the job as it is; subclasses are frozen dataclasses."""

    def change(self, job: Job, chain: Chain) -> tuple[Job, Chain]:
        """Return what to train, before anything is built."""
        return job, chain

    def ready(self, ready: Prepared) -> Prepared:
        """Return the compiled job, with another input or another step."""
        return ready

    def processor_s(self) -> float:
        """Return the seconds in which the process has computed; 0 by default."""
        return 0.0


@dataclass(frozen=True)
class TakeTurns:
    """Train the job for as long as the parent gives turns, by sending the seconds of each.

    Attributes:
        skip_if_idle: End before the first step where the last transform changes nothing here.
        look: Report the facts of the job.
    """

    way: Way = Way()  # noqa: RUF009 (it has no state)
    skip_if_idle: bool = False
    look: bool = False

    def __call__(self, job: Job, chain: Chain, pipe: Connection) -> None:
        """Train until the parent ends this process."""
        begun = time.perf_counter()
        with ExitStack() as stack:
            job, chain = self.way.change(job, chain)
            ready = self.way.ready(stack.enter_context(prepared(job, chain, endless=True)))
            said = _ready(ready, time.perf_counter() - begun, facts=self.look)
            if self.skip_if_idle and ready.is_idle(chain.parts[-1]):
                pipe.send(("ready", replace(said, is_idle=True)))
                return
            said = replace(said, filled_s=_filled_s(ready))  # turns are those of later epochs
            turns = _Turns(ready, said, pipe, stack, self.way)
            _keep_iterators(ready.model)
            ready.run.job = _without_keras_callbacks(ready.job)
            ready.train(callbacks=[turns.callback()], epochs=ENDLESS, validate=False)
            raise UserError(
                "The training ended before enough of it was measured.",
                expected="data for as many steps as are measured",
                received=f"{turns.executions} executions",
                fix="give a generator function, a data set that can be read again, or arrays",
            )


def _without_keras_callbacks(job: Job) -> Job:
    """Return the job without Keras's own callbacks: several processes would write their files.

    They act at the ends of epochs, which are not counted.
    """
    made = [make() for make in job.callbacks]
    own = [callback for callback in made if not type(callback).__module__.startswith("keras.")]
    return job.with_(callbacks=tuple((lambda made=callback: made) for callback in own))


def _ready(ready: Prepared, build_s: float, *, facts: bool) -> Ready:
    length, job = ready.facts.steps_per_epoch, ready.job
    return Ready(
        build_s=build_s,
        first_step_s=0.0,
        first_steps=0,
        batch_size=ready.facts.batch_size,
        replicas=ready.facts.replicas,
        steps=None if length is None else length * job.epochs,
        epoch_steps=length,
        data=describe_data(ready.data),
        notes={repr(transform): effect.note for transform, effect in ready.effects},
        idle=frozenset(repr(part) for part in ready.run.chain.parts if ready.is_idle(part)),
        facts=facts_of(ready) if facts else None,
        shapes=ready.compiled_shapes,
    )


def _keep_iterators(model: Any) -> None:
    """Keep the iterators of ended epochs for some time, so that no turn waits for their end."""
    model.make_train_function()
    train = model.train_function
    kept: list[Any] = []

    def function(iterator: Any) -> Any:
        if not kept or kept[-1] is not iterator:
            kept.append(iterator)
            del kept[:-_MOST_ITERATORS]
        return train(iterator)

    model.train_function = function


def fill(part: Any, elements: int | None, limit_s: float = FILLS_S) -> bool:
    """Read an epoch where that fills a cache; return whether it is full in time."""
    if not fills_a_cache(part):
        return True
    if elements is None and int(part.cardinality()) == INFINITE:
        return True
    ends = time.monotonic() + limit_s
    for read, _ in enumerate(part):
        if read == elements:  # one more than an epoch: it is full once its end is met
            return True
        if time.monotonic() > ends:
            return False
    return True


def _filled_s(ready: Prepared) -> float:
    """Return the seconds of the epoch that filled a cache; 0 without one, or where it is long."""
    part, begun = ready.train_input, time.perf_counter()
    caches = fills_a_cache(part) and fill(part, ready.facts.steps_per_epoch, _SHORT_FILL_S)
    return time.perf_counter() - begun if caches else 0.0


def _rest(ready: Prepared) -> float:
    """Return how full the last batch of an epoch is, as a share."""
    last, batch = ready.last_batch, ready.facts.batch_size
    return 1.0 if last is None or not batch else last / batch


def _programs(ready: Prepared) -> frozenset[str] | str:
    """Return the names of the programs in the compile cache, or why there are none."""
    if not ready.model.jit_compile:
        return "XLA does not compile the step"
    folder = kept_in(os.environ)
    if folder is None:
        return "no compile cache is in use"
    return frozenset(path.name for path in folder.glob("*.pb"))


class _Turns:
    """The clock of a candidate: counts executions, and waits for the parent between turns."""

    def __init__(
        self, ready: Prepared, said: Ready, pipe: Connection, stack: ExitStack, way: Way
    ) -> None:
        self.executions = 0
        self._ready = ready
        self._said = said
        self._pipe = pipe
        self._way = way
        self._length = ready.facts.steps_per_epoch
        each = ready.model.steps_per_execution
        self._short = self._length is not None and self._length <= _SHORT_EPOCH * each
        self._rest = _rest(ready) if self._short else 1.0
        self._programs = _programs(ready)
        self._gpus = gpus_in_use()
        self._no_gpu: dict[str, str] = {}
        peak_gpu_mib(self._no_gpu)
        self._sampler: Sampler | None = None
        if self._gpus:
            sampler = sampling(os.getpid(), clock=time.perf_counter, wanted=self._gpus)
            self._sampler = stack.enter_context(sampler)
        self._done = 0  # steps of this epoch
        self._window_s = self._begun = self._last = time.perf_counter()
        self._counted_s, self._counted, self._all_steps, self._in_turn = 0.0, 0, 0, 0
        self._processor_s = self._sampled_from_s = 0.0

    def callback(self) -> Any:
        """Return the callback for ``fit``."""
        import keras

        return keras.callbacks.LambdaCallback(
            on_epoch_begin=self._epoch_begins,
            on_epoch_end=self._epoch_ends,
            on_train_batch_end=self._execution_ends,
        )

    def _epoch_begins(self, epoch: int, logs: object) -> None:
        self._done = 0
        self._last = time.perf_counter()

    def _epoch_ends(self, epoch: int, logs: object) -> None:
        # What stops a training does not stop its turns, unless the data has ended.
        self._ready.model.stop_training = self._done == 0

    def _execution_ends(self, batch: int, logs: object) -> None:
        if self._gpus:
            import tensorflow as tf

            tf.test.experimental.sync_devices()
        now = time.perf_counter()
        # The last step that an execution may reach, also where the data ends before it.
        reached = last_step(self._ready.model, batch) + 1
        reached = reached if self._length is None else min(reached, self._length)
        steps, first, last = reached - self._done, self._done == 0, reached == self._length
        self._done = reached
        self.executions += 1
        self._all_steps += steps
        if self.executions == 1:
            said = replace(self._said, first_step_s=now - self._last, first_steps=steps)
            said = replace(said, new_programs=self._new_programs())
            self._pipe.send(("ready", said))
            self._wait()
            return
        self._in_turn += 1
        if self._in_turn > 1 and steps > 0 and (self._short or not (first or last)):
            # Where the last batch counts, it counts for what it holds.
            whole = steps / (steps - 1 + self._rest) if last else 1.0
            self._counted_s += whole * (now - self._last)
            self._counted += steps
        self._last = time.perf_counter()
        if self._counted and self._counted_s >= self._window_s:
            computed_s = self._way.processor_s() - self._processor_s
            seconds = self._counted_s, now - self._begun
            self._pipe.send(("turn", Turn(self._counted, *seconds, self._peaks(), computed_s)))
            self._wait()

    def _new_programs(self) -> int | str:
        """Return how many programs came into the compile cache, or why that is unknown."""
        before, after = self._programs, _programs(self._ready)
        return after if isinstance(after, str) else len(after.difference(before))

    def _wait(self) -> None:
        """Wait for the next turn."""
        window_s = self._pipe.recv()
        if self._sampler is not None and self.executions == 1:
            self._sampled_from_s = self._sampler.take().at_s
        self._window_s = window_s
        self._counted_s, self._counted, self._in_turn = 0.0, 0, 0
        self._processor_s = self._way.processor_s()
        self._begun = self._last = time.perf_counter()

    def _peaks(self) -> dict[str, Any]:
        reasons, states = dict(self._no_gpu), tuple[GpuState, ...]()
        if self._sampler is not None:
            ends_s = self._sampler.take().at_s
            states = gpu_states(self._sampler.recording(self._sampled_from_s, ends_s))
        energies = [state.energy_j for state in states if state.energy_j is not None]
        known = bool(energies) and len(energies) == len(states)
        if not known:
            why = "the driver does not report it" if states else "no GPU is in use"
            reasons["energy_per_example_j"] = why
        examples = self._all_steps * (self._said.batch_size or 1)
        return {
            "host_peak_mib": peak_host_mib(reasons),
            "gpu_peak_mib": peak_gpu_mib(reasons) if self._gpus else None,
            "energy_per_example_j": sum(energies) / examples if known else None,
            "gpus": states,
            "unavailable": reasons,
        }
