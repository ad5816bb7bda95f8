"""Exit codes that are answers, for commands that decide something in continuous integration.

Guarantees: no failure looks like an answer: neither a broken file, a defect of tfopt's own nor
a reader that went away ends with the code of a verdict that was not reached.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

PASS = 0
REGRESSION = 1
USAGE = 2
INCONCLUSIVE = 3
NOT_COMPARABLE = 4
BAD_FILE = 5
DEFECT = 70


def answered(work: Callable[[], tuple[str, int]], *, debug: bool) -> int:
    """Prints the text that ``work`` returns; its code is the answer, and an error's is another."""
    try:
        text, code = work()
        _print(text)
    except Exception as error:
        code = _code_of(error)
        if debug or code == DEFECT:
            # Python itself would end with 1, which says "regression".
            traceback.print_exc()
        else:
            print(f"error: {error}", file=sys.stderr)
    return code


def _print(text: str) -> None:
    from tfopt.report.terminal import print_in_any_encoding

    print_in_any_encoding(sys.stdout)
    try:
        print(text.rstrip("\n"))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough, as `head` has; the answer stays what it is.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code_of(error: Exception) -> int:
    from tfopt.bench.comparability import NotComparable
    from tfopt.errors import UserError
    from tfopt.report.bench.document import DamagedReport

    if isinstance(error, DamagedReport):
        return BAD_FILE
    if isinstance(error, NotComparable):
        return NOT_COMPARABLE
    return USAGE if isinstance(error, UserError) else DEFECT
