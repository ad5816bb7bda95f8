"""Run on a lent GPU, in portions, what tfopt has only run on CPUs: a JSON file for each step.

    python -m benchmarks.gpu_day --list
    python -m benchmarks.gpu_day --minutes 9 --output gpu_day
    python -m benchmarks.gpu_day --rehearse --only fused_attention

The steps (``gpu_steps.py``) stand in order of value. A portion takes those that have no result yet
for this code (``code_digest``) in ``--output`` or in ``results/`` and that still fit into its
minutes. Each has a fresh process under a time limit, and leaves DATE-gpu_day-STEP.json: machine,
driver, versions, command, how it ended, and every figure it has by then, also while it runs. A step
that fails or hangs keeps no other from running. ``--rehearse`` runs the same steps on this
machine's CPU, with small models and one setting each: its figures say nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tfopt
from benchmarks.figures import RESULTS, ROOT
from tfopt.errors import UserError
from tfopt.files import prepare_folder, write_atomically
from tfopt.job.references import resolve_function
from tfopt.measure.provenance import read_provenance
from tfopt.monitor.nvml import gpu_memories, why_no_gpu
from tfopt.recipes.flags import FAILED, Parser, add_flags, add_output, exit_code_of
from tfopt.subprocesses import how_it_ended, last_lines

DONE, BROKEN, TIMED_OUT, BEGUN = "done", "failed", "timed out", "begun"
# Of this folder, beside all of tfopt: what the steps are made of.
SOURCES = ("gpu_*.py", "*peer*.py", "jobs.py", "nets.py")
# What a step is left to end in by itself, before and after it is asked to.
GRACE_S = 10.0
_LOOK_THEMSELVES = (":doctor", ":peers")  # TensorFlow takes seconds to load
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


def _peers(name: str, limit_s: float, net: str, answers: str, **arguments: Any) -> Step:
    arguments = {"beside": [], "flags": [], **arguments}
    return _step(name, limit_s, f"{answers} by turns", "peers", net=net, **arguments)


_BESIDE = "in Keras, under the chain, its second process"
_PAIR = "under the chain and in PyTorch"
_FLAGS = (
    "--xla_gpu_autotune_level=0",
    "--xla_gpu_enable_cublaslt=true",
    "--xla_gpu_enable_triton_gemm=false",
    "--xla_gpu_enable_command_buffer=",
)
_TORCH, _JAX = {"beside": ["torch"]}, {"beside": ["torch", "jax"], "most": 4}
_OUT_OF_MEMORY = "a forced lack of memory, as tfopt.explain_out_of_memory tells it"
_TUNE, _LARGEST = "`tfopt tune` on", "the largest batch of ResNet-50 at 224 px in float32"
_BERT, _BERT_3 = "BERT-base at 512 tokens", "three blocks of BERT-base at 512 tokens"
STEPS = (
    # A portion of nine minutes.
    _step("fused_attention", 110, "cuDNN's attention against Keras's: errors, and time by length"),
    _peers("bert_3", 210, "bert", f"{_BERT_3} {_BESIDE}, and in PyTorch", blocks=3, **_TORCH),
    _peers("bert_3_flags", 210, "bert", f"{_BERT_3} under XLA's flags", blocks=3, flags=_FLAGS),
    # Another one.
    _step("cnn_mnist", 290, "the recipe cnn_mnist, row by row"),
    _step("tune_cnn_mnist", 240, f"{_TUNE} the recipe's job", "tune", subject="cnn_mnist"),
    # And another one.
    _peers("bert", 300, "bert", f"{_BERT} {_BESIDE}, and in PyTorch", most=4, **_TORCH),
    _peers("resnet50", 230, "resnet50", f"ResNet-50 {_PAIR}", first=1, most=3, **_TORCH),
    # What is left.
    _peers("bert_3_jax", 180, "bert", f"{_BERT_3} in PyTorch and on JAX", blocks=3, **_JAX),
    _peers("vit", 290, "vit", "ViT-B/16 in Keras, the chain, PyTorch", most=3, **_TORCH),
    _step("doctor", 90, "does the GPU compute what it should, and how fast?"),
    _step("resnet50_batch", 130, _LARGEST, "largest_batch", subject="resnet50"),
    _step("tune_resnet50", 290, f"{_TUNE} ResNet-50", "tune", subject="resnet50"),
    _step("memory", 290, "tfopt.training_memory against the peak of TensorFlow's allocator"),
    _step("serving", 100, "files of MobileNetV2 by TensorFlow and TensorRT: parity, latency"),
    _step("out_of_memory", 50, _OUT_OF_MEMORY, jit_compile=False),
    _step("out_of_memory_xla", 50, f"{_OUT_OF_MEMORY}: XLA's", "out_of_memory", jit_compile=True),
)


@dataclass
class Day:
    """What a step is given: its file, its time, and a folder.

    Attributes:
        file: The step's JSON file.
        work: An empty folder for whatever a command of this step writes.
        rehearse: Whether to do it small, on the CPU.
        ends_s: When to be through, on the monotonic clock.
    """

    file: Path
    work: Path
    rehearse: bool
    ends_s: float

    def keep(self, **figures: Any) -> None:
        """Add figures to the step's JSON file, where they stay however the step ends."""
        content = json.loads(self.file.read_text(encoding="utf-8"))
        content["figures"].update(figures)
        _write(self.file, content)

    @property
    def left_s(self) -> float:
        """Return the seconds that are left."""
        return self.ends_s - time.monotonic()


