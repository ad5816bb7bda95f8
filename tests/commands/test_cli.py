"""The tfopt command: help without TensorFlow, one error a mistake, run and report for real."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tfopt.commands.cli import main
from tfopt.job.roster import transform_name
from tfopt.recipes import cnn_mnist

HEAVY = "tensorflow|keras"


def tfopt(*arguments, cwd=None, module="tfopt.commands.cli", encoding="utf-8"):
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        encoding=encoding,
        env={**os.environ, "PYTHONIOENCODING": encoding},
        timeout=280,
        cwd=cwd,
        check=False,
    )


def test_the_help_of_a_recipe_lists_its_flags():
    told = tfopt("--help", module="tfopt.recipes.cnn_mnist").stdout
    for flag in ("--data", "--batch-size", "--epochs", "--steps", "--skip", "--output"):
        assert flag in told


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("tfopt.commands.cli", ["--help"]),
        ("tfopt.commands.cli", ["run", "--help"]),
        ("tfopt.commands.cli", ["report", "--help"]),
        ("tfopt.commands.cli", ["--version"]),
        ("tfopt", ["--version"]),
        ("tfopt.recipes.cnn_mnist", ["--help"]),
    ],
)
def test_help_answers_without_tensorflow(module, arguments):
    traced = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert traced.stdout.strip()
    imported = {
        line.rpartition("|")[2].strip().split(".")[0]
        for line in traced.stderr.splitlines()
        if "|" in line
    }
    assert "argparse" in imported or "absl" in imported
    assert not imported & {"tensorflow", "keras", "tensorflow_datasets", "pynvml"}


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
def test_a_mistake_is_one_message_without_a_traceback(tmp_path, arguments, words):
    (tmp_path / "typo.toml").write_text(
        'tfopt = 1\n[[chain]]\ntransform = "prune"\nsparsety = 0.5\n'
    )
    (tmp_path / "jobless.toml").write_text('tfopt = 1\n[[chain]]\ntransform = "place"\n')
    (tmp_path / "evil.toml").write_text(
        'tfopt = 1\njob = "os:system"\n[arguments]\ncommand = "touch mark"\n'
    )
    (tmp_path / "function.toml").write_text(
        'tfopt = 1\n[[chain]]\ntransform = "pipeline"\nmap = "os:system"\n'
    )
    (tmp_path / "cut.json").write_text('{"schema": "tfopt.report/1", "title"')
    done = tfopt(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "mark").exists()


def test_debug_shows_the_traceback(tmp_path):
    done = tfopt("run", "nowhere.toml", "--debug", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_python_finds_the_command_by_the_name_of_the_package(tmp_path):
    done = tfopt("report", "nowhere.json", cwd=tmp_path, module="tfopt")
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        tfopt("report", "nowhere.json", cwd=tmp_path).stderr.splitlines()[0],
    )


def test_an_unknown_command_and_flag_are_refused(tmp_path):
    done = tfopt("bensh", cwd=tmp_path)
    assert (done.returncode, done.stderr.rstrip()[-19:]) == (2, "did you mean bench?")
    assert "--trust" in tfopt("run", "any.toml", "--trust", cwd=tmp_path).stderr.splitlines()[-1]
    done = tfopt("--bach_size=3", cwd=tmp_path, module="tfopt.recipes.cnn_mnist")
    assert done.returncode != 0
    assert "did you mean --batch-size?" in done.stderr


def test_the_help_of_a_recipe_offers_the_links_of_its_own_chain(tmp_path):
    done = tfopt("--help", cwd=tmp_path, module="tfopt.recipes.cnn_mnist")
    told = " ".join(done.stdout.split())
    offered = told.partition("which to apply, of: ")[2].partition(" (default")[0]
    names = [transform_name(part) for part in cnn_mnist.CHAIN.parts]
    assert offered.split(", ") == names


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--batch-size=0"], "batch-size"),
        (["--data=imagenet"], "data"),
        (["--skip=prunning"], "prunning"),
        (["--transforms=prune,nothing"], "nothing"),
        (["--output=/proc/nowhere"], "/proc/nowhere"),
    ],
)
def test_wrong_flags_of_a_recipe(tmp_path, flags, words):
    done = tfopt(*flags, cwd=tmp_path, module="tfopt.recipes.cnn_mnist")
    assert done.returncode not in (0, 130)
    assert words in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
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
"""


