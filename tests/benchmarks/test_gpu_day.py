"""A day on a GPU: what its runner does with steps that fail, hang and crash, and a rehearsal."""

import importlib
import json
import math
import time
from pathlib import Path

import psutil
import pytest

import tfopt
from tfopt import UserError

ROOT = Path(__file__).parents[2]

STAND_INS = """
import os, signal, subprocess, sys, time
from tfopt.errors import UserError

def works(day, times=1):
    day.keep(squares=[n * n for n in range(times)], left=0 < day.left_s < 60)

def fails(day):
    day.keep(before=1)
    raise UserError("The matrix is not square.", received="2 by 3")

def raises(day):
    raise KeyError("kernel")

def crashes(day):
    print("a kernel went wrong", flush=True)
    os.kill(os.getpid(), signal.SIGABRT)

def hangs(day):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    day.keep(child=child.pid)
    time.sleep(600)
"""


@pytest.fixture
def gpu_day(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.gpu_day")


@pytest.fixture
def carried_out(gpu_day, tmp_path, monkeypatch):
    """Carry out a stand-in for a step, and return what its file holds."""
    (tmp_path / "stand_ins.py").write_text(STAND_INS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def carry_out(name, limit_s=60.0, **arguments):
        step = gpu_day.Step(name, limit_s, "a question", f"stand_ins:{name}", arguments)
        told = gpu_day.carry_out(step, tmp_path, rehearse=True, provenance={}, grace_s=0.5)
        (path,) = tmp_path.glob(f"*-gpu_day-{name}.json")
        assert json.loads(path.read_text(encoding="utf-8")) == told
        return told

    return carry_out


def test_a_step_leaves_a_dated_file(carried_out):
    told = carried_out("works", times=3)
    assert told["status"] == "done"
    assert told["reason"] is None
    assert told["figures"] == {"squares": [0, 1, 4], "left": True}
    assert told["rehearsed"] is True
    assert told["begun"].startswith(told["date"])
    assert told["command"] == "python -m benchmarks.gpu_day --only works --rehearse"


@pytest.mark.parametrize(
    ("name", "status", "reason"),
    [
        ("fails", "failed", "The matrix is not square.\n  received: 2 by 3"),
        ("crashes", "failed", "killed by SIGABRT; its last words: a kernel went wrong"),
    ],
)
def test_how_a_step_ended_is_in_its_file(carried_out, name, status, reason):
    told = carried_out(name)
    assert told["status"] == status
    assert reason in told["reason"]
    assert told["figures"] == ({"before": 1} if name == "fails" else {})


def test_a_step_that_hangs_is_ended_with_all_that_it_started_and_its_figures_stay(carried_out):
    told = carried_out("hangs", limit_s=3.0)
    assert told["status"] == "timed out"
    assert told["reason"].startswith("not done within 3 s")
    assert told["took_s"] < 10
    child = told["figures"]["child"]
    deadline = time.monotonic() + 10
    while psutil.pid_exists(child) and psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_steps_after_one_that_failed_are_done(gpu_day, carried_out, tmp_path, capsys):
    steps = [gpu_day.Step(n, 60, "", f"stand_ins:{n}") for n in ("raises", "works")]
    assert gpu_day.run_steps(steps, tmp_path, rehearse=True) == 1
    assert "failed in" in capsys.readouterr().out
    assert gpu_day.run_steps(steps[1:], tmp_path, rehearse=True) == 0
    (path,) = tmp_path.glob("*-gpu_day-works.json")
    assert json.loads(path.read_text())["provenance"]["packages"]["tfopt"] == tfopt.__version__


def test_all_steps_take_at_most_fifty_minutes_and_each_less_than_five(gpu_day, capsys):
    assert gpu_day.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]] == [
        step.name for step in gpu_day.STEPS
    ]
    assert sum(step.limit_s for step in gpu_day.STEPS) <= 50 * 60
    assert max(step.limit_s for step in gpu_day.STEPS) < 5 * 60


def test_steps_are_chosen_by_name_in_their_own_order(gpu_day):
    steps = gpu_day.chosen("memory, tensorflow", 30.0)
    assert [(step.name, step.limit_s) for step in steps] == [("tensorflow", 30), ("memory", 30)]
    with pytest.raises(UserError, match="no such step") as raised:
        gpu_day.chosen("tensorflow,memroy")
    assert raised.value.received == "'memroy'"
    with pytest.raises(UserError, match="--limit is not a time"):
        gpu_day.chosen(None, math.nan)


