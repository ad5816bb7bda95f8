"""The tfopt command: one error a mistake, run and report for real."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tfopt.commands.cli import main
from tfopt.errors import UserError
from tfopt.job.roster import transform_name
from tfopt.recipes import cnn_mnist
from tfopt.recipes.recipe_main import recipe_main


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
    monkeypatch.chdir(tmp_path)

    def run(*flags):
        monkeypatch.setattr(sys, "argv", ["cnn_mnist", *flags])
        return recipe_main("tfopt.recipes.cnn_mnist:job", cnn_mnist.CHAIN, title="cnn_mnist")

    return run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nowhere.toml"], "nowhere.toml"),
        (["run", "typo.toml"], "typo.toml: chain[0].sparsety"),
        (["run", "jobless.toml"], "names no job"),
        (["run", "jobless.toml", "--job", "no_such_package.train:job"], "no_such_package"),
        (
            ["run", "jobless.toml", "--job", "tfopt.recipes.cnn_mnist:job", "--set", "epochs"],
            "NAME=VALUE",
        ),
        (["run", "evil.toml"], "os:system"),
        (["run", "evil.toml", "--once"], "os:system"),
        (["run", "jobless.toml", "--job", "os:popen", "--set", "cmd=touch mark"], "-> tfopt.Job"),
        (
            ["run", "function.toml", "--job", "tfopt.recipes.cnn_mnist:job"],
            "function.toml: chain[0].map",
        ),
        (["run", "function.toml", "--once"], "--trust-functions"),
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
        main([*arguments, "--debug"])


def test_python_finds_the_command_by_the_name_of_the_package(tmp_path):
    done = tfopt("report", "nowhere.json", cwd=tmp_path, module="tfopt")
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere.json")
    assert "Traceback" not in done.stderr


def test_an_unknown_command_and_flag_are_refused_with_what_was_meant(recipe, capsys):
    for arguments, words in (
        (["bensh"], "did you mean bench?"),
        (["run", "any.toml", "--trust"], "--trust"),
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
    for flag in ("--data", "--batch-size", "--epochs", "--steps", "--tune", "--chain", "--output"):
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
def test_run_measures_a_chain_on_someones_own_job(project):
    """Through the workers' processes and back, with a function that the file names."""
    arguments = ("run", "small.toml", "--job", "my_package.train:job", "--set", "epochs=2")
    done = tfopt(*arguments, "--trust-functions", cwd=project)
    assert done.returncode == 0, done.stderr
    assert (project / "mapped").exists()
    written = {path.name for path in (project / "small_report").iterdir()}
    assert {"bench.json", "bench.md", "bench.html", "model.keras"} <= written
    assert "tfopt run small.toml" in (project / "small_report" / "bench.md").read_text()

    for form, words in (("md", "| "), ("html", "<html"), ("terminal", "baseline")):
        shown = tfopt("report", "small_report/bench.json", "--format", form, cwd=project)
        assert shown.returncode == 0, shown.stderr
        assert words in shown.stdout
    assert_a_reader_that_stops_early_is_no_error(project)


def assert_a_reader_that_stops_early_is_no_error(project):
    """As in ``tfopt report ... | head``, with a reader that is gone before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "tfopt.commands.cli", "report", "small_report/bench.json"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            cwd=project,
            check=False,
        )
    assert done.stderr == ""


def test_run_once_trains_under_the_whole_chain(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(project)
    arguments = ("run", "small.toml", "--job", "my_package.train:job", "--once", "--output", "here")
    assert main([*arguments, "--trust-functions"]) == 0
    assert (project / "mapped").exists()
    written = {path.name for path in (project / "here").iterdir()}
    assert written == {"model.keras", "model_dynamic.tflite", ".tfopt.lock"}
    shown = capsys.readouterr().out
    assert "Prune:" in shown
    assert "here/model.keras" in shown


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


def test_a_report_may_be_named_by_its_folder(tmp_path, capsys):
    written = Path(__file__).parents[1] / "guards" / "reports"
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no report" in capsys.readouterr().err
    (tmp_path / "bench.json").write_bytes((written / "whole.json").read_bytes())
    assert main(["report", str(tmp_path), "--format", "md"]) == 0
    assert "Prune" in capsys.readouterr().out
