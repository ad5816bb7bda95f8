"""A day on a GPU: what its runner does with steps that fail, hang and crash, and a rehearsal."""

import importlib
import json
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
        told = gpu_day.carry_out(step, tmp_path, rehearse=True, shared={}, grace_s=0.5)
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
        ("crashes", "failed", "killed by SIGABRT; its last output: a kernel went wrong"),
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


def test_a_portion_leaves_out_what_has_a_result_for_this_code_and_what_does_not_fit(
    gpu_day, tmp_path, monkeypatch, capsys
):
    steps = [
        gpu_day.Step(n, s, "", f"stand_ins:{n}") for n, s in (("a", 60), ("b", 400), ("c", 60))
    ]
    monkeypatch.setattr(gpu_day, "STEPS", (*steps, gpu_day.Step("d", 60, "", "")))
    monkeypatch.setattr(gpu_day, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(gpu_day, "code_digest", lambda: "this")
    (tmp_path / "results").mkdir()

    def leave(folder, step, status, digest):
        told = {"step": step, "status": status, "code_digest": digest, "rehearsed": True}
        (folder / f"2026-11-27-gpu_day-{step}.json").write_text(json.dumps(told))

    leave(tmp_path / "results", "a", "failed", "this")
    leave(tmp_path, "c", "begun", "this")
    leave(tmp_path, "d", "done", "of older code")
    ran = []

    def carry_out(step, output, rehearse, shared):
        ran.append(step.name)
        assert shared["code_digest"] == "this"
        return {"status": "done", "reason": None, "took_s": 1}

    monkeypatch.setattr(gpu_day, "carry_out", carry_out)
    flags = ["--rehearse", "--output", str(tmp_path)]
    assert gpu_day.main([*flags, "--minutes", "3"]) == 0
    assert ran == ["c", "d"]
    assert "b (at most 400 s): left to another portion" in capsys.readouterr().out
    assert gpu_day.main([*flags, "--list"]) == 0
    assert [line.split()[3] for line in capsys.readouterr().out.splitlines()[:1]] == ["failed"]


def test_steps_are_chosen_by_name_in_their_own_order(gpu_day):
    assert [step.name for step in gpu_day.chosen("memory, doctor")] == ["doctor", "memory"]
    with pytest.raises(UserError, match="no such step") as raised:
        gpu_day.chosen("doctor,memroy")
    assert raised.value.received == "'memroy'"


def test_without_a_gpu_it_refuses(gpu_day, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_day, "gpu_memories", list)
    assert gpu_day.main(["--output", str(tmp_path / "day")]) == 2
    assert "fix: --rehearse" in capsys.readouterr().err
    assert not (tmp_path / "day").exists()


def test_a_rehearsed_step(gpu_day, tmp_path):
    assert gpu_day.main(["--rehearse", "--only", "doctor", "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.json")
    told = json.loads(path.read_text(encoding="utf-8"))
    assert {check["theme"] for check in told["figures"]["checks"]} == {"gpu", "compute"}
    assert told["code_digest"] == gpu_day.code_digest()
    assert told["provenance"]["packages"]["tfopt"] == tfopt.__version__


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
    assert "the chain, second process" in figures["bert"]["table"][-1]
    for name in ("out_of_memory", "out_of_memory_xla"):
        assert figures[name]["explained"].startswith("Memory ran out in the first training step.")
    assert figures["cnn_mnist"]["ran"].endswith(" --output FOLDER")
