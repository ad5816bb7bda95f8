"""``tfopt bench`` and ``tfopt tune`` as a person runs them: mistakes, JSON, files, Ctrl-C."""

import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from bench_reports import single

from tfopt.commands.cli import main
from tfopt.report.bench_report import read_bench_report


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "one.toml").write_text('tfopt = 1\n[[chain]]\ntransform = "pipeline"\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "takes one JOB, or two after --only"),
        (["toy_jobs:job", "--seeds", "-1"], "argument --seeds: '-1' is not a whole number"),
        (["toy_jobs:job", "--budget", "5m", "--quick"], "not allowed with argument --budget"),
        (["toy_jobs:job", "--whole", "--seeds", "0"], "--whole needs at least one training"),
        (["toy_jobs:job", "--ablate"], "`--ablate` leaves links out of a chain"),
        (["--only", "a:b", "c:d", "--chain", "one.toml"], "--chain cannot be combined with --only"),
        (["toy_jobs:job", "--input", "--trace", "t"], "--trace cannot be combined with --input"),
        (["toy_job:job"], "There is no module 'toy_job'"),
        (["toy_jobs:jbo"], "did you mean job?"),
        (["ones.toml"], "did you mean one.toml?"),
        (["toy_jobs:job", "--set", "sample=3"], "unexpected keyword argument 'sample'"),
    ],
)
def test_a_mistake_is_told_before_anything_is_measured(folder, capsys, arguments, told):
    try:
        code = main(["bench", *arguments])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert told in capsys.readouterr().err
    assert not list(folder.glob("*_bench/bench.*"))


@pytest.fixture
def shown(monkeypatch):
    """What ``tfopt bench`` and ``tfopt tune`` ask for, in the place of carrying it out."""
    from tfopt.recipes import bench_display

    heard = []

    def bench_and_show(plan, output, display):
        heard.append((plan, output, not display.console.quiet))
        print("a table")
        return single(title=plan.title), 0

    def tune_and_show(search, output, display):
        heard.append((search, output, not display.console.quiet))
        print("a table")
        return SimpleNamespace(report=single(title=search.target.name), interrupted=False)

    monkeypatch.setattr(bench_display, "bench_and_show", bench_and_show)
    monkeypatch.setattr(bench_display, "tune_and_show", tune_and_show)
    return heard


def test_what_is_measured(folder, shown):
    for flags, kind, links in (
        (["toy_jobs:job"], "single", 0),
        (["toy_jobs:job", "--chain", "one.toml"], "prefixes", 1),
        (["tfopt.recipes.cnn_mnist", "--ablate"], "ablation", 8),
        (["--only", "toy_jobs:job", "toy_jobs:job"], "pair", 0),
    ):
        assert main(["bench", *flags, "--set", "samples=512", "--output", "out"]) == 0
        plan = shown.pop()[0]
        assert (plan.kind, len(plan.targets[0].chain.parts)) == (kind, links)
        assert plan.targets[0].arguments == {"samples": 512}
        assert (plan.budget_s, plan.quick, plan.seeds, plan.max_drop) == (300, False, 3, 0.5)
    assert [target.name for target in plan.targets] == ["toy_jobs:job (1)", "toy_jobs:job (2)"]
    assert (
        plan.command
        == "tfopt bench --only toy_jobs:job toy_jobs:job --set samples=512 --output out"
    )
    assert plan.trace is None
    for flags, budget_s in ((["--quick"], 120), (["--budget", "90s", "--trace", "traces"], 90)):
        assert main(["bench", "toy_jobs:job", *flags, "--whole", "--max-drop", "0.2"]) == 0
        plan, output, verbose = shown.pop()
        assert (plan.budget_s, plan.quick) == (budget_s, flags == ["--quick"])
        assert (plan.whole, plan.max_drop, verbose) == (True, 0.2, True)
        assert output.name == "toy_jobs_job_bench"
    assert plan.trace.is_dir()


def test_json_is_one_document_and_nothing_else(folder, shown, capsys):
    assert main(["bench", "toy_jobs:job", "--json"]) == 0
    said = capsys.readouterr()
    assert (json.loads(said.out)["title"], said.err) == ("toy_jobs:job", "a table\n")
    assert not shown.pop()[2]
    flags = ["--json", "--budget", "2m", "--try", "batch_size=64,128", "--try", "jit_compile=True"]
    assert main(["tune", "toy_jobs:job", *flags]) == 0
    said = capsys.readouterr()
    assert (json.loads(said.out)["title"], said.err) == ("toy_jobs:job", "a table\n")
    search, output, verbose = shown.pop()
    assert output.name == "toy_jobs_job_tuned"
    assert (search.budget_s, search.max_drop, verbose) == (120, 0.5, False)
    assert search.space == {"batch_size": [64, 128], "jit_compile": [True]}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_leave_what_was_measured(folder, number, code):
    """One job alone, stopped in its turns: a valid report, no process and no temporary file."""
    command = [sys.executable, "-m", "tfopt", "bench", "toy_jobs:job"]
    command += ["--set", "samples=512", "--budget", "60s", "--output", "out"]
    path = os.pathsep.join(sys.path)
    (temporary := folder / "temporary").mkdir()
    environment = {
        **os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path, "TMPDIR": str(temporary)
    }  # fmt: skip
    stopped = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    while "turns of" not in (line := stopped.stdout.readline()):
        assert line, "it ended before its turns"
    time.sleep(3)
    stopped.send_signal(number)
    told, _ = stopped.communicate(timeout=60)
    assert stopped.returncode == code, told
    assert not list(temporary.iterdir())
    report = read_bench_report(folder / "out/bench.json")
    assert not report.complete
    assert report.reference.processes
    assert report.reference.arguments == {"samples": "512"}
    assert (folder / "out/bench.html").read_text().startswith("<!DOCTYPE html>")
    others = subprocess.run(["pgrep", "-s", str(stopped.pid)], capture_output=True, check=False)
    assert others.stdout == b""
