"""What a measurement prints and leaves, its exit codes, and an interruption, on a made-up machine.

A real Ctrl-C is in ``tests/commands/test_bench_command.py``.
"""

import pytest
from made_machine import Machine

from tfopt import Execution, Place, Quantize, UserError, chain
from tfopt.measure.bench_plan import BenchPlan
from tfopt.measure.targets import Target
from tfopt.recipes.bench_display import bench_and_show
from tfopt.report.bench_report import read_bench_report
from tfopt.report.display import Display

REPORTS = {"bench.json", "bench.md", "bench.html"}
FAST = Execution(steps_per_execution=20)


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


@pytest.fixture
def shown(tmp_path, capsys):
    """Measure a chain for a person; return the exit code and what was printed."""

    def run(*links, **settings):
        target = Target("toy", "toy:job", chain(*links))
        plan = BenchPlan("toy", "the command", "prefixes", (target,), **settings)
        code = bench_and_show(plan, tmp_path, Display(budget_s=plan.budget_s))[1]
        return code, " ".join(capsys.readouterr().out.split())

    return run


def left_in(folder):
    return {path.name for path in folder.iterdir()}


def test_it_leaves_report_and_files_and_shows_the_time_of_the_run(shown, machine, tmp_path):
    code, printed = shown(Place(), FAST, Quantize(), seed=3, whole=True)
    assert code == 0
    assert left_in(tmp_path) == REPORTS | {"kept", ".tfopt.lock"}
    assert left_in(tmp_path / "kept") == {"model.keras", "model_int8.tflite"}
    report = read_bench_report(tmp_path / "bench.json")
    assert (report.complete, report.command) == (True, "the command")
    assert [row.name for row in report.variants] == [
        "baseline", "+ Place", "+ Execution", "+ Quantize",
    ]  # fmt: skip
    assert [training.seed for training in report.reference.trainings] == [3, 4, 5]
    assert "turns of baseline, + Execution, + Quantize, " in printed
    assert " of 300 s ..." in printed
    assert "training whole, 7 of 7" in printed
    assert report.recommendation.keep in printed
    assert "Serving: size and latency" in (tmp_path / "bench.html").read_text()


def test_a_report_alone_is_left_in_a_new_folder(machine, tmp_path):
    plan = BenchPlan("toy", "the command", "single", (Target("toy", "toy:job"),), seeds=0)
    bench_and_show(plan, tmp_path / "new", Display(verbose=False))
    assert left_in(tmp_path / "new") == REPORTS | {".tfopt.lock"}


def test_a_link_that_failed_is_in_the_exit_code(shown, machine):
    machine.failing = lambda asked: "SIGKILL" if asked else None
    code, printed = shown(FAST)
    assert code == 1
    assert "+ Execution: SIGKILL" in printed


def test_a_job_that_cannot_be_trained_is_one_error(shown, machine, tmp_path):
    machine.failing = lambda asked: "the disk of the data is gone"
    with pytest.raises(UserError, match="the disk of the data is gone"):
        shown(FAST)
    assert left_in(tmp_path) == set()


def test_interrupted_it_says_whether_there_is_a_report(shown, machine, tmp_path):
    for turns, said in ((0, "nothing was measured yet"), (5, "what was measured is in the report")):

        def interrupt(child, turns=turns):
            if child.turns == turns:
                machine.before = lambda child: None
                raise KeyboardInterrupt

        machine.before = interrupt
        code, printed = shown(FAST)
        assert (code, said in printed) == (130, True)
        assert bool(left_in(tmp_path) & REPORTS) == bool(turns)
    assert not read_bench_report(tmp_path / "bench.json").complete
