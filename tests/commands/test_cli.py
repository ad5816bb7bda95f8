"""The tfopt command: one vocabulary, one error a mistake, bench and report for real."""

import argparse
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from bench_reports import single

from tfopt.commands.cli import _parser, main
from tfopt.errors import UserError
from tfopt.job.roster import transform_name
from tfopt.recipes import cnn_mnist
from tfopt.recipes.flags import count, duration, in_flags, points


def tfopt(*arguments, cwd=None, module="tfopt.commands.cli"):
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=cwd,
        check=False,
    )


@pytest.fixture
def recipe(monkeypatch, tmp_path):
    """The recipe's main function in this process and an empty folder."""
    from tfopt.recipes.recipe_main import recipe_main

    monkeypatch.chdir(tmp_path)

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["cnn_mnist", *flags])
        return recipe_main("tfopt.recipes.cnn_mnist:job", cnn_mnist.CHAIN, title="cnn_mnist")

    return run


def parsers():
    """The parser of each command, by its name."""
    (commands,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    return commands.choices


def test_the_same_thing_has_the_same_flag_in_every_command():
    found = {
        name: {flag: action for action in parser._actions for flag in action.option_strings}
        for name, parser in parsers().items()
    }
    assert list(found) == [
        "tune", "bench", "compare", "report", "export", "optimize", "batch-size", "hardware",
        "doctor", "monitor", "launch",
    ]  # fmt: skip
    assert [name for name, flags in found.items() if "--json" not in flags] == ["launch"]
    gone = {"--batch_size", "--batch", "--minutes", "--resume", "--rounds", "--anew"}
    for name, flags in found.items():
        assert not gone & {*flags}, name
        assert ("--job" in flags) == (name == "optimize"), name
        for flag in ("--budget", "--grace", "--listen", "--interval"):
            assert flag not in flags or flags[flag].type is duration, name
    assert [name for name, flags in found.items() if "--budget" in flags] == [
        "tune", "bench", "batch-size",
    ]  # fmt: skip
    assert [name for name, flags in found.items() if "--max-drop" in flags] == [
        "tune", "bench", "optimize",
    ]  # fmt: skip


def test_times_counts_and_points():
    assert [duration(text) for text in ("90s", "1.5m", "1h", "45")] == [90, 90, 3600, 45]
    assert (count("3"), points("0.5")) == (3, 0.5)
    for read, texts in {
        duration: ("", "5 m", "-1s", "1d", "nan"),
        count: ("-1", "2.5", "many"),
        points: ("-1", "101", "nan", "some"),
    }.items():
        for text in texts:
            with pytest.raises(argparse.ArgumentTypeError, match="is no "):
                read(text)


def test_an_error_names_the_flags_of_its_command():
    tune = parsers()["tune"]
    for python, flags in {
        "fix: give max_drop=2": "fix: give --max-drop 2",
        'or objective="step", or exact=True': "or --objective step, or --exact",
        "a longer `budget_s`; exact=False": "a longer `--budget`; no --exact",
        "max_drop is not a number of points.": "--max-drop is not a number of points.",
        # What was received, calls, other flags' values, and what there is no flag for.
        "  received: max_drop=200": "  received: max_drop=200",
        'tfopt.tune("a:b", max_drop=2) or seeds=1': 'tfopt.tune("a:b", max_drop=2) or --seeds 1',
        "--set seeds=2, and 'budget_s' of a job": "--set seeds=2, and 'budget_s' of a job",
        "set Job.steps_per_epoch, or turns=3": "set Job.steps_per_epoch, or turns=3",
    }.items():
        assert in_flags(python, tune) == flags


def test_an_error_of_a_python_function_names_the_flag(tmp_path, capsys):
    listening = ["doctor", "--only", "host", "--listen", "2h"]
    for arguments in (listening, [*listening, "--json"]):
        assert main(arguments) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "--listen is not a time to wait" in shown.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "nowhere.toml"], "nowhere.toml"),
        (["bench", "typo.toml"], "typo.toml: chain[0].sparsety"),
        (["tune", "jobless.toml"], "names no job"),
        (["hardware", "no_such_package.train:job"], "no_such_package"),
        (["bench", "tfopt.recipes.cnn_mnist:job", "--set", "epochs"], "NAME=VALUE"),
        (["hardware", "evil.toml"], "os:system"),
        (["hardware", "os:popen", "--set", "cmd=touch mark"], "-> tfopt.Job"),
        (["batch-size", "tfopt.recipes.cnn_mnist:job", "--chain", "function.toml"], "chain[0].map"),
        (["hardware", "tfopt.recipes.cnn_mnist:job", "--chain", "function.toml"], "--trust-func"),
        (["launch", "--data-workers", "2", "--", "true"], "no training beside it"),
        (["report", "nowhere.json"], "nowhere.json"),
        (["report", "cut.json"], "cut.json"),
    ],
)
def test_a_mistake_is_one_message(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    chain = "tfopt = 1\n[[chain]]\ntransform ="
    Path("typo.toml").write_text(f'{chain} "prune"\nsparsety = 0.5\n')
    Path("jobless.toml").write_text(f'{chain} "place"\n')
    Path("evil.toml").write_text(
        'tfopt = 1\njob = "os:system"\n[arguments]\ncommand = "touch mark"\n'
    )
    Path("function.toml").write_text(f'{chain} "pipeline"\nmap = "os:system"\n')
    Path("cut.json").write_text('{"schema": "tfopt.report/1", "title"')
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert words in shown.err
    assert not Path("mark").exists()
    with pytest.raises(UserError):
        main([arguments[0], "--debug", *arguments[1:]])


def test_python_finds_the_command_by_the_name_of_the_package(tmp_path):
    done = tfopt("report", "nowhere.json", cwd=tmp_path, module="tfopt")
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere.json")
    assert "Traceback" not in done.stderr


def test_an_unknown_command_and_flag_are_refused_with_what_was_meant(recipe, capsys):
    for arguments, words in (
        (["bensh"], "did you mean bench?"),
        (["bench", "any.toml", "--trust"], "--trust"),
        (["gate", "a.json"], "invalid choice"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert words in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(SystemExit):
        recipe("--bach_size=3")
    assert "did you mean --batch-size?" in capsys.readouterr().err


def test_the_help_of_a_recipe_lists_its_flags_and_the_links_of_its_chain(recipe, capsys):
    with pytest.raises(SystemExit):
        recipe("--help")
    shown = " ".join(capsys.readouterr().out.split())
    for flag in ("--data", "--batch-size", "--epochs", "--budget", "--chain", "--output"):
        assert flag in shown
    offered = shown.partition("of the recipe's own chain: ")[2].partition("; or all")[0]
    assert offered.split(", ") == [transform_name(part) for part in cnn_mnist.CHAIN.parts]


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("--batch-size=0", "batch-size"),
        ("--data=imagenet", "data"),
        ("--skip=prunning", "prunning"),
        ("--transforms=prune,nothing", "nothing"),
        ("--output=/proc/nowhere", "/proc/nowhere"),
    ],
)
def test_wrong_flags_of_a_recipe(recipe, tmp_path, capsys, flag, word):
    try:
        code = recipe(flag)
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert word in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


JOB = """
    import numpy as np
    from tfopt import Data, Job

    def job(epochs=1) -> Job:
        return Job(build=build, data=data, compile=lambda: {"optimizer": "adam",
                   "loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"]}, epochs=epochs)

    def build():
        import keras
        return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2, "softmax")])

    def data():
        x = np.random.default_rng(0).normal(size=(320, 6)).astype("float32")
        y = (x.sum(axis=1) > 0).astype("int64")
        return Data(train=(x, y), test=(x, y), name="toy")
"""
RECIPE = """
tfopt = 1
[[chain]]
transform = "prune"
sparsity = 0.5
[[chain]]
transform = "quantize"
mode = "dynamic"
[[chain]]
transform = "pipeline"
map = "my_package.maps:halve"
"""


@pytest.fixture
def project(tmp_path):
    """A user's project: a package, and a recipe file that names a function of it."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "maps.py").write_text(
        "def halve(x, y):\n    open('mapped', 'a').close()\n    return x / 2, y\n"
    )
    (tmp_path / "my_package" / "train.py").write_text(textwrap.dedent(JOB))
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


@pytest.mark.slow
def test_bench_measures_a_chain_on_someones_own_job(project):
    """Through the processes and back, with a function that the file names."""
    arguments = ("bench", "my_package.train:job", "--chain", "small.toml", "--set", "epochs=2")
    flags = ("--budget", "90s", "--whole", "--seeds", "2", "--output", "out", "--json")
    done = tfopt(*arguments, *flags, "--trust-functions", cwd=project)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["command"].startswith("tfopt bench my_package.train:job")
    assert (project / "mapped").exists()
    written = {path.name for path in (project / "out").iterdir()}
    assert {"bench.json", "bench.md", "bench.html", "kept"} <= written


def test_report_in_each_form(tmp_path, capsys):
    written = single().to_json()
    (tmp_path / "bench.json").write_text(written)
    for form, words in (("md", "| "), ("html", "<html"), ("terminal", "baseline")):
        # A report may be named by its folder.
        assert main(["report", str(tmp_path), "--format", form]) == 0
        assert words in capsys.readouterr().out
    assert main(["report", str(tmp_path / "bench.json"), "--json"]) == 0
    assert capsys.readouterr().out == written
    assert main(["report", str(tmp_path.parent)]) == 2
    assert "holds no report" in capsys.readouterr().err


def test_a_reader_that_stops_early_is_no_error(tmp_path):
    """As in ``tfopt report ... | head``, with a reader that is gone before anything is written."""
    (tmp_path / "bench.json").write_text(single().to_json())
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "tfopt.commands.cli", "report", "bench.json"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            cwd=tmp_path,
            check=False,
        )
    assert done.stderr == ""


def test_an_interrupt_while_modules_are_still_loading(tmp_path):
    """A real Ctrl-C: SIGINT to a real process that is inside an import."""
    # Modules of the current folder come before the installed ones of the same name.
    blocked = "import time\nopen('importing', 'w').close()\ntime.sleep(600)\n"
    (tmp_path / "rich.py").write_text(blocked)
    process = subprocess.Popen(
        [sys.executable, "-m", "tfopt.commands.cli", "report", "any.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        while not (tmp_path / "importing").exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors == "Interrupted.\n"
