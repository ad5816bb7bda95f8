"""``tfopt doctor`` as a person runs it, and as a script reads it."""

import json

import pytest
from rich.console import Console

import tfopt
from tfopt.commands.cli import main
from tfopt.doctor.check import VERDICTS, Check
from tfopt.doctor.examine import as_terminal, exit_code

SOME = (
    Check("host", "cores", "ok", "[bold]2[/bold] cores", ("by affinity",)),
    Check("disk", "read rate", "warning", "slow", ("40 MiB/s",), "a faster one"),
    Check("versions", "driver", "failure", "too old", (), "a newer one"),
    Check("compute", "GPU computation", "not here", "no GPU"),
    Check("gpu", "GPU memory", "not here", "no GPU"),
)


def shown(checks):
    console = Console(width=80, color_system=None)
    with console.capture() as text:
        console.print(as_terminal(checks))
    return text.get()


def test_what_needs_attention_comes_first_with_its_fix():
    lines = shown(SOME).splitlines()
    assert lines[0] == "1 failure, 1 warning, 1 ok, 2 not here"
    assert lines[2] == "FAILURE  versions: driver"
    assert lines[4].strip() == "fix: a newer one"
    text = shown(SOME)
    assert text.index("WARNING  disk") < text.index("\nok") < text.index("\nnot here")
    assert "[bold]2[/bold] cores" in text, "what was found is no markup"
    assert "by affinity" not in text


def test_json_of_this_machine_is_nothing_but_json(capsys):
    code = main(["doctor", "--json", "--only", "host", "--only", "gpu"])
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert code == exit_code([Check(**each) for each in document["checks"]])
    assert {each["theme"] for each in document["checks"]} == {"host", "gpu"}
    assert all(each["verdict"] in VERDICTS for each in document["checks"])
    assert all(each["fix"] for each in document["checks"] if each["verdict"] == "failure")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "a=1"], "--set and --chain need a JOB"),
        (["--only", "job"], "need a job"),
        (["train:py:job"], "The reference is malformed"),
        (["toy_jobs:job", "--chain", "no.toml"], "The recipe file no.toml does not exist"),
        (["--listen", "2h"], "Invalid `--listen`"),
    ],
)
def test_mistakes_are_refused_before_anything_is_looked_at(arguments, words, capsys):
    assert main(["doctor", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_an_unknown_theme_and_a_job_that_is_no_name():
    with pytest.raises(tfopt.UserError, match="Invalid theme"):
        tfopt.doctor(only=["weather"])
    with pytest.raises(tfopt.UserError, match="takes the name of a job"):
        tfopt.doctor(tfopt.Job)