@pytest.fixture
def project(tmp_path):
    """Someone's own project, with a package and a recipe file."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "train.py").write_text(textwrap.dedent(JOB))
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


@pytest.mark.slow
def test_run_measures_a_chain_on_someones_own_job(project):
    done = tfopt(
        "run", "small.toml", "--job", "my_package.train:job", "--set", "epochs=2", cwd=project
    )
    assert done.returncode == 0, done.stderr
    written = {path.name for path in (project / "small_report").iterdir()}
    assert {"report.json", "report.md", "report.html", "model.keras"} <= written
    assert "kept chain" in done.stdout
    assert "tfopt run small.toml" in (project / "small_report" / "report.md").read_text()

    for form, words in (("md", "| "), ("html", "<html"), ("terminal", "baseline")):
        shown = tfopt("report", "small_report/report.json", "--format", form, cwd=project)
        assert shown.returncode == 0, shown.stderr
        assert words in shown.stdout
    assert_a_reader_that_stops_early_is_no_error(project)


def assert_a_reader_that_stops_early_is_no_error(project):
    """As in ``tfopt report ... | head``, with a reader that is gone before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-m", "tfopt.commands.cli", "report", "small_report/report.json"],
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            cwd=project,
            check=False,
        )
    assert done.stderr == ""


def test_a_function_in_the_file_runs_where_it_is_trusted(project):
    """Through the worker's process and back: the baseline and the row with the function."""
    (project / "my_package" / "maps.py").write_text(
        "def halve(x, y):\n    open('mapped', 'a').close()\n    return x / 2, y\n"
    )
    (project / "mapped.toml").write_text(
        'tfopt = 1\njob = "my_package.train:job"\n'
        '[[chain]]\ntransform = "pipeline"\nmap = "my_package.maps:halve"\n'
    )
    assert tfopt("run", "mapped.toml", cwd=project).returncode == 2
    assert not (project / "mapped").exists()
    output = "mapped_\N{GREEK SMALL LETTER BETA}"
    done = tfopt(
        *("run", "mapped.toml", "--trust-functions", "--output", output),
        cwd=project,
        encoding="ascii",
    )
    assert done.returncode == 0, done.stderr
    assert (project / "mapped").exists()
    assert "mapped_?" in done.stdout


def test_run_once_trains_under_the_whole_chain(project):
    done = tfopt(
        "run",
        "small.toml",
        "--job",
        "my_package.train:job",
        "--once",
        "--output",
        "h\N{LATIN SMALL LETTER E WITH ACUTE}re",
        cwd=project,
        encoding="ascii",
    )
    assert done.returncode == 0, done.stderr
    assert {
        path.name for path in (project / "h\N{LATIN SMALL LETTER E WITH ACUTE}re").iterdir()
    } == {
        "model.keras",
        "model_dynamic.tflite",
        ".tfopt.lock",
    }
    assert "Prune:" in done.stdout
    assert "h?re/model.keras" in done.stdout


def start(*arguments, cwd):
    return subprocess.Popen(
        [sys.executable, "-m", "tfopt.commands.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )


@pytest.mark.parametrize(
    ("blocked", "arguments"),
    [
        # Modules of the current folder come before the installed ones of the same name.
        ("tomllib", ["run", "any.toml"]),
        ("rich", ["run", "any.toml"]),
        ("rich", ["report", "any.json"]),
        ("my_job", ["run", "any.toml", "--once"]),
    ],
)
def test_an_interrupt_while_modules_are_still_loading(tmp_path, blocked, arguments):
    """A real Ctrl-C: SIGINT to a real process that is inside an import."""
    (tmp_path / f"{blocked}.py").write_text(
        "import time\nopen('importing', 'w').close()\ntime.sleep(600)\n"
    )
    (tmp_path / "any.toml").write_text('tfopt = 1\njob = "my_job:job"\n')
    process = start(*arguments, cwd=tmp_path)
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
    (tmp_path / "report.json").write_bytes((written / "run.json").read_bytes())
    assert main(["report", str(tmp_path), "--format", "md"]) == 0
    assert "Prune" in capsys.readouterr().out
    (tmp_path / "bench.json").write_bytes((written / "bench.json").read_bytes())
    assert main(["report", str(tmp_path)]) == 2
    assert "holds both" in capsys.readouterr().err
