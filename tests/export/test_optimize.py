"""The best file of a model: found, measured in turns, kept with what it needs; the others told what they lost by."""

import contextlib
import importlib

import keras
import numpy as np
import pytest
from digits import digit_net, small_digits
from keras import layers

import tfopt
from tfopt import UserError
from tfopt.commands.cli import main
from tfopt.export.exported import ExportedFile
from tfopt.export.parity import Parity

module = importlib.import_module("tfopt.export.optimize")
latency = importlib.import_module("tfopt.export.latency")


@pytest.fixture(scope="module")
def digits():
    x, y = small_digits(1400)
    return tfopt.Data(train=(x[:1000], y[:1000]), test=(x[1000:], y[1000:]))


@pytest.fixture(scope="module")
def saved(digits, tmp_path_factory):
    keras.utils.set_random_seed(3)
    model = digit_net(layers.Flatten(), layers.Dense(32, "relu"))
    model.fit(*digits.train, epochs=3, verbose=0)
    path = tmp_path_factory.mktemp("saved") / "digits.keras"
    model.save(path)
    return path


def test_the_best_file_is_left_with_a_table_and_code(saved, digits, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(latency, "_FINAL", 0)  # each final begins a process for each file
    settings = {"formats": ["saved_model", "litert"], "precision": ["float32", "int8"]}
    best = tfopt.optimize(saved, digits, folder=tmp_path, max_drop=2, turns=5, **settings)
    shown = capsys.readouterr().out
    for line in ("writing litert_int8, ", "litert_int8: ", "measuring 3 files in turns, "):
        assert f"\n  {line}" in shown
    assert best.winner.format == "litert"
    names = {each.file.name for each in best.candidates}
    assert names == {"saved_model_float32", "litert_float32", "litert_int8"}
    assert not best.refused
    slowest = best.candidates[-1]
    assert slowest.file.format == "saved_model"
    assert best.reference == "saved_model_float32"
    certain = best.candidates[0].latency.high < 1  # not on a machine that is busy otherwise
    assert slowest.lost.startswith("slower" if certain else "no ")
    assert [each.name for each in tmp_path.iterdir()] == [best.winner.name]
    text = str(best)
    assert f"Faster than {best.reference}" in text
    names = {"x": digits.test[0][:1]}
    exec(best.code(), names)
    expected = keras.models.load_model(saved).predict(digits.test[0][:1], verbose=0)
    np.testing.assert_allclose(names["y"], expected, atol=0.1)


def test_the_command_takes_a_job_and_a_chain(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", x=np.zeros((4, 8, 8, 1), "float32"))
    chain = 'tfopt = 1\n[[chain]]\ntransform = "prune"\nsparsity = 0.5\n'
    (tmp_path / "chain.toml").write_text(chain)
    call = ["optimize", str(saved), "--data", "data.npz"]
    assert main([*call, "--chain", "chain.toml"]) == 2
    assert "--chain needs --job" in capsys.readouterr().err
    assert main([*call, "--job", "no_such_module:job"]) == 2
    assert "no_such_module" in capsys.readouterr().err


JOB = """
import numpy as np
import tfopt

def job() -> tfopt.Job:
    x, y = np.zeros((64, 8, 8, 1), "float32"), np.zeros(64, "int64")
    settings = {"optimizer": "adam", "loss": "sparse_categorical_crossentropy"}
    return tfopt.Job(build=lambda: None, data=lambda: tfopt.Data(train=(x, y)),
                     compile=lambda: dict(settings), epochs=1)
"""


@pytest.mark.slow
def test_the_command_trains_the_model_further(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job_to_go_on.py").write_text(JOB)
    np.savez("data.npz", x=np.zeros((40, 8, 8, 1), "float32"))
    call = ["optimize", str(saved), "--data", "data.npz", "--job", "job_to_go_on:job"]
    assert main([*call, "--formats", "litert", "--precision", "float32", "--max-drop", "100"]) == 0
    progress = capsys.readouterr().out
    assert "remove_channels_litert_float32: " in progress
    assert "quantize_aware_litert_float32: " in progress


@pytest.mark.slow
def test_files_are_made_of_other_models_too(saved, digits, tmp_path):
    compile = {"optimizer": "adam", "loss": "sparse_categorical_crossentropy"}

    def smaller(model):
        model = tfopt.remove_channels(model, 0.5)
        model.compile(**compile)
        model.fit(*digits.train, epochs=2, verbose=0)
        return model

    def refused(model):
        raise UserError("This cannot be trained.")

    settings = {"target": "size", "formats": ["litert"], "precision": ["int8"], "turns": 5}
    variants = {"smaller": smaller, "odd": refused}
    best = tfopt.optimize(
        saved, digits, folder=tmp_path, max_drop=10, variants=variants, verbose=0, **settings
    )
    assert best.winner.variant == "smaller"
    assert best.winner.name == "smaller_litert_int8"
    assert best.winner.kib < next(x.file.kib for x in best.candidates if not x.file.variant)
    assert best.winner.score > best.score - 0.1
    assert any(note.startswith("odd: not tried: This cannot be trained.") for note in best.notes)
    assert tfopt.load(tmp_path).file.variant == "smaller"


def test_the_command_takes_a_file_of_arrays_and_the_smallest(
    saved, digits, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    x, y = digits.test
    np.savez("data.npz", x=x, y=y)
    asked = ["--target", "size", "--max-drop", "5", "--formats", "litert"]
    asked += ["--precision", "float32,int8"]
    assert main(["optimize", str(saved), "--data", "data.npz", *asked]) == 0
    shown = capsys.readouterr().out
    assert "the size of the best" in shown
    assert "  litert_float32: " in shown
    assert "litert_mixed: four bits in single kernels" in shown
    assert "calibrated on inputs of the test data" in shown
    (left,) = (tmp_path / "digits_optimized").glob("*/model.tflite")
    assert left.parent.name in ("litert_int8", "litert_mixed")


@pytest.mark.slow
def test_kernels_get_four_bits_where_the_score_bears_it(digits, tmp_path):
    keras.utils.set_random_seed(5)
    convolved = (layers.Conv2D(filters, 3, activation="relu") for filters in (16, 32))
    model = digit_net(*convolved, layers.Flatten(), layers.Dense(64, "relu"))
    model.fit(*digits.train, epochs=3, verbose=0)
    settings = {"target": "size", "formats": ["litert"], "precision": ["int8"], "turns": 5}
    best = tfopt.optimize(model, digits, folder=tmp_path, max_drop=3, **settings)
    assert best.winner.name == "litert_mixed"
    mixed, whole = best.candidates
    assert mixed.file.kib < 0.7 * whole.file.kib
    assert mixed.drop <= 3
    assert "four bits in 2 kernels" in mixed.file.notes[0]
    (answers,) = tfopt.load(tmp_path / "litert_mixed")(digits.test[0])
    score = (answers.argmax(-1) == digits.test[1]).mean()
    assert score == pytest.approx(mixed.file.score)


def file(name, *, kib=10.0, score=None, lost=0.0):
    form, _, precision = name.partition("_")
    parity = Parity(10, 1 - lost, lost, lost, "argmax_agreement")
    return ExportedFile(form, precision, None, kib, parity, score, score and "accuracy", None)


def judged(files, times, target="cpu-latency", score=None):
    return judged_by(files, {name: [process(t)] for name, t in times.items()}, [], target, score)


def judged_by(files, turns, finalists, target="cpu-latency", score=None):
    rows = [module._tried(score, 0.5, each) for each in files]
    return module._judged(rows, latency.Measured(turns, finalists, []), target)


def process(seconds):
    return [[seconds * (1 + 0.001 * (n % 3))] for n in range(9)]


def test_the_fastest_that_keeps_to_the_drop_wins():
    files = [file("a_float32", score=0.9), file("b_int8", score=0.88), file("c_int8", score=0.899)]
    rows = judged(files, {"a_float32": 3.0, "b_int8": 1.0, "c_int8": 2.0}, score=0.9)
    assert [each.file.name for each in rows] == ["c_int8", "a_float32", "b_int8"]
    assert rows[1].lost.startswith("slower: 0.66")
    assert rows[2].lost == "loses 2.00 points of accuracy"


def test_a_loss_of_as_much_as_is_allowed_is_kept():
    files = [file("a_float32", score=0.505), file("b_int8", score=0.5)]
    rows = judged(files, {"a_float32": 3.0, "b_int8": 1.0}, score=0.505)
    assert [each.file.name for each in rows] == ["b_int8", "a_float32"]


def test_what_is_not_told_apart_or_loses_classes_is_said_so():
    files = [file("a_float32"), file("b_int8", lost=0.01)]
    rows = judged(files, {"a_float32": 3.0, "b_int8": 1.0})
    assert rows[0].file.name == "a_float32"
    assert rows[1].lost.startswith("it loses more than 0.5 points: 99.00% of the classes agree")
    files = [file("a_float32"), file("b_int8", kib=5)]
    rows = judged(files, {"a_float32": 1.0, "b_int8": 1.0001})
    assert rows[1].lost == "no difference to the best"
    turns = {"a_float32": [process(1.0)] * 2, "b_int8": [process(1.0), process(9.0)]}
    rows = judged_by(files, turns, list(turns))
    assert rows[1].lost == "no certain difference to the best"
    rows = judged(files, {"a_float32": 1.0, "b_int8": 9.0}, target="size")
    assert rows[0].file.name == "b_int8"
    assert "2.00" in rows[1].lost


def test_files_are_ordered_by_what_they_took_beside_the_reference():
    files = [file("a_float32"), file("b_int8"), file("c_int8")]
    # The machine was slower while c was measured.
    turns = {
        "a_float32": [process(2.0), process(1.0), process(1.0)],
        "b_int8": [process(1.0), process(0.5), process(0.5)],
        "c_int8": [process(1.1)],
    }
    found = judged_by(files, turns, ["b_int8"])
    assert [each.file.name for each in found] == ["b_int8", "c_int8", "a_float32"]
    assert found[1].lost.startswith("slower: 0.909")
    # The time and the ratio that a reader sees agree, and not with the 1.1 s of c's own turns.
    reference_ms = found[2].latency_ms
    assert reference_ms == pytest.approx(1001, abs=1)
    for row in found[:2]:
        assert reference_ms / row.latency_ms == pytest.approx(1 / row.latency.ratio)
    assert found[1].latency_ms == pytest.approx(551, abs=1)


@pytest.fixture
def processes(monkeypatch):
    """Stand in for the files' processes; return the names of those that were ended."""
    ended = []

    class Process(contextlib.nullcontext):
        def __init__(self, gpu):
            super().__init__(self)
            self.name = ""

        def __call__(self, function, name, folder, threads, inputs):
            self.name = name
            return [{"reference": 9.0, "slowest": 8.0}.get(name, 1.0)]

        def end(self):
            ended.append(self.name)

    monkeypatch.setattr(latency, "Child", Process)
    return ended


def timed(names, borne):
    settings = {"threads": 1, "turns": 5, "gpu": False}
    found = latency.measure_files(list(map(file, names)), set(borne), [], **settings)
    assert found.broken == []
    return {name: len(rounds) for name, rounds in found.times.items()}, set(found.finalists)


def test_the_fastest_are_measured_again_in_fresh_processes(processes):
    names = ["reference", "b", "c", "d", "e", "slowest"]
    turns, finalists = timed(names, names)
    assert finalists == {*"bcde"}
    assert turns == {**dict.fromkeys(names, 3), "slowest": 1}
    assert sorted(processes) == sorted(["reference", *"bcde"] * 2)
    assert timed(names, [])[0] == dict.fromkeys(names, 1)  # no latency decides


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"target": "latency"}, "Invalid target"),
        ({"max_drop": -1}, "not a number of points"),
        ({"max_drop": None}, "not a number of points"),
        ({"formats": ["tflite"]}, "Unknown format"),
        ({"formats": ["saved_model"], "precision": ["int8"]}, "No file can be tried"),
        ({"formats": ["tensorrt"], "target": "gpu-latency"}, r"tfopt\[tensorrt\]"),
        ({"turns": 1}, "turns is not a count"),
        ({"verbose": "loud"}, "Invalid verbose"),
        ({"variants": {"a/b": lambda model: model}}, "must be a dict of functions"),
    ],
)
def test_bad_arguments_are_refused_at_once(saved, digits, tmp_path, change, words):
    with pytest.raises(UserError, match=words):
        tfopt.optimize(saved, digits, folder=tmp_path / "out", **change)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="no test part"):
        tfopt.optimize(saved, tfopt.Data(train=digits.train), folder=tmp_path)
