"""Run on a lent GPU, in one command, what tfopt has only run on CPUs: a JSON file for each step.

    python -m benchmarks.gpu_day --list
    python -m benchmarks.gpu_day --output gpu_day --only tensorflow,resnet50_batch
    python -m benchmarks.gpu_day --rehearse

The steps (``gpu_steps.py``) stand in order of value, at most 50 minutes together. Each has a
fresh process under a time limit, and leaves DATE-gpu_day-STEP.json: machine, driver, versions,
command, how it ended, and every figure it had by then. A step that fails or hangs keeps no other
from running. ``--rehearse`` runs the same steps on this machine's CPU, with small models and one
setting each: it shows that they run, its figures say nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tfopt.errors import UserError
from tfopt.files import prepare_folder, write_atomically
from tfopt.job.references import resolve_function
from tfopt.measure.provenance import read_provenance
from tfopt.monitor.nvml import gpu_memories, why_no_gpu
from tfopt.recipes.flags import FAILED, Parser, add_debug, add_output, exit_code_of

ROOT = Path(__file__).resolve().parent.parent
DONE, BROKEN, TIMED_OUT = "done", "failed", "timed out"
# What a step is left to end in by itself, before and after it is asked to.
GRACE_S = 10.0
_LAST_LINES, _LAST_LETTERS = 5, 800
_CHILD = "from benchmarks.gpu_day import one_step; one_step()"


@dataclass(frozen=True)
class Step:
    """A step: the function that does it, with its arguments, and the most seconds it may take."""

    name: str
    limit_s: float
    answers: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


def _step(name: str, limit_s: float, answers: str, function: str = "", **arguments: Any) -> Step:
    function = f"benchmarks.gpu_steps:{function or name}"
    return Step(name, limit_s, answers, function, arguments)


def _settings(subject: str, *precisions: str) -> Step:
    mixed = "_mixed" if "mixed_float16" in precisions else ""
    told = f"its step in {' and '.join(precisions)}, with and without XLA, against float32"
    arguments = {"subject": subject, "precisions": list(precisions)}
    return _step(f"{subject}{mixed}", 280, told, "settings", **arguments)


_OUT_OF_MEMORY = "a forced lack of memory, as tfopt.explain_out_of_memory tells it"
_TUNE = "`tfopt tune` on"
_LARGEST = "the largest batch of ResNet-50 at 224 px in float32"
STEPS = (
    _step("tensorflow", 60, "does TensorFlow see the GPU, and compute there what NumPy does?"),
    _step("fused_attention", 120, "cuDNN's attention against Keras's: errors, and time by length"),
    _step("tune_cnn_mnist", 290, f"{_TUNE} the recipe's job", "tune", subject="cnn_mnist"),
    _step("cnn_mnist", 290, "the recipe cnn_mnist, row by row"),
    _step("resnet50_batch", 130, _LARGEST, "largest_batch", subject="resnet50"),
    _settings("resnet50", "mixed_float16", "mixed_bfloat16"),
    _settings("transformer", "mixed_float16", "mixed_bfloat16"),
    _step("tune_resnet50", 290, f"{_TUNE} ResNet-50", "tune", subject="resnet50"),
    _step("monitoring", 180, "what NVML tells, the energy of an example"),
    _step("memory", 290, "tfopt.training_memory against the peak of TensorFlow's allocator"),
    _settings("resnet50", "float32", "TF32"),
    _step("serving", 100, "files of MobileNetV2 by TensorFlow and TensorRT: parity, latency"),
    _step("out_of_memory", 50, _OUT_OF_MEMORY, jit_compile=False),
    _step("out_of_memory_xla", 50, f"{_OUT_OF_MEMORY}: XLA's", "out_of_memory", jit_compile=True),
    _step("placement", 90, "what tfopt.place does to the memory that a process holds"),
)


@dataclass
class Day:
    """What a step is given: its folders, its time, and where its figures go.

    Attributes:
        step: The step's name.
        output: Where the JSON files of all steps are.
        work: An empty folder for whatever a command of this step writes.
        rehearse: Whether to do it small, on the CPU.
        ends_s: When to be through, on the monotonic clock.
    """

    step: str
    output: Path
    work: Path
    rehearse: bool
    ends_s: float
    figures: dict[str, Any] = field(default_factory=dict)

    def keep(self, **figures: Any) -> None:
        """Add figures; what was kept is in the step's JSON however the step ends."""
        self.figures.update(figures)
        content = json.dumps(self.figures, allow_nan=False, default=_plain)
        write_atomically(self.work / "figures.json", content)

    @property
    def left_s(self) -> float:
        """Return the seconds that are left."""
        return self.ends_s - time.monotonic()

    def earlier(self, step: str) -> Mapping[str, Any]:
        """Return what another step found in this output folder; nothing where it is not done."""
        for path in sorted(self.output.glob(f"*-gpu_day-{step}.json"), reverse=True):
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["status"] == DONE and content["rehearsed"] == self.rehearse:
                return dict(content["figures"])
        return {}


