"""What variants would serve: files left by their processes, compared in one more."""

import json
from types import SimpleNamespace
from unittest.mock import MagicMock

import keras
import pytest
import tensorflow as tf
from keras import layers

import tfopt
from tfopt import Prune, Quantize, UserError, chain
from tfopt.job.parts import Artefact
from tfopt.measure.blocks import Span
from tfopt.measure.experiment import Experiment, carry_out
from tfopt.measure.process import run_worker
from tfopt.measure.rounds import Budget
from tfopt.measure.serving import ServingFile, trained_file
from tfopt.measure.targets import Target
from tfopt.measure.tasks import ServingInTurns, Training, leave_serving_file
from tfopt.report.serving_view import serving_view


def net(width=64, **settings):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(width, **settings), layers.Dense(3, **settings)]
    )


@pytest.fixture(scope="module")
def file():
    return trained_file("", net(), ())


@pytest.fixture(scope="module")
def made():
    """What a transform made of the model."""
    return Artefact("m.tflite", tfopt.quantize(net(), mode="dynamic").content)


def leave(folder, model, *artefacts):
    leave_serving_file(SimpleNamespace(model=model, artefacts=artefacts), folder)


def compared(folder, *names):
    """Compare the files that were left under these names, through JSON as from a worker."""
    task = ServingInTurns({name: str(folder / name) for name in names})
    return task.read(json.loads(json.dumps(task.carry_out(None, None, None).value)))


@pytest.mark.slow
def test_smaller_models_end_with_what_they_serve(in_toy_folder, workers_in_process):
    links = chain(Prune(0.8), Quantize())
    span = Span(windows=2, window_ms=5.0, warm_up_s=0.0)
    settings = {"studies": 0, "seeds": 2, "whole": True}
    target = Target("toy", "toy_jobs:job", links)
    experiment = Experiment("toy", "", "prefixes", (target,), span, Budget(2, 2), **settings)
    report = carry_out(experiment, in_toy_folder, MagicMock())
    rows = {row.name: row for row in report.serving.rows}
    assert list(rows)[:3] == ["baseline", "+ Prune", "+ Quantize"]
    assert report.serving.missing == ()
    assert {row.parameters for row in rows.values()} == {6 * 4 + 4 + 4 * 2 + 2}
    assert rows["+ Prune"].zeros >= 0.75 * (6 * 4)
    assert rows["+ Prune"].latency.rounds == 40
    made = report.variant("+ Quantize").trainings[0]
    assert rows["+ Quantize"].kib == pytest.approx(made.artefact_kib, abs=0.05)
    assert rows["+ Quantize"].gflop_per_example == rows["baseline"].gflop_per_example


@pytest.mark.slow
def test_a_process_that_dies_over_its_file_has_been_measured(in_toy_folder, tmp_path):
    done = run_worker(
        Training(None, str(tmp_path / "f")), job="toy_jobs:dies_over_its_file", arguments={}
    )
    assert done.status == "measured", done.reason
    assert done.value.test_accuracy is not None
    with pytest.raises(UserError, match="f: the process ended while its file was made"):
        compared(tmp_path, "f")


@pytest.mark.slow
def test_what_was_left_is_read_back(tmp_path):
    model = net()
    tfopt.strip(tfopt.prune(model, 0.9))
    pruned = trained_file("pruned", model, ())
    pruned.write(tmp_path / "f")
    assert ServingFile.read("pruned", tmp_path / "f") == pruned
    assert pruned.sparse_kib is not None
    assert pruned.zeros > 500


def test_the_last_litert_file_is_what_serves(made):
    model = net()
    artefacts = [Artefact("a.tflite", b"earlier"), made, Artefact("c.keras", b"x")]
    found = trained_file("m", model, artefacts)
    assert found.content == made.content
    assert found.parameters == model.count_params()
    assert found.gflop > 0


class Python(layers.Layer):
    """Runs in this process, which no file can hold."""

    def call(self, x):
        return tf.ensure_shape(tf.py_function(lambda y: 2 * y, [x], tf.float32), (None, 6))


def test_a_row_without_a_usable_file_has_its_reason_and_the_others_are_compared(tmp_path, file):
    damaged = {
        "cut facts": ("facts.json", b'{"notes": ['),
        "no facts": ("facts.json", b"{}"),
        "junk": ("model.tflite", b"junk" * 100),
    }
    for name in ("plain", "small", *damaged):
        file.write(tmp_path / name)
    for name, (part, content) in damaged.items():
        (tmp_path / name / part).write_bytes(content)
    leave(tmp_path / "odd", keras.Sequential([keras.Input((6,)), Python(), layers.Dense(3)]))
    found = compared(tmp_path, "plain", *damaged, "odd", "never", "small")
    assert [row.name for row in found.rows] == ["plain", "small"]
    assert found.rows[1].latency is not None
    assert [text.split(":")[0] for text in found.missing] == [*damaged, "odd", "never"]
    for name, text in zip(damaged, found.missing, strict=False):
        assert text.startswith(f"{name}: its file cannot be used: ")
    assert "never: the process ended while its file was made" in found.missing
    with pytest.raises(UserError, match="No row has a file"):
        compared(tmp_path, "odd")


def test_without_the_first_rows_file_there_are_no_ratios(tmp_path, file):
    for name in ("+ Prune", "+ Quantize"):
        file.write(tmp_path / name)
    found = compared(tmp_path, "baseline", "+ Prune", "+ Quantize")
    assert not found.compared
    assert [row.latency for row in found.rows] == [None, None]
    assert all(row.latency_ms > 0 for row in found.rows)
    assert "nothing is told against baseline, which has no file" in found.missing
    assert [line.split()[-1] for line in str(found).splitlines()[1:3]] == ["-", "-"]
    for row in serving_view(found, None).rows:
        assert [cell.detail for cell in row.cells[2:]] == [""] * 4


def test_a_row_that_has_no_place_for_its_file_loses_nothing_else(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    leave(tmp_path / "file" / "row", net())
    assert "Not a directory" in capsys.readouterr().err
    assert not (tmp_path / "file" / "row").exists()
