"""Parse the flags that recipes and commands share, and answer mistakes with one message.

Stands apart so that ``tfopt --help`` loads no more than this.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from tfopt.errors import UserError

FAILED = 1
DEFECT = 70
INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that takes whole flags only and suggests the one that was meant.

    So a shortened flag never trusts a file by mistake.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **options})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse what is left over here, where the flags of the command are known."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        wrong, _, choices = message.partition("invalid choice: ")
        if choices:
            given, *meant = re.findall(r"[\w-]+", choices.replace("choose from", ""))
            close = get_close_matches(given, meant, n=1)
        else:
            actions = [action for action in self._actions if action.help != argparse.SUPPRESS]
            known = [flag for action in actions for flag in action.option_strings]
            close = []
            for word in sorted({*re.findall(r"(?<!\S)--?[\w-]+", wrong)} - {*known}):
                alike = [flag for flag in known if flag.startswith(word) or word.startswith(flag)]
                close += (alike or get_close_matches(word, known, cutoff=0.75))[:1]
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        super().error(f"{message}{hint}")


_FLAGS: dict[str, dict[str, Any]] = {
    "--debug": {"action": "store_true", "help": "show the traceback of an error"},
    "--json": {"action": "store_true", "help": "print the result as JSON alone"},
    "--chain": {
        "type": Path,
        "metavar": "FILE",
        "help": "a recipe file whose chain to put on the job",
    },
    "--set": {  # read by ``assignments``
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE",
        "help": "an argument of the job function; may be repeated",
    },
    "--trust-functions": {
        "action": "store_true",
        "help": "accept a chain that names functions, and let it import and call them",
    },
}


def add_flags(parser: Any, *flags: str) -> None:
    """Add flags that are the same in every command to a parser or to a group of one."""
    for flag in flags:
        parser.add_argument(flag, **_FLAGS[flag])


def add_output(parser: argparse.ArgumentParser, folder: str, default: Path | None = None) -> None:
    """Add ``--output``; its help names the ``folder`` that is taken without it."""
    parser.add_argument(
        "--output",
        type=Path,
        default=default,
        help=f"folder for the results (default: {folder})",
    )


def assignments(pairs: Sequence[str]) -> dict[str, Any]:
    """Return NAME=VALUE pairs as a mapping; a value is read as JSON where it is JSON.

    Example:
        >>> assignments(["epochs=2", "data=embedded"])
        {'epochs': 2, 'data': 'embedded'}
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise UserError("--set takes NAME=VALUE.", expected="--set epochs=2", received=pair)
        values[name] = plain_value(text)
    return values


def plain_value(text: str) -> Any:
    """Return the value of JSON, Python's ``True`` and ``False`` too; any other text as it is."""
    try:
        return json.loads(text.lower() if text in ("True", "False") else text)
    except json.JSONDecodeError:
        return text


def count(text: str, minimum: int = 0) -> int:
    """Return a whole number of at least ``minimum``."""
    if not text.isdecimal() or int(text) < minimum:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {minimum} or more")
    return int(text)


def duration(text: str) -> float:
    """Return the seconds of "90s", "1.5m" or "1h"; a number alone is seconds."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time, such as 90s, 5m or 1h")
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def points(text: str) -> float:
    """Return hundredths of a score, from 0 to 100."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of points from 0 to 100")
    return value


def names(text: str) -> list[str]:
    """Return the names between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def exit_code_of(
    work: Callable[[], int], *, debug: bool, parser: argparse.ArgumentParser | None = None
) -> int:
    """Return the code of ``work``; a user's mistake is one message, and Ctrl-C one line.

    SIGTERM and SIGHUP end it as Ctrl-C does, with children and temporary files; the exit code is
    128 + the signal's number, and the signal is ignored until the process has ended.

    Under ``debug`` either has its traceback, as a defect of tfopt always has, whose exit code is
    not Python's 1: that says "regression" or "failure". A message names the flags of
    ``parser``. What the output's encoding lacks is printed as "?".
    """
    from tfopt.subprocesses import signals_as_interrupt

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    with signals_as_interrupt(signal.SIGTERM, signal.SIGHUP) as heard:
        code = _code_of(work, debug, parser)
    if not heard or code != INTERRUPTED:
        return code
    signal.signal(heard[0], signal.SIG_IGN)
    return 128 + heard[0]


def _code_of(work: Callable[[], int], debug: bool, parser: argparse.ArgumentParser | None) -> int:
    try:
        return work()
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        # Of the time before and after a measurement, which reports its own interruption.
        if debug:
            traceback.print_exc()
        else:
            print("Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        code = error.exit_code if isinstance(error, UserError) else DEFECT
        if debug or code == DEFECT:
            traceback.print_exc()
        else:
            text = str(error) if parser is None else in_flags(str(error), parser)
            print(f"error: {text}", file=sys.stderr)
    return code


# An argument of a Python function: `max_drop=1`, `max_drop` in backticks, a word such as budget_s,
# or "samples is not"; not in quotes, in front of a call, or as the value of a flag.
_ARGUMENT = re.compile(
    r"""(?<![\w.'"-])(?<!--set\ )(?<!--try\ )
    (?:(?P<given>\w+)=(?P<value>[\w.+"'-]+(?:\[[\w:]*\])?)|`(?P<quoted>\w+)`
    |(?P<word>[a-z]+(?:_[a-z]+)+(?![\w(.=])|^[a-z]+(?=\ is\ not\ )))
    """,
    re.VERBOSE,
)


def in_flags(text: str, parser: argparse.ArgumentParser) -> str:
    """Return an error's text with arguments of Python functions as the flags of ``parser``.

    What it has no flag for, what was received, and calls stay as they are.

    Example:
        >>> in_flags("give max_drop=1, or a longer `budget_s`", parser)
        'give --max-drop 1, or a longer `--budget`'
    """
    flags = {each.dest: each for each in parser._actions if each.option_strings}

    def spelled(found: re.Match[str]) -> str:
        name = found["given"] or found["quoted"] or found["word"]
        action = flags.get(name) or flags.get(name.removesuffix("_s"))
        if action is None or re.search(r"\w\([^()]*$", found.string[: found.start()]):
            return found[0]
        flag = action.option_strings[-1]
        if found["given"] is None:
            return f"`{flag}`" if found["quoted"] else flag
        if found["value"] in ("False", "None"):
            return f"no {flag}"
        if action.nargs == 0:
            return flag
        value = found["value"].strip("\"'")
        # A variable of a program, or what its reader puts in.
        is_named = value == found["value"] and not re.match(r"[\d.+-]*\d", value)
        return f"{flag} {action.metavar if is_named and action.metavar else value}"

    lines = text.split("\n")
    return "\n".join(
        line if line.startswith("  received:") else _ARGUMENT.sub(spelled, line) for line in lines
    )
