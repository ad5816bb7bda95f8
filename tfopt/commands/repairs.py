"""List the defects of Keras that tfopt mends, and look for each here: ``tfopt repairs``."""

from __future__ import annotations

import argparse
import os
import shutil
import textwrap
from typing import Any

from tfopt.commands.arguments import add_command

_DESCRIPTION = """\
Lists the defects of Keras on TensorFlow that tfopt mends, each with where it has been reported,
and looks for it in the versions that are installed. A mend acts only inside tfopt's own calls
(`tfopt.distribute()`, `tfopt.execution()`, `tfopt.train_asynchronously()`), and only where its
defect is found.
"""


def add_repairs(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to ``tfopt``."""
    add_command(
        commands,
        common,
        "repairs",
        _repairs,
        help="the defects of Keras on TensorFlow that tfopt mends, and which are here",
        description=_DESCRIPTION,
    )


def _repairs(options: argparse.Namespace, given: list[str]) -> int:
    # The probes provoke errors, which TensorFlow would print line by line.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import tensorflow as tf

    from tfopt.distribute.mends.repairs_roster import found_here

    print(f"TensorFlow {tf.__version__}, Keras {keras.__version__}")
    for repair, here in found_here():
        answer = {True: "here", False: "gone", None: "looked for in a cluster"}[here]
        reported = f"reported as {repair.upstream}" if repair.upstream else "no report known"
        print(f"\n{repair.name}: {answer}; {reported}")
        print(_wrapped(repair.defect))
    return 0


def _wrapped(text: str) -> str:
    """Return lines of whole words, however narrow the terminal is."""
    return textwrap.fill(
        text,
        max(shutil.get_terminal_size().columns - 1, 30),
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