def one_step() -> None:
    """Do the step that the parent process asks for; leave how it ended, and end."""
    asked = json.loads(sys.argv[1])
    day = Day(**{**asked["day"], "output": Path(asked["output"]), "work": Path(asked["work"])})
    try:
        if not day.rehearse and day.step != STEPS[0].name:
            require_gpu()
        resolve_function(asked["function"])(day, **asked["arguments"])
        ended = {"status": DONE, "reason": None}
    except Exception as error:
        traceback.print_exc()
        told = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        ended = {"status": BROKEN, "reason": told}
    write_atomically(day.work / "ended.json", json.dumps(ended))
    sys.stdout.flush()
    sys.stderr.flush()
    # A process whose memory ran out may abort at its end, or wait for threads.
    os._exit(0)


def require_gpu() -> None:
    """Refuse to go on where TensorFlow would compute on the CPU."""
    import tensorflow as tf

    if not tf.config.list_physical_devices("GPU"):
        raise UserError(
            "TensorFlow sees no GPU.",
            expected="a GPU: every figure of this step is about one",
            received=why_no_gpu(),
            fix="the step `tensorflow` tells which libraries were loaded; its .log, which not",
        )


def carry_out(
    step: Step,
    output: Path,
    *,
    rehearse: bool,
    provenance: Mapping[str, Any],
    grace_s: float = GRACE_S,
) -> dict[str, Any]:
    """Run one step in a fresh process, and return what its JSON file holds."""
    begun, clock = datetime.now(UTC), time.monotonic()
    stem = f"{begun.date().isoformat()}-gpu_day-{step.name}"
    with tempfile.TemporaryDirectory(prefix="gpu_day-") as folder:
        ends_s = clock + max(step.limit_s - grace_s, step.limit_s / 2)
        asked = {
            "function": step.function,
            "arguments": dict(step.arguments),
            "output": str(output.resolve()),
            "work": folder,
            "day": {"step": step.name, "rehearse": rehearse, "ends_s": ends_s},
        }
        log = output / f"{stem}.log"
        code = _follow(json.dumps(asked), log, _variables(rehearse, folder), step.limit_s, grace_s)
        figures = _read(Path(folder) / "figures.json") or {}
        ended = _read(Path(folder) / "ended.json") or _unended(code, log, step.limit_s)
    content = {
        "benchmark": "gpu_day",
        "step": step.name,
        "answers": step.answers,
        **ended,
        "rehearsed": rehearse,
        "date": begun.date().isoformat(),
        "begun": begun.isoformat(timespec="seconds"),
        "took_s": round(time.monotonic() - clock, 1),
        "limit_s": step.limit_s,
        "command": f"python -m benchmarks.gpu_day --only {step.name}"
        + (" --rehearse" if rehearse else ""),
        "provenance": provenance,
        "figures": figures,
    }
    write_atomically(output / f"{stem}.json", json.dumps(content, indent=1) + "\n")
    return content


