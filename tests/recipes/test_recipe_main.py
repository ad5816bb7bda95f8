"""A recipe from start to end: what it prints and leaves, exit codes, Ctrl-C; on made-up workers."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import fake_workers
import pytest
import toy_jobs
from fake_workers import FAST
from processes import wait_until, workers_in

from tfopt import Place, Quantize, UserError, chain
from tfopt.files import alone_in
from tfopt.recipes.recipe_main import Links, measure_and_show
from tfopt.report.bench_report import read_bench_report

EARLIER = b"of an earlier run"
REPORTS = {"bench.json", "bench.md", "bench.html"}


@pytest.fixture
def workers(monkeypatch):
    return fake_workers.install(monkeypatch, fake_workers.Workers())


@pytest.fixture
def shown(tmp_path, capsys):
    """Carries a chain out; returns the exit code and what was printed."""

    def run(*links, **settings):
        code = measure_and_show(
            title="toy",
            command="the command",
            job="nowhere:job",
            links=Links(chain(*links)),
            output=tmp_path,
            arguments={},
            **settings,
        )
        return code, capsys.readouterr().out

    return run


def left_in(folder):
    return {path.name for path in folder.iterdir()}


def test_it_leaves_report_and_files_and_tells_the_time_left(shown, workers, tmp_path):
    code, printed = shown(Place(), FAST, Quantize(), seed=3)
    assert code == 0
    files = {"model.keras", "model_int8.tflite", ".tfopt-files", ".tfopt.lock", "blocks"}
    assert left_in(tmp_path) == REPORTS | files
    report = read_bench_report(tmp_path / "bench.json")
    assert report.complete
    assert report.command == "the command"
    assert [row.name for row in report.variants] == [
        "baseline", "+ Place", "+ Execution", "+ Quantize",
    ]  # fmt: skip
    assert [figures.seed for figures in report.reference.trainings] == [3, 4, 5]
    assert "+ Place: no effect: runs on the CPU" in printed
    assert " left" in printed
    assert "+ Execution: trained in" in printed
    assert report.recommendation.keep in " ".join(printed.split())
    assert "reaches baseline's test accuracy" in (tmp_path / "bench.md").read_text()
    assert "Size and speed when it serves" in (tmp_path / "bench.html").read_text()


def test_a_link_that_failed_is_in_the_exit_code(shown, workers):
    workers.answer = lambda asked: "SIGKILL" if asked.last == FAST else None
    code, printed = shown(FAST)
    assert code == 1
    assert "+ Execution: failed: SIGKILL" in printed


def test_a_job_that_cannot_be_trained_is_one_error(shown, workers):
    workers.answer = lambda asked: "the disk of the data is gone"
    with pytest.raises(UserError, match="the disk of the data is gone"):
        shown(FAST)


def test_it_goes_on_where_it_was_stopped(shown, workers, tmp_path):
    def answer(asked):
        if workers.kinds().count("training") > 2:
            raise KeyboardInterrupt

    workers.answer = answer
    code, printed = shown(FAST)
    assert code == 130
    assert "go on with --resume" in printed
    assert not read_bench_report(tmp_path / "bench.json").complete
    done = workers.kinds().count("training")
    workers.answer = lambda asked: None
    assert shown(FAST, resume=True)[0] == 0
    assert workers.kinds().count("training") == done + 4
    assert read_bench_report(tmp_path / "bench.json").complete


def test_a_real_interrupt_ends_the_workers_and_leaves_a_report(tmp_path, monkeypatch):
    """SIGINT to a real process, while a worker is under way after the first round."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(toy_jobs.__file__).parent), prepend=os.pathsep)
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.keras").write_bytes(EARLIER)
    (out / ".tfopt-files").write_text("model.keras")
    with subprocess.Popen(
        [sys.executable, toy_jobs.__file__],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            wait_until(lambda: (out / "bench.json").exists() or process.poll() is not None, 200)
            wait_until(lambda: workers_in(tmp_path))
            with pytest.raises(UserError, match="Another measurement"), alone_in(out):
                pass
            process.send_signal(signal.SIGINT)
            printed, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, printed
    assert "Interrupted" in printed
    assert "Traceback" not in printed
    assert not workers_in(tmp_path)
    assert not read_bench_report(out / "bench.json").complete
    # Nothing was trained whole yet: files of an earlier run would be taken for this one's.
    assert left_in(out) == REPORTS | {".tfopt-files", ".tfopt.lock", "blocks"}
    with alone_in(out):
        pass