def one_step() -> None:
    """Do the step that the parent process asks for; leave how it ended, and end."""
    asked = json.loads(sys.argv[1])
    day = Day(Path(asked["file"]), Path(asked["work"]), asked["rehearse"], asked["ends_s"])
    try:
        if not day.rehearse and not asked["function"].endswith(_LOOK_THEMSELVES):
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
            fix="the step's .log says which libraries were not loaded",
        )


def carry_out(
    step: Step,
    output: Path,
    *,
    rehearse: bool,
    shared: Mapping[str, Any],
    grace_s: float = GRACE_S,
) -> dict[str, Any]:
    """Run one step in a fresh process, and return what its JSON file holds.

    ``shared`` is what the files of all steps hold.
    """
    begun, clock = datetime.now(UTC), time.monotonic()
    stem = f"{begun.date().isoformat()}-gpu_day-{step.name}"
    file, log = output / f"{stem}.json", output / f"{stem}.log"
    command = f"python -m benchmarks.gpu_day --only {step.name}"
    content = {
        "benchmark": "gpu_day",
        "step": step.name,
        "answers": step.answers,
        "status": BEGUN,
        "reason": None,
        "rehearsed": rehearse,
        "date": begun.date().isoformat(),
        "begun": begun.isoformat(timespec="seconds"),
        "took_s": None,
        "limit_s": step.limit_s,
        "command": f"{command} --rehearse" if rehearse else command,
        **shared,
        "figures": {},
    }
    _write(file, content)
    with tempfile.TemporaryDirectory(prefix="gpu_day-") as folder:
        ends_s = clock + max(step.limit_s - grace_s, step.limit_s / 2)
        asked = {
            "function": step.function,
            "arguments": dict(step.arguments),
            "file": str(file.resolve()),
            "work": folder,
            "rehearse": rehearse,
            "ends_s": ends_s,
        }
        code = _follow(json.dumps(asked), log, _variables(rehearse, folder), step.limit_s, grace_s)
        end = Path(folder, "ended.json")
        ended = json.loads(end.read_text()) if end.exists() else _unended(code, log, step.limit_s)
    content = {**json.loads(file.read_text(encoding="utf-8")), **ended}
    content["took_s"] = round(time.monotonic() - clock, 1)
    _write(file, content)
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


def _unended(code: int | None, log: Path, limit_s: float) -> dict[str, Any]:
    """Return how a step ended that could not tell it itself."""
    output = log.read_text(encoding="utf-8", errors="replace")
    if code is None:
        words = last_lines(output) or "none"
        reason = f"not done within {limit_s:g} s; its last output: {words}"
        return {"status": TIMED_OUT, "reason": reason}
    return {"status": BROKEN, "reason": how_it_ended(code, output)}


def _write(file: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, indent=1, allow_nan=False, default=_plain)
    write_atomically(file, f"{text}\n")


