"""Compare the public names and the command line with the committed ``public_names.txt``.

A change of a name, a signature, a summary, a flag or its help shows as a diff in review. After a change that
is meant, ``python tests/guards/test_public_names.py`` writes the file anew.
"""

import argparse
import difflib
import inspect
import re
import tempfile
from importlib import import_module
from pathlib import Path

FILE = Path(__file__).with_name("public_names.txt")
ROOMS = ("tfopt", "tfopt.compress", "tfopt.data", "tfopt.job", "tfopt.report", "tfopt.train")


def entry(name, value):
    """Return the lines of one name: its kind, signature, summary, and a class's own members."""
    if not callable(value):
        return [f"{name}: {type(value).__name__}"]
    kind = "class" if inspect.isclass(value) else "def"
    summary = (inspect.getdoc(value) or "").split("\n")[0]
    lines = [f"{kind} {name}{signature(value)}", f"    {summary}"]
    if kind == "class":
        for member, found in sorted(vars(value).items()):
            if member.startswith("_"):
                continue
            found = getattr(found, "__func__", found)
            if inspect.isfunction(found):
                lines.append(f"    .{member}{signature(found)}")
            elif isinstance(found, property):
                lines.append(f"    .{member}")
    return lines


def signature(value):
    """Return a signature without annotations, whose spelling depends on the Python version."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return "(...)"
    plain = [each.replace(annotation=each.empty) for each in found.parameters.values()]
    spelled = str(found.replace(parameters=plain, return_annotation=found.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", spelled)


def commands():
    """Yield each flag of each command with its default, its choices and its help."""
    from tfopt.commands.cli import _parser

    parser = _parser()
    (subparsers,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    for name, command in subparsers.choices.items():
        yield f"tfopt {name}"
        yield from flags(command, "    ")


def flags(parser, indent):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield f"{indent}{name}"
                yield from flags(below, indent + "    ")
        elif action.help != argparse.SUPPRESS and action.dest != "help":
            spelled = " ".join(action.option_strings) or action.dest
            default = "" if action.default in (None, False) else f" = {action.default!r}"
            chosen = f" {{{','.join(map(str, action.choices))}}}" if action.choices else ""
            yield f"{indent}{spelled}{default}{chosen}: {same_everywhere(action.help or '-')}"


def same_everywhere(text):
    """Return a help text without the machine's temporary folder and the paths of modules."""
    text = text.replace(tempfile.gettempdir(), "TEMPORARY")
    return re.sub(r"\btfopt(\.\w+)+", "tfopt.MODULE", text)


def text():
    lines = []
    for room in ROOMS:
        module = import_module(room)
        lines.append(f"# {room}")
        for name in sorted(module.__all__):
            value = getattr(module, name)
            lines += [f"{name}: module"] if inspect.ismodule(value) else entry(name, value)
        lines.append("")
    return "\n".join([*lines, "# command line", *commands()]) + "\n"


def test_they_are_those_committed():
    expected, found = FILE.read_text(encoding="utf-8"), text()
    changes = difflib.unified_diff(
        expected.splitlines(), found.splitlines(), "committed", "found", lineterm=""
    )
    fix = "If the change is meant: python tests/guards/test_public_names.py"
    assert found == expected, "\n".join([*changes, fix])


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
