"""Workers without processes: with made-up figures, or with the real ones of this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from bench_reports import block, training_figures
from made_modes import job_facts, modes

from tfopt import Execution, Pipeline, Place, Prune, Quantize, UserError
from tfopt.job.job import Chain
from tfopt.job.references import resolve_job
from tfopt.measure import process, worker
from tfopt.measure.batch_size.trial import Attempt
from tfopt.measure.process import WorkerResult
from tfopt.measure.step_cost import StepCost
from tfopt.measure.study import StepTimes
from tfopt.measure.tasks import Task, task_from_dict, task_to_dict
from tfopt.measure.watcher import Watcher
from tfopt.report.bench_report import Ceilings
from tfopt.report.footprint import Footprint, Footprints

MODULES = ("rounds", "rehearsal", "study", "trainings", "experiment", "batch_size.find")
"""The modules of tfopt.measure that start workers."""
# A chain that cannot run: pruning needs a kernel to prune, and this one names none.
REFUSED = Prune(0.5, layers="no_such_layer")
FAST = Execution(steps_per_execution=20)


def install(monkeypatch, made):
    """Let these workers answer wherever tfopt.measure starts one."""
    for module in MODULES:
        monkeypatch.setattr(import_module(f"tfopt.measure.{module}"), "run_worker", made)
    return made


@dataclass(frozen=True)
class Request:
    """What a worker was asked to do."""

    task: Task[Any]
    job: str
    arguments: Mapping[str, Any]
    chain: Chain
    skip_if_idle: bool
    seed: int | None
    watch: Any

    @property
    def kind(self) -> str:
        return self.task.kind

    @property
    def last(self) -> object:
        return self.chain.parts[-1] if self.chain.parts else None


class Recorder(Watcher):
    """Keeps what was done; Ctrl-C comes when more than so much of it begins with these words."""

    def __init__(self, stop_after: int | None = None, words: str = "") -> None:
        self.did: list[tuple[str, str, Any]] = []
        self.reasons: dict[str, str] = {}
        self.stop_after, self.words = stop_after, words

    def doing(self, what: str, variant: str, left_s: Any) -> None:
        self.did.append((what, variant, left_s))
        if self.stop_after is not None and len(self.variants(self.words)) > self.stop_after:
            raise KeyboardInterrupt

    def variants(self, begins: str) -> list[str]:
        """Those with which something was done, as often as it was."""
        return [variant for what, variant, _ in self.did if what.startswith(begins)]

    def left_out(self, variant: str, reason: str) -> None:
        self.reasons[variant] = reason


class Workers:
    """Stands in for ``run_worker``; ``asked`` holds every request in order.

    ``answer`` is a test's own answer to a request: a result, the reason why it failed, or None
    for the usual result. Place changes nothing, REFUSED is refused, and each kind of transform
    takes its ``shares`` of the time.
    """

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.answer: Callable[[Request], WorkerResult[Any] | str | None] = lambda request: None
        self.data = "toy (256 examples)"
        self.shares = {Execution: 0.5, Pipeline: 0.9}
        self.noise = 0.002
        self.random = np.random.default_rng(0)

    def kinds(self) -> list[str]:
        return [request.kind for request in self.asked]

    def __call__(
        self,
        task: Task[Any],
        *,
        job: str,
        arguments: Mapping[str, Any],
        chain: Chain = Chain(),  # noqa: B008 (frozen)
        skip_if_idle: bool = False,
        seed: int | None = None,
        on_progress: Callable[[int, int, int], None] = lambda *_: None,
        watch: Callable[[int], str | None] | None = None,
        forked: bool = False,
    ) -> WorkerResult[Any]:
        assert task_from_dict(json.loads(json.dumps(task_to_dict(task)))) == task
        request = Request(task, job, arguments, chain, skip_if_idle, seed, watch)
        self.asked.append(request)
        on_progress(0, 2, 0)
        answer = self.answer(request)
        if isinstance(answer, str):
            return WorkerResult("failed", None, answer, {})
        return answer or self.usual(request)

    def usual(self, request: Request) -> WorkerResult[Any]:
        notes = {repr(part): f"{type(part).__name__} is on" for part in request.chain.parts}
        if REFUSED in request.chain.parts:
            return WorkerResult("refused", None, "no layer to prune", {})
        if request.skip_if_idle and isinstance(request.last, Place):
            notes[repr(request.last)] = "runs on the CPU"
            return WorkerResult("no_effect", None, "runs on the CPU", notes, self.data)
        return self.measured(getattr(self, f"_{request.kind.replace('-', '_')}")(request), notes)

    def measured(self, value: Any, notes: Mapping[str, str] | None = None) -> WorkerResult[Any]:
        return WorkerResult("measured", value, None, notes or {}, self.data)

    def step_ms(self, chain: Chain) -> float:
        """At 32 examples a step; a larger batch takes longer in proportion."""
        share = np.prod([self.shares.get(type(part), 1.0) for part in chain.parts])
        return float(10 * share * _batch(chain) / 32)

    def _block(self, request: Request) -> Any:
        step_ms = self.step_ms(request.chain) * self.random.lognormal(0, self.noise)
        return block(step_ms, self.random, batch_size=_batch(request.chain), data=self.data)

    def _training(self, request: Request) -> Any:
        made = any(isinstance(part, Quantize) for part in request.chain.parts)
        if request.task.output:
            folder = Path(request.task.output)
            folder.mkdir(parents=True)
            (folder / "model.keras").write_text(repr(request.chain))
            if made:
                (folder / "model_int8.tflite").write_text(repr(request.chain))
        file = {"artefact": "model_int8.tflite", "artefact_kib": 60.0, "artefact_accuracy": 0.96}
        accuracy = 0.96 + 0.001 * (request.seed or 0) - 0.0005 * (_batch(request.chain) != 32)
        train_s = self.step_ms(request.chain) * 32 / _batch(request.chain)
        return training_figures(
            seed=request.seed or 0,
            train_s=round(train_s * self.random.lognormal(0, self.noise), 4),
            accuracy=round(accuracy, 5),
            **(file if made else {}),
        )

    def _look(self, request: Request) -> Any:
        """Bound by the device, which computes at a tenth of its speed."""
        step_ms = self.step_ms(request.chain)
        cost = StepCost(step_ms * 0.01, step_ms * 0.01, 0.001, "counted", "float32", "")
        return StepTimes(modes(step_ms, 0.98 * step_ms, host=0.05 * step_ms), cost, None)

    def _ceilings(self, request: Request) -> Any:
        return Ceilings("2 cores", request.task.dtype, 100.0)

    def _serving(self, request: Request) -> Any:
        rows = [
            Footprint(name, 54_410, 0, 0.001, 215.0, 198.0, None, 0.035, None, ())
            for name in request.task.folders
        ]
        return Footprints("LiteRT 2.3.0", tuple(rows))

    def _job_look(self, request: Request) -> Any:
        return job_facts()

    def _batch_trial(self, request: Request) -> Any:
        """The more examples a batch holds, the more of them are trained in a second."""
        batch = request.task.batch
        speed = 100.0 * batch
        return Attempt(batch, "trained", None, 500.0 + batch, 5.0 + batch / 100, speed)


class InProcess(Workers):
    """Carries each task out as a worker would, but in this process."""

    def usual(self, request: Request) -> WorkerResult[Any]:
        job = resolve_job(request.job, dict(request.arguments), seed=request.seed)
        added = request.last if request.skip_if_idle else None
        try:
            done = request.task.carry_out(request.chain.apply(job), added, lambda *_: None)
            if done.afterwards is not None:
                done.afterwards()
            result = {
                "value": done.value,
                "effects": worker._effects(done.effects),
                "data": done.data,
            }
        except UserError as error:
            result = {"error": str(error), "user_error": True}
        except Exception as error:
            result = {"error": worker._message(error), "user_error": False}
        return process._read(request.task, json.loads(json.dumps(result)), request.chain)


def _batch(chain: Chain) -> int:
    sizes = [part.batch_size for part in chain.parts if isinstance(part, Pipeline)]
    return next((size for size in sizes if size), 32)
