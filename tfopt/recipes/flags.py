"""Parse the flags of recipes and commands: argparse, with a suggestion for a flag it does not know.

Stands apart so that ``tfopt --help`` loads no more than this.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that takes whole flags only and suggests the one that was meant."""

    def error(self, message: str) -> NoReturn:
        wrong = re.findall(r"(?<!\S)--?[\w-]+|(?<=invalid choice: ')[\w-]+", message)
        known = [*_words_of(self)]
        close = [match for word in wrong for match in get_close_matches(word, known, n=1)]
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        super().error(f"{message}{hint}")


def _words_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the flags and the commands of a parser and of those below it."""
    for action in parser._actions:
        if action.help != argparse.SUPPRESS:
            yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices
            for below in action.choices.values():
                yield from _words_of(below)