def _follow(
    asked: str, log: Path, variables: Mapping[str, str], limit_s: float, grace_s: float
) -> int | None:
    """Return the exit code of the step's process; None where it was ended at its limit."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, asked],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=dict(variables),
            start_new_session=True,  # what the step starts ends with it
        )
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            # A recipe that is asked to end writes the rows it has.
            os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
            return None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _variables(rehearse: bool, folder: str) -> dict[str, str]:
    """Return the step's environment: this checkout comes first, caches go into its folder."""
    found = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, found)), "XDG_CACHE_HOME": folder}
    hidden = {"CUDA_VISIBLE_DEVICES": "-1"} if rehearse else {}
    return {"TF_CPP_MIN_LOG_LEVEL": "1", **os.environ, **own, **hidden}


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _unended(code: int | None, log: Path, limit_s: float) -> dict[str, Any]:
    """Return how a step ended that could not tell it itself."""
    words = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
    told = f"its last words: {' | '.join(words)[-_LAST_LETTERS:] or 'none'}"
    if code is None:
        return {"status": TIMED_OUT, "reason": f"not done within {limit_s:g} s; {told}"}
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    return {"status": BROKEN, "reason": f"its process ended without a result: {how}; {told}"}


def _plain(value: Any) -> Any:
    """Return what JSON has no word for: NumPy's numbers as Python's, anything else in words."""
    item: Callable[[], Any] | None = getattr(value, "item", None)
    return str(value) if item is None else item()


def run_steps(steps: Sequence[Step], output: Path, *, rehearse: bool = False) -> int:
    """Do the steps one after the other; return the exit code."""
    provenance, broken = asdict(read_provenance()), False
    for step in steps:
        print(f"{step.name} (at most {step.limit_s:g} s) ...", flush=True)
        found = carry_out(step, output, rehearse=rehearse, provenance=provenance)
        broken = broken or found["status"] in (BROKEN, TIMED_OUT)
        why = f": {found['reason'].splitlines()[0]}" if found["reason"] else ""
        print(f"  {found['status']} in {found['took_s']:g} s{why}", flush=True)
    print(f"A JSON file and a log of each step: {output}")
    return FAILED if broken else 0


def chosen(names: str | None, limit_s: float | None = None) -> list[Step]:
    """Return the steps of these names, in their own order, with this limit."""
    known = [step.name for step in STEPS]
    wanted = known if names is None else [each.strip() for each in names.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UserError(
            "There is no such step.",
            expected=f"some of {','.join(known)}",
            received=", ".join(map(repr, unknown)),
        )
    if limit_s is not None and not limit_s > 0:
        raise UserError("--limit is not a time.", expected="seconds", received=str(limit_s))
    steps = [step for step in STEPS if step.name in wanted]
    return [replace(step, limit_s=limit_s or step.limit_s) for step in steps]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(description="Run on a GPU what tfopt has only run on CPUs, a JSON file a step.")
    parser.add_argument("--list", action="store_true", help="show the steps and their limits")
    parser.add_argument("--only", metavar="NAME,...", help="these steps (default: all)")
    parser.add_argument(
        "--limit", type=float, metavar="SECONDS", help="for each step, instead of its own limit"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="the same steps, small and on the CPU"
    )
    add_output(parser, "gpu_day, with --rehearse gpu_day_rehearsal")
    add_debug(parser)
    options = parser.parse_args(arguments)

    def work() -> int:
        steps = chosen(options.only, options.limit)
        if options.list:
            for step in steps:
                print(f"{step.name:18} {step.limit_s:5g} s  {step.answers}")
            print(f"{'together':18} {sum(step.limit_s for step in steps):5g} s  at most")
            return 0
        memories = gpu_memories()
        if not options.rehearse and (isinstance(memories, str) or not memories):
            raise UserError(
                "This machine has no GPU to spend a day on.",
                expected="a GPU that NVIDIA's driver lists",
                received=why_no_gpu(),
                fix="--rehearse runs the same steps small, on the CPU",
            )
        folder = "gpu_day_rehearsal" if options.rehearse else "gpu_day"
        output = prepare_folder(options.output or folder)
        return run_steps(steps, output, rehearse=options.rehearse)

    return exit_code_of(work, debug=options.debug)


if __name__ == "__main__":
    sys.exit(main())
