"""Compare the help of each flag with the committed ``command_help.txt``.

``public_names.txt`` holds the flags and their defaults; this file holds what their help says and
the choices they allow. After a change that is meant, ``python tests/guards/test_command_help.py``
writes the file anew.
"""

import argparse
import difflib
import re
import tempfile
from pathlib import Path

FILE = Path(__file__).with_name("command_help.txt")
COMMAND = "python tests/guards/test_command_help.py"


def text():
    """Return a line for each flag of each command."""
    from tfopt.commands.cli import _parser

    return "".join(f"{line}\n" for line in lines(_parser(), "tfopt"))


def lines(parser, command):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from lines(below, f"{command} {name}")
        elif action.dest != "help" and argparse.SUPPRESS not in (action.help, action.dest):
            named = " ".join(action.option_strings) or action.dest
            chosen = f" {{{','.join(map(str, action.choices))}}}" if action.choices else ""
            yield f"{command} {named}{chosen}: {same_everywhere(action.help or '-')}"


def same_everywhere(told):
    """Return a help without the machine's temporary folder and without paths of modules."""
    told = told.replace(tempfile.gettempdir(), "TEMPORARY")
    return re.sub(r"\btfopt(\.\w+)+", "tfopt.MODULE", told)


def test_it_is_the_one_committed():
    committed, found = FILE.read_text(encoding="utf-8"), text()
    changes = difflib.unified_diff(
        committed.splitlines(), found.splitlines(), "committed", "found", lineterm="", n=0
    )
    assert found == committed, "\n".join([*changes, f"If the change is meant: {COMMAND}"])


def test_the_help_of_commands_below_commands_is_listed():
    parser = argparse.ArgumentParser()
    below = parser.add_subparsers().add_parser("run")
    below.add_argument("--set", choices=["a", "b"], help=f"in {tempfile.gettempdir()}")
    below.add_argument("--secret", help=argparse.SUPPRESS)
    below.add_argument("file", help="as tfopt.report.view does")
    assert list(lines(parser, "x")) == [
        "x run --set {a,b}: in TEMPORARY",
        "x run file: as tfopt.MODULE does",
    ]


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
