"""The tfopt command: help without TensorFlow, one error a mistake, run and report for real."""

import subprocess
import sys
import textwrap

import pytest

HEAVY = "tensorflow|keras"


def tfopt(*arguments, cwd=None, module="tfopt.cli"):
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=cwd,
        check=False,
    )


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("tfopt.cli", ["--help"]),
        ("tfopt.cli", ["run", "--help"]),
        ("tfopt.cli", ["report", "--help"]),
        ("tfopt.cli", ["--version"]),
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
        (["run", "typo.toml"], "typo.toml:4"),
        (["run", "jobless.toml"], "names no job"),
        (["run", "jobless.toml", "--job", "no_such_package.train:job"], "no_such_package"),
        (
            ["run", "jobless.toml", "--job", "tfopt.recipes.cnn_mnist:job", "--set", "epochs"],
            "NAME=VALUE",
        ),
        (["report", "nowhere.json"], "nowhere.json"),
        (["report", "cut.json"], "cut.json"),
    ],
)
def test_a_mistake_is_one_message_without_a_traceback(tmp_path, arguments, words):
    (tmp_path / "typo.toml").write_text(
        'tfopt = 1\n[[chain]]\ntransform = "prune"\nsparsety = 0.5\n'
    )
    (tmp_path / "jobless.toml").write_text('tfopt = 1\n[[chain]]\ntransform = "place"\n')
    (tmp_path / "cut.json").write_text('{"schema": "tfopt.report/1", "title"')
    done = tfopt(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(tmp_path):
    done = tfopt("run", "nowhere.toml", "--debug", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" in done.stderr


def test_an_unknown_command_and_flag_are_refused(tmp_path):
    assert tfopt("dance", cwd=tmp_path).returncode == 2
    done = tfopt("--bach_size=3", cwd=tmp_path, module="tfopt.recipes.cnn_mnist")
    assert done.returncode != 0
    assert "batch_size" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--batch_size=0"], "batch_size"),
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

    def job(epochs=1):
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


def test_run_once_trains_under_the_whole_chain(project):
    done = tfopt(
        "run",
        "small.toml",
        "--job",
        "my_package.train:job",
        "--once",
        "--output",
        "here",
        cwd=project,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (project / "here").iterdir()} == {
        "model.keras",
        "model_dynamic.tflite",
    }
    assert "Prune:" in done.stdout
