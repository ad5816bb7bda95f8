"""A machine that is not there: child processes with made-up figures, and a clock of its own.

The engine, the trainings and the search are the real ones; what a child would take moves the clock.
"""

from __future__ import annotations

import math
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from bench_reports import NOT_ASKED, training

from tfopt import FusedAttention, Place, Quantize, Remat
from tfopt.data.host_memory import MIB, Memory
from tfopt.measure.bench import compare_served
from tfopt.measure.children import Lost
from tfopt.measure.job_facts import JobFacts
from tfopt.measure.scores import Trained, TrainWhole
from tfopt.measure.turn_taking import Ready, Turn
from tfopt.monitor.nvml import GpuMemory
from tfopt.report.footprints import Footprint, Footprints
from tfopt.report.training import Reading
from tfopt.tune.at_batch import look_at_job

FACTS = JobFacts(
    replicas=1,
    gpus=0,
    whole_executions=None,
    jit_compile=False,
    eager=False,
    half="mixed_bfloat16",
    attention=False,
    source="arrays",
    endless=False,
    augmented=False,
    batch_size=32,
    tuned_batch_size=32,
    steps_per_epoch=313,
    epochs=10,
    examples=10_000,
    epoch_examples=10_000,
    rebatch=False,
    accumulate=1,
    optimizer="Adam",
    rate=0.001,
    tested=True,
)
DATA = "toy (10,000 examples)"
MODULES = (
    "measure.engine", "measure.bench", "measure.links", "measure.trainings",
    "tune.search", "tune.time_left", "tune.batch_size",
)  # fmt: skip
FILE = {"artefact": "model_int8.tflite", "artefact_kib": 60.0, "artefact_accuracy": 0.96}


class Machine:
    """Stands in for all child processes; tests set what is special about it.

    ``shares`` of a step's time by what a chain sets. ``failing`` gives the reason why a chain cannot
    start, ``dying`` why a process dies in its n-th turn; ``data`` and ``accuracy`` are by what a
    chain sets. ``before`` is called before a child answers, and may raise KeyboardInterrupt.
    """

    def __init__(self, monkeypatch, **shares):
        self.now = 1000.0
        self.facts = FACTS
        self.shares = shares
        self.call_ms, self.fixed_ms, self.example_ms = 1.0, 1.0, 0.05
        self.noise, self.spread = 0.003, 0.005
        self.start_s, self.training_s = 1.0, 5.0
        self.starts_in = lambda asked: self.start_s
        self.each_mib, self.free_mib = 100.0, 100_000.0
        self.gpu_mib = 0.0
        self.slowness = lambda: 1.0
        self.failing = self.lossy = lambda asked: None
        self.dying = lambda asked, turn: None
        self.data = lambda asked: DATA
        self.accuracy = lambda asked: 0.96
        self.before = lambda child: None
        self.random = np.random.default_rng(0)
        self.children = []
        monkeypatch.setitem(sys.modules, "toy", SimpleNamespace(job=None))
        given = {
            "JobProcess": partial(MadeChild, self),
            "time": SimpleNamespace(monotonic=lambda: self.now),
            "usable_cores": lambda: 2,
            "gpu_memories": self._gpus,
            "available_memory": self._memory,
            "_own_mib": lambda pid: self.each_mib,
        }
        for name in MODULES:
            module = import_module(f"tfopt.{name}")
            for attribute in given.keys() & vars(module).keys():
                monkeypatch.setattr(module, attribute, given[attribute])
        monkeypatch.setattr(
            import_module("tfopt.measure.children"), "JobProcess", given["JobProcess"]
        )

    def _memory(self):
        held = self.each_mib * len(self.alive)
        return Memory(int(MIB * (self.free_mib - held)), "the limit of control group /made")

    def _gpus(self):
        if not self.gpu_mib:
            return []
        held = self.each_mib * sum(each.ready for each in self.alive)
        return [GpuMemory("GPU-0", "made", self.gpu_mib, self.gpu_mib - held)]

    @property
    def alive(self):
        return [each for each in self.children if not each.ended]

    def did(self, kind):
        """Return what the chains of all children with such a task set."""
        return [each.asked for each in self.children if type(each.task).__name__ == kind]

    def step_ms(self, asked):
        step_ms = self.call_ms / asked.get("steps_per_execution", 1) + self.fixed_ms
        step_ms += self.example_ms * asked.get("batch_size", 32)
        return step_ms * math.prod(s for name, s in self.shares.items() if asked.get(name))


