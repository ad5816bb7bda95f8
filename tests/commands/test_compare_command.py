"""``tfopt compare`` as a run of continuous integration sees it."""

import json
import os
import subprocess
import sys

import pytest
from bench_reports import processes, report, single, variant

from tfopt.commands.cli import main
from tfopt.commands.compare import share
from tfopt.report.statistics import Comparison


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Reports in the current folder, by what they are against base.json."""
    monkeypatch.chdir(tmp_path)
    noisy = report(variant("baseline", processes(10.3, seed=1, spread=0.05)))
    pair = report(
        variant("base", processes(10)),
        variant("new", processes(10.5, seed=1), against_reference=Comparison(1.05, 1.04, 1.06, 5)),
        asked={"kind": "pair"},
    )
    made = {
        "base": single(),
        "same": single(10.01, seed=1),
        "slower": single(10.5, seed=1),
        "noisy": noisy,
        "other": single(10.5, seed=1, provenance={"cpu": "Intel"}),
        "pair": pair,
    }
    for name, content in made.items():
        (tmp_path / f"{name}.json").write_text(content.to_json())
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "bench.json").write_text(made["slower"].to_json())
    text = made["slower"].to_json()
    (tmp_path / "cut.json").write_text(text[:-300])
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "old.json").write_text('{"schema": "tfopt.report/1"}')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    return tmp_path


LIMIT = ("--max-slowdown", "3%")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("base.json", "same.json", *LIMIT), 0),
        (("base.json", "slower.json", *LIMIT), 1),
        (("base.json", "noisy.json", *LIMIT), 3),
        (("base.json", "folder", *LIMIT), 1),
        (("pair.json", *LIMIT), 1),
        (("pair.json", "--max-slowdown", "0.08"), 0),
    ],
)
def test_each_answer_has_its_exit_code(files, capsys, arguments, code):
    assert main(["compare", *arguments]) == code
    told = capsys.readouterr()
    assert told.err == ""
    worst = {0: "pass", 1: "regression", 3: "inconclusive"}[code]
    assert told.out.splitlines()[-1].endswith(f" % slower: {worst}")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("base.json", "other.json", *LIMIT), 4, "CPU: AMD EPYC against Intel"),
        (("base.json", "other.json"), 4, "CPU: AMD EPYC against Intel"),
        (("base.json", "cut.json", *LIMIT), 5, "cut.json is not a whole report"),
        (("base.json", "list.json", *LIMIT), 5, "list.json is not a whole report of this version"),
        (("base.json", "old.json", *LIMIT), 5, "tfopt.bench/7"),
        (("base.json", "binary.json", *LIMIT), 5, "binary.json is not a whole report"),
        (("base.json", "nowhere.json", *LIMIT), 5, "nowhere.json does not exist"),
        (("base.json", "foldr", *LIMIT), 5, "did you mean folder?"),
        (("base.json", "base.json", *LIMIT), 2, "the same measurement"),
        (("base.json", *LIMIT), 2, "nothing beside its reference"),
    ],
)
def test_each_failure_has_another_one_and_one_message(files, capsys, arguments, code, words):
    assert main(["compare", *arguments]) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert words in told.err
    assert "Traceback" not in told.err
    # Python itself would end a traceback with 1, which says "regression".
    assert main(["compare", *arguments, "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_wrong_usage_is_never_a_verdict(files, capsys):
    assert [share(text) for text in ("3%", "0.03", " 2.5 % ", "0")] == [0.03, 0.03, 0.025, 0]
    for text in ("", "-3%", "3", "three", "nan", "9" * 400 + "%"):
        with pytest.raises(SystemExit, match="2"):
            main(["compare", "base.json", "slower.json", f"--max-slowdown={text}"])
        assert "argument --max-slowdown: " in capsys.readouterr().err


def test_in_each_form_with_a_limit_and_without(files, capsys):
    forms = {(): "slower", ("--format", "md"): "| baseline |", ("--json",): '"lines"'}
    for form, words in forms.items():
        for limit, code in (((), 0), (LIMIT, 1)):
            assert main(["compare", "base.json", "slower.json", *form, *limit]) == code
            told = capsys.readouterr()
            assert words in told.out
            assert told.err == ""
    content = json.loads(told.out)
    assert content["lines"][0]["comparison"]["verdict"] == "slower"
    assert content["outcome"] == "regression"
    assert content["outcomes"] == {"baseline": "regression"}
    assert main(["compare", "pair.json"]) == 0
    assert "B: pair.json" in capsys.readouterr().out
    # Nothing in common is nothing compared.
    assert main(["compare", "base.json", "pair.json"]) == 4
    assert "no such variant" in capsys.readouterr().out


def run(**more):
    command = [sys.executable, "-m", "tfopt.commands.cli", "compare", "base.json", "slower.json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    return subprocess.run([*command, *LIMIT], text=True, timeout=120, check=False, **pipes)


def test_neither_a_defect_nor_a_reader_that_stops_early_changes_a_verdict(files):
    (files / "tensorflow.py").write_text("raise RuntimeError('TensorFlow was loaded')\n")
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as stdout:
        done = run(stdout=stdout)
    assert (done.returncode, done.stderr) == (1, "")
    (files / "scipy").mkdir()
    (files / "scipy" / "__init__.py").write_text("raise RuntimeError('a broken installation')\n")
    done = run()
    assert done.returncode == 70
    assert "a broken installation" in done.stderr