def _plain(value: Any) -> Any:
    """Return what JSON has no word for: NumPy's numbers as Python's, anything else in words."""
    return value.item() if hasattr(value, "item") else str(value)


def code_digest() -> str:
    """Return a hash of the sources on which a step's figures depend."""
    found = hashlib.sha256()
    own = [path for pattern in SOURCES for path in Path(__file__).parent.glob(pattern)]
    for path in sorted([*Path(tfopt.__file__).parent.rglob("*.py"), *own]):
        found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def with_result(digest: str, folders: Sequence[Path], *, rehearse: bool) -> dict[str, str]:
    """Return how each step ended that has come to an end with this code."""
    ended = {}
    for path in (each for folder in folders for each in sorted(folder.glob("*-gpu_day-*.json"))):
        content = json.loads(path.read_text(encoding="utf-8"))
        of_this = content.get("code_digest") == digest and content["rehearsed"] == rehearse
        if of_this and content["status"] != BEGUN:
            ended[content["step"]] = content["status"]
    return ended


def run_steps(
    steps: Sequence[Step],
    output: Path,
    *,
    digest: str | None = None,
    rehearse: bool = False,
    ends_s: float = math.inf,
) -> int:
    """Do the steps that still fit before ``ends_s`` when their turn comes; return the exit code."""
    broken = False
    shared = {"code_digest": digest or code_digest(), "provenance": asdict(read_provenance())}
    for step in steps:
        if time.monotonic() + step.limit_s > ends_s:
            print(f"{step.name} (at most {step.limit_s:g} s): left to another portion")
            continue
        print(f"{step.name} (at most {step.limit_s:g} s) ...", flush=True)
        found = carry_out(step, output, rehearse=rehearse, shared=shared)
        broken = broken or found["status"] in (BROKEN, TIMED_OUT)
        why = f": {found['reason'].splitlines()[0]}" if found["reason"] else ""
        print(f"  {found['status']} in {found['took_s']:g} s{why}", flush=True)
    print(f"A JSON file and a log of each step: {output}")
    return FAILED if broken else 0


def chosen(names: str | None) -> list[Step]:
    """Return the steps of these names, in their own order."""
    known = [step.name for step in STEPS]
    wanted = known if names is None else [each.strip() for each in names.split(",")]
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UserError(
            "There is no such step.",
            expected=f"some of {','.join(known)}",
            received=", ".join(map(repr, unknown)),
        )
    return [step for step in STEPS if step.name in wanted]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(description="Run on a GPU what tfopt has only run on CPUs, a JSON file a step.")
    parser.add_argument("--list", action="store_true", help="show the steps and their limits")
    parser.add_argument("--only", metavar="NAME,...", help="these steps (default: all)")
    parser.add_argument(
        "--minutes", type=float, help="only steps without a result for this code, as they fit"
    )
    parser.add_argument(
        "--rehearse", action="store_true", help="the same steps, small and on the CPU"
    )
    add_output(parser, "gpu_day, with --rehearse gpu_day_rehearsal")
    add_flags(parser, "--debug")
    options = parser.parse_args(arguments)

    def work() -> int:
        begun_s, steps = time.monotonic(), chosen(options.only)
        folder = options.output or Path("gpu_day_rehearsal" if options.rehearse else "gpu_day")
        digest = code_digest()
        ended = with_result(digest, (RESULTS, folder), rehearse=options.rehearse)
        if options.list:
            for step in steps:
                told = ended.get(step.name, "")
                print(f"{step.name:18} {step.limit_s:5g} s  {told:9}  {step.answers}")
            return 0
        if not options.rehearse and not gpu_memories():
            raise UserError(
                "This machine has no GPU to spend a day on.",
                expected="a GPU that NVIDIA's driver lists",
                received=why_no_gpu(),
                fix="--rehearse runs the same steps small, on the CPU",
            )
        settings = {"digest": digest, "rehearse": options.rehearse}
        if options.minutes is not None:
            steps = [step for step in steps if step.name not in ended]
            settings["ends_s"] = begun_s + 60 * options.minutes
        return run_steps(steps, prepare_folder(folder), **settings)

    return exit_code_of(work, debug=options.debug)


if __name__ == "__main__":
    sys.exit(main())