def test_without_a_gpu_it_refuses(gpu_day, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_day, "gpu_memories", lambda: "NVML: no library")
    assert gpu_day.main(["--output", str(tmp_path / "day")]) == 2
    assert "fix: --rehearse" in capsys.readouterr().err
    assert not (tmp_path / "day").exists()


def test_a_rehearsed_step(gpu_day, tmp_path):
    assert gpu_day.main(["--rehearse", "--only", "tensorflow", "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.json")
    figures = json.loads(path.read_text(encoding="utf-8"))["figures"]
    assert figures["gpus"] == []
    assert {*figures["products"]} == {"float32", "TF32", "float16", "bfloat16", "convolution"}


# Steps in every setting, with processes that are none.


@pytest.fixture
def settings(gpu_day, tmp_path, monkeypatch):
    """Measure ResNet-50's settings: TF32 takes half of the time, XLA nine tenths."""
    steps = importlib.import_module("benchmarks.gpu_steps")
    monkeypatch.setattr(tfopt, "place", lambda gpus: None)

    def timed(job, arguments, chain, day):
        precision, execution = chain.parts
        step_ms = 100 * (0.5 if precision.tf32 else 1.0) * (0.9 if execution.jit_compile else 1.0)
        day.ends_s -= 10
        if execution.jit_compile and day.step == "without_room":
            return steps._Timed(None, "out of memory")
        missing = dict.fromkeys(("host_peak_mib", "gpu_peak_mib", "energy_per_example_j"), "none")
        process = steps.TimedProcess(
            1.0, 2.0, 1, 0.0, (0,), (step_ms,), (3,), arguments["batch_size"], 1,
            None, None, None, (), missing, "",
        )  # fmt: skip
        return steps._Timed(process, "")

    monkeypatch.setattr(steps, "_timed", timed)

    def measure(left_s, step="resnet50"):
        (tmp_path / "work").mkdir(exist_ok=True)
        day = gpu_day.Day(step, tmp_path, tmp_path / "work", False, time.monotonic() + left_s)
        steps.settings(day, "resnet50", ["float32", "TF32"])
        return day.figures

    return measure


def test_settings_are_compared_in_fresh_processes(settings, tmp_path):
    figures = {"status": "done", "rehearsed": False, "figures": {"largest": 512}}
    path = tmp_path / "2026-11-25-gpu_day-resnet50_batch.json"
    path.write_text(json.dumps(figures))
    figures = settings(left_s=100)
    assert figures["arguments"]["batch_size"] == 512
    assert figures["batch_from"] == "found by the step resnet50_batch"
    rows = figures["settings"]
    assert [*rows] == ["float32", "TF32", "float32 + XLA", "TF32 + XLA"]
    both = rows["TF32 + XLA"]
    assert both["processes"] == 2
    assert both["time_against_float32"]["ratio"] == pytest.approx(0.45)
    assert both["time_against_without_xla"]["ratio"] == pytest.approx(0.9)
    assert rows["float32"]["time_against_float32"] is None
    assert rows["TF32"]["examples_per_s"] == pytest.approx(512 / 0.05)


def test_where_time_is_over_after_one_process_there_is_no_interval(settings):
    figures = settings(left_s=50)
    assert figures["batch_from"] == "assumed, not found by the step resnet50_batch"
    against = figures["settings"]["TF32"]["time_against_float32"]
    assert against == {"ratio": pytest.approx(0.5), "note": "no interval"}


def test_a_setting_that_does_not_fit_is_told(settings):
    figures = settings(left_s=50, step="without_room")
    assert figures["left_out"]["TF32 + XLA"] == "out of memory"
    row = figures["settings"]["TF32 + XLA"]
    assert row["processes"] == 0
    assert row["time_against_float32"] is None


@pytest.mark.slow
def test_all_steps_rehearsed(gpu_day, tmp_path):
    assert gpu_day.main(["--rehearse", "--output", str(tmp_path)]) == 0
    told = {
        content["step"]: content
        for path in tmp_path.glob("*.json")
        for content in [json.loads(path.read_text(encoding="utf-8"))]
    }
    assert told.keys() == {step.name for step in gpu_day.STEPS}
    figures = {name: each["figures"] for name, each in told.items() if each["status"] == "done"}
    assert told.keys() == figures.keys()
    assert figures["resnet50"]["batch_from"] == "found by the step resnet50_batch"
    for name in ("out_of_memory", "out_of_memory_xla"):
        assert figures[name]["explained"].startswith("Memory ran out in the first training step.")
    assert figures["cnn_mnist"]["ran"].endswith(" --output FOLDER")