class MadeChild:
    """A child without a process. While it has its turn, all others have to stand still."""

    def __init__(self, machine, target, task, *, seed=None):
        self.machine, self.target, self.task, self.seed = machine, target, task, seed
        self.asked = settings(target.chain)
        if target.way is not None:  # of a search for a batch
            self.asked["batch_size"] = target.way.batch
        self.pid = len(machine.children)
        self.ready = self.stopped = self.ended = False
        self.turns, self.heard = 0, []
        self.level = machine.random.lognormal(0, machine.spread)
        machine.children.append(self)

    def send(self, message):
        self.heard.append(message)

    def stop(self):
        self.stopped = True

    def go_on(self):
        self.stopped = False

    def end(self):
        self.ended = True

    def has_answered(self, timeout_s):
        return True

    def receive(self, timeout_s, meanwhile=None):
        assert not self.ended
        self.patience = timeout_s
        self.machine.before(self)
        if self.task is look_at_job:
            self.machine.now += self.machine.start_s
            return self.machine.facts
        if isinstance(self.task, TrainWhole):
            return self._trained()
        if getattr(self.task, "func", None) is compare_served:
            figures = (9, 0, 0.1, 9.0, 9.0, None, 0.1, None, ())
            (folders,) = self.task.args
            return Footprints("LiteRT", tuple(Footprint(n, *figures) for n in folders))
        return self._turn() if self.ready else self._started(timeout_s)

    def _started(self, timeout_s):
        machine, asked, parts = self.machine, self.asked, self.target.chain.parts
        reason = machine.failing(asked)
        if reason is not None:
            raise Lost(reason, "refused" if "refused" in reason else "failed")
        start_s = machine.starts_in(asked)
        if start_s > timeout_s:
            machine.now += timeout_s
            raise Lost(f"it did not answer within {timeout_s:.0f} s")
        self.ready = True
        self.heard.clear()
        machine.now += start_s
        first_steps = asked.get("steps_per_execution", 1)
        idle = frozenset(repr(part) for part in parts if isinstance(part, Place))
        return Ready(
            build_s=0.2 * start_s,
            first_step_s=0.8 * start_s + first_steps * machine.step_ms(asked) / 1000,
            first_steps=first_steps,
            batch_size=asked.get("batch_size", 32),
            replicas=1,
            steps=math.ceil(10_000 / asked.get("batch_size", 32)) * 10,
            epoch_steps=math.ceil(10_000 / asked.get("batch_size", 32)),
            data=machine.data(asked),
            notes={repr(part): f"{type(part).__name__} is on" for part in parts},
            idle=idle,
            facts=machine.facts if self.task.look else None,
            is_idle=self.task.skip_if_idle and repr(parts[-1]) in idle,
        )

    def _turn(self):
        machine = self.machine
        assert not self.stopped
        assert all(each.stopped for each in machine.alive if each is not self and each.ready)
        window_s = self.heard.pop(0)
        self.turns += 1
        reason = machine.dying(self.asked, self.turns)
        if reason is not None:
            raise Lost(reason)
        execution = self.asked.get("steps_per_execution", 1)
        step_s = machine.step_ms(self.asked) / 1000 * self.level * machine.slowness()
        counted = math.ceil(window_s / (step_s * execution))
        seconds = counted * execution * step_s * machine.random.lognormal(0, machine.noise)
        lasted_s = seconds + execution * step_s
        machine.now += lasted_s
        reasons = dict.fromkeys(("gpu_peak_mib", "energy_per_example_j"), NOT_ASKED)
        peaks = {
            "host_peak_mib": 500.0 + self.asked.get("batch_size", 32),
            **dict.fromkeys(reasons),
        }
        peaks |= {"gpus": (), "unavailable": reasons}
        return Turn(counted * execution, seconds, lasted_s, peaks)

    def _trained(self):
        machine, asked = self.machine, self.asked
        reason = machine.lossy(asked)
        if reason is not None:
            raise Lost(reason)
        machine.now += machine.training_s / 2  # two run at once
        made = any(isinstance(part, Quantize) for part in self.target.chain.parts)
        if self.task.output:
            folder = Path(self.task.output)
            folder.mkdir(parents=True)
            (folder / "model.keras").write_text(repr(self.target.chain))
            if made:
                (folder / FILE["artefact"]).write_text("made")
        steps = 10 * math.ceil(10_000 / asked.get("batch_size", 32))
        accuracy = round(machine.accuracy(asked) + 0.0001 * self.seed, 5)
        tenths = [(n, 10_000.0 * n, accuracy - 0.001 * (10 - n)) for n in range(1, 11)]
        readings = tuple(Reading(steps * n // 10, seen, round(a, 5)) for n, seen, a in tenths)
        made = FILE if made else {}
        found = training(accuracy, steps, seed=self.seed, epochs=10, readings=readings, **made)
        return Trained(found, {})


def settings(chain):
    """Return what a chain sets, by the name of the field."""
    found = {}
    for part in chain.parts:
        fields = {n: v for n, v in vars(part).items() if v is not None}
        found |= {n: v for n, v in fields.items() if v not in ("linear", "sqrt", False)}
        found |= {"remat": True} if isinstance(part, Remat) else {}
        found |= {"fused_attention": True} if isinstance(part, FusedAttention) else {}
    return found
