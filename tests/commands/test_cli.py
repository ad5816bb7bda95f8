"""The tfopt command: one vocabulary, one error a mistake, errors in the words of the flags."""

import argparse
import re
import signal
import sys
from pathlib import Path

import pytest
from bench_reports import single

from tfopt.commands.cli import _parser, main
from tfopt.recipes import cnn_mnist
from tfopt.recipes.flags import count, duration, exit_code_of, in_flags, points
from tfopt.subprocesses import handling


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
    for name, flags in found.items():
        assert ("--job" in flags) == (name == "optimize"), name
        for flag in ("--budget", "--grace", "--listen", "--interval"):
            assert flag not in flags or flags[flag].type is duration, name
    assert [name for name, flags in found.items() if "--budget" in flags] == [
        "tune", "bench", "batch-size",
    ]  # fmt: skip
    assert [name for name, flags in found.items() if "--max-drop" in flags] == [
        "tune", "bench", "export", "optimize",
    ]  # fmt: skip


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_as_ctrl_c_does_with_its_own_exit_code(capsys, number):
    done = []

    def work():
        try:
            signal.raise_signal(number)
        finally:
            signal.raise_signal(number)  # timeout sends it twice
            done.append("cleaned up")

    before = signal.getsignal(number)
    for debug, told in (
        (False, r"Interrupted\.\n"),
        (True, r"Traceback(.|\n)*KeyboardInterrupt\n"),
    ):
        try:
            assert exit_code_of(work, debug=debug) == 128 + number
            signal.raise_signal(number)  # once more, at exit
        finally:
            signal.signal(number, before)
        assert re.fullmatch(told, capsys.readouterr().err)
    assert done == ["cleaned up"] * 2


def test_a_signal_that_is_ignored_or_has_a_handler_of_the_work_ends_no_command():
    heard = []

    def work(code=7):
        signal.raise_signal(signal.SIGTERM)
        return code

    def with_its_own_handler():
        with handling(lambda number, _: heard.append(number), signal.SIGTERM):
            return work(signal.SIGTERM)

    assert exit_code_of(with_its_own_handler, debug=False) == signal.SIGTERM
    assert heard == [signal.SIGTERM]
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        assert exit_code_of(work, debug=False) == 7
    finally:
        signal.signal(signal.SIGTERM, before)


def test_times_counts_and_points():
    assert [duration(text) for text in ("90s", "1.5m", "1h", "45")] == [90, 90, 3600, 45]
    assert (count("3"), points("0.5")) == (3, 0.5)
    for read, texts in {
        duration: ("", "5 m", "-1s", "1d", "nan"),
        count: ("-1", "2.5", "many"),
        points: ("-1", "101", "nan", "some"),
    }.items():
        for text in texts:
            with pytest.raises(argparse.ArgumentTypeError, match="is not "):
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
    optimize = parsers()["optimize"]
    assert in_flags("batch is not a count.", optimize) == "--batch-size is not a count."
    # A variable of a program is what the flag's help calls its value.
    given = "pass calibration=x_train, or examples=x_test[:64]"
    assert in_flags(given, parsers()["export"]) == "pass --calibration DATA, or --examples DATA"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bench", "typo.toml"], "typo.toml: chain[0]: sparsety"),
        (["tune", "jobless.toml"], "names no job"),
        (["hardware", "no_such_package.train:job"], "no_such_package"),
        (["bench", "tfopt.recipes.cnn_mnist:job", "--set", "epochs"], "NAME=VALUE"),
        (["hardware", "evil.toml"], "os:system"),
        (["hardware", "os:popen", "--set", "cmd=touch mark"], "-> tfopt.Job"),
        (["batch-size", "tfopt.recipes.cnn_mnist:job", "--chain", "function.toml"], "chain[0].map"),
        (["launch", "--data-workers", "2", "--", "true"], "no training beside it"),
        (["report", "nowhere.json"], "nowhere.json"),
        (["report", "cut.json"], "cut.json"),
        (["export", "no.keras"], "no.keras does not exist"),
        (["optimize", "cut.json", "--data", "a.npz"], "cut.json is not a saved Keras 3 model"),
    ],
)
def test_a_mistake_is_one_message(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    # A file that cannot be read is no reason to load TensorFlow.
    monkeypatch.setitem(sys.modules, "tfopt.export.export", None)
    monkeypatch.setitem(sys.modules, "tfopt.export.optimize", None)
    chain = "tfopt = 1\n[[chain]]\ntransform ="
    Path("typo.toml").write_text(f'{chain} "prune"\nsparsety = 0.5\n')
    Path("jobless.toml").write_text(f'{chain} "place"\n')
    Path("evil.toml").write_text(
        'tfopt = 1\njob = "os:system"\n[arguments]\ncommand = "touch mark"\n'
    )
    Path("function.toml").write_text(f'{chain} "pipeline"\nmap = "os:system"\n')
    Path("cut.json").write_text('{"schema": "tfopt.report/1", "title"')
    code = 5 if arguments[0] == "report" else 2  # as `tfopt compare` of a bad file
    assert main(arguments) == code
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert words in shown.err
    assert not Path("mark").exists()
    assert main([arguments[0], "--debug", *arguments[1:]]) == code
    assert "Traceback" in capsys.readouterr().err


def test_an_unknown_command_and_flag_are_refused_with_what_was_meant(recipe, capsys):
    for arguments, words in (
        (["bensh"], "did you mean bench?"),
        (["bench", "any.toml", "--trust"], "did you mean --trust-functions?"),
        (["gate", "a.json"], "invalid choice"),
        # A flag of one command is none of another's.
        (["export", "a.keras", "--format", "litert"], "did you mean --formats?"),
        (["doctor", "--only", "gpus"], "did you mean gpu?"),
        (["launch", "slurm", "--", "true"], "tfopt launch slurm: error: "),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2
        assert words in capsys.readouterr().err.splitlines()[-1]
    with pytest.raises(SystemExit):
        main(["doctor", "a:job", "--budget=5m"])
    assert "did you mean" not in capsys.readouterr().err
    with pytest.raises(SystemExit):
        recipe("--bach_size=3")
    assert "did you mean --batch-size?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flag", "word"),
    [
        ("--batch-size=0", "batch-size"),
        ("--data=imagenet", "data"),
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


def test_report_in_each_form(tmp_path, capsys):
    written = single().to_json()
    (tmp_path / "bench.json").write_text(written)
    for form, words in (("md", "| "), ("html", "<html"), ("terminal", "baseline")):
        # A report may be named by its folder.
        assert main(["report", str(tmp_path), "--format", form]) == 0
        assert words in capsys.readouterr().out
    assert main(["report", str(tmp_path / "bench.json"), "--json"]) == 0
    assert capsys.readouterr().out == written
    assert main(["report", str(tmp_path.parent)]) == 5
    printed = capsys.readouterr().err
    assert "does not exist" in printed
    assert str(tmp_path) in printed.partition("name one of these: ")[2]
