"""What the site makes from the code: the command line, names of recipe files, fields of reports.

A page asks for a part by a comment, ``<!-- made: commands -->``, which is filled in when the page
is read. Examples in docstrings, which are indented blocks, become code blocks.
"""

import argparse
import ast
import dataclasses
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Literal, get_args, get_origin

SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Example):+$")


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx, which calls this."""
    app.connect("source-read", fill)
    app.connect("autodoc-before-process-signature", import_types)
    # Before autodoc puts the types into the list of parameters.
    app.connect("object-description-transform", shorten_types, priority=400)
    # Before napoleon, which reads the sections.
    app.connect("autodoc-process-docstring", add_inherited, priority=90)
    app.connect("autodoc-process-docstring", mark_code, priority=100)
    return {"parallel_read_safe": True}


def fill(_app: Any, name: str, source: list[str]) -> None:
    """Put each part that a page asks for into its place; link the functions of the start page."""
    parts = {"commands": commands, "transforms": transforms, "schema": schema}
    source[0] = re.sub(
        r"<!-- made: (\w+) -->", lambda found: "\n".join(parts[found[1]]()), source[0]
    )
    if name == "docs/index":
        source[0] = re.sub(r"(?<=[|,] )(`tfopt\.\w+`)(?=,| \|)", r"{py:obj}\1", source[0])


def import_types(_app: Any, function: Any, _bound: bool) -> None:
    """Import what a module imports for annotations alone, so that these can be read."""
    names = getattr(function, "__globals__", {})
    if not names.get("__name__", "").startswith("tfopt"):
        return
    for node in ast.parse(inspect.getsource(sys.modules[names["__name__"]])).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(ast.unparse(node.body), names)


def shorten_types(app: Any, *_: Any) -> None:
    """Write the types of parameters by their last names; leave out Any, which says nothing."""
    for annotations in app.env.current_document.autodoc_annotations.values():
        for name, kind in [*annotations.items()]:
            annotations[name] = re.sub(r"~(?!tfopt)(?:\w+\.)+", "", kind)
            if kind in ("Any", "~typing.Any", "None"):
                del annotations[name]


def add_inherited(_app: Any, _what: str, _name: str, value: Any, _options: Any, lines: Any) -> None:
    """Add the fields of a dataclass that its base describes."""
    if not dataclasses.is_dataclass(value):
        return
    described = _meanings("\n".join(lines))
    bases = [_meanings(inspect.getdoc(base) or "") for base in value.__mro__[1:]]
    for field in dataclasses.fields(value):
        meaning = next((base[field.name] for base in bases if field.name in base), None)
        if field.init and meaning and field.name not in described:
            if not any(line.startswith("Attributes:") for line in lines):
                lines += ["", "Attributes:"]
            at = next(i for i, line in enumerate(lines) if line.startswith("Attributes:")) + 1
            while at < len(lines) and lines[at].startswith("    "):
                at += 1
            lines.insert(at, f"    {field.name}: {meaning}")


def mark_code(*arguments: Any) -> None:
    """Turn the indented blocks of a docstring into code blocks, but for those of its sections."""
    lines = arguments[-1]
    lines[:] = [*_with_code(lines)]


def _with_code(lines: list[str]) -> Iterator[str]:
    section, block = "", False
    for number, line in enumerate(lines):
        indented = line.startswith(" ")
        if line and not indented:
            found = SECTION.match(line)
            section, block = found[1] if found else "", False
            if section == "Example":
                yield from ("", ".. rubric:: Example", "")
                continue
            if section == "Attributes":  # those that the class is made with
                line = "Args:"
        listed = section not in ("", "Example")
        if indented and not block and not listed and not lines[number - 1].endswith("::"):
            block = True
            language = "pycon" if line.lstrip().startswith(">>>") else "python"
            yield from ("", f".. code-block:: {language}", "")
        yield line


def commands() -> Iterator[str]:
    """Yield a section for each command, from its parser."""
    from tfopt.commands.cli import _parser

    for name, command in _subcommands(_parser()):
        yield from _command(f"tfopt {name}", command, "##")


def _subcommands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, Any]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _command(name: str, parser: argparse.ArgumentParser, heading: str) -> Iterator[str]:
    usage = textwrap.dedent(" " * len("usage: ") + parser.format_usage()[len("usage: ") :])
    yield from (f"{heading} {name}", "", "```text", usage.rstrip(), "```", "")
    yield from (_flags_as_code(parser.description or ""), "", "| argument | |", "|---|---|")
    for action in parser._actions:
        hidden = action.help == argparse.SUPPRESS or action.dest == "help"
        if hidden or isinstance(action, argparse._SubParsersAction):
            continue
        yield f"| {_spelled(action)} | {_flags_as_code(_cell(_help(parser, action)))} |"
    if parser.epilog:
        yield from ("", "```text", parser.epilog.strip(), "```")
    yield ""
    for below, subparser in _subcommands(parser):
        yield from _command(f"{name} {below}", subparser, heading + "#")


def _spelled(action: argparse.Action) -> str:
    """Return how an argument is typed: its names, and what follows them."""
    value = action.metavar or action.dest.upper()
    words = [", ".join(action.option_strings)] if action.option_strings else []
    if action.nargs != 0:
        words += [value] if isinstance(value, str) else value
    return "`" + " ".join(words).replace("|", "\\|") + "`"


def _flags_as_code(text: str) -> str:
    return re.sub(r"(?<![`\w-])(--\w[\w-]*)(?![\w`])", r"`\1`", text)


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    told = parser._get_formatter()._expand_help(action) if action.help else ""
    if action.choices:
        told = ": ".join(filter(None, [told, ", ".join(f"`{each}`" for each in action.choices)]))
    return told


def transforms() -> Iterator[str]:
    """Yield a table of the names that a recipe file may hold, with their settings."""
    from tfopt.job.roster import ROSTER

    yield from ("| `transform =` | in Python | settings, with their defaults |", "|---|---|---|")
    for name, home in ROSTER.items():
        module, _, attribute = home.partition(":")
        fields = dataclasses.fields(getattr(import_module(module), attribute))
        settings = ", ".join(f"`{_setting(field)}`" for field in fields if field.init)
        yield f"| `{name}` | `{attribute}` | {settings} |"


def _setting(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING:
        return field.name
    return f"{field.name}={field.default!r}"


def schema() -> Iterator[str]:
    """Yield a section for each class that a report is made of, the outermost first."""
    from tfopt.report.bench_report import BenchReport

    waiting: list[type] = [BenchReport]
    for kind in waiting:
        told = inspect.getdoc(kind) or ""
        head = re.split(r"^(?:Example|Attributes):", told, flags=re.MULTILINE)[0].replace("``", "`")
        yield from (
            f"## {kind.__name__}",
            "",
            head.strip(),
            "",
            "| field | type | |",
            "|---|---|---|",
        )
        meanings = _meanings(told)
        for field in dataclasses.fields(kind):
            meaning = meanings.get(field.name, "")
            for name in re.findall(r"\w+", str(field.type)):
                if get_origin(found := _named(kind, name)) is Literal:
                    meaning += f" {name}: {', '.join(map(repr, get_args(found)))}."
            yield f"| `{field.name}` | `{_cell(str(field.type))}` | {_cell(meaning)} |"
            for name in re.findall(r"[A-Z]\w+", str(field.type)):
                found = _named(kind, name)
                if dataclasses.is_dataclass(found) and found not in waiting:
                    waiting.append(found)
        yield ""


def _named(kind: type, name: str) -> Any:
    """Return what a name means where a class is defined."""
    return getattr(import_module(kind.__module__), name, None)


def _meanings(docstring: str) -> dict[str, str]:
    """Return what a docstring's Attributes say, by name."""
    _, _, attributes = docstring.partition("Attributes:\n")
    found = re.findall(r"^ {4}(\w+): ((?:.*\n?)(?:^ {8}.*\n?)*)", attributes, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _cell(text: str) -> str:
    """Return a text that fits into a cell of a Markdown table."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|").replace("<", "\\<")
