"""``tfopt repairs``: the defects of Keras on TensorFlow that tfopt mends, and which are here.

Guarantees: each defect is looked for in the installed versions, on logical CPU devices of this
process; nothing is mended, and nothing of the machine is changed.
"""

from __future__ import annotations

import argparse
from typing import Any

_DESCRIPTION = """\
Lists the defects of Keras on TensorFlow that tfopt mends, each with where it has been reported,
and looks for it in the versions that are installed. A mend acts only inside tfopt's own calls
(`tfopt.distribute()`, `tfopt.execution()`, `tfopt.train_asynchronously()`), and only where its
defect is found.
"""


def add_repairs(commands: Any, common: argparse.ArgumentParser) -> None:
    """Adds the command to ``tfopt``."""
    parser = commands.add_parser(
        "repairs",
        parents=[common],
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        help="the defects of Keras on TensorFlow that tfopt mends, and which are here",
        description=_DESCRIPTION,
    )
    parser.set_defaults(action=_repairs)


def _repairs(options: argparse.Namespace, given: list[str]) -> int:
    import keras
    import tensorflow as tf
    from rich.console import Console
    from rich.table import Table

    from tfopt.repairs.roster import found_here

    table = Table(
        title=f"TensorFlow {tf.__version__}, Keras {keras.__version__}", title_justify="left"
    )
    for heading in ("mend", "what is wrong without it", "reported", "here"):
        table.add_column(heading, overflow="fold")
    for repair, here in found_here():
        answer = {True: "yes", False: "gone", None: "looked for in a cluster"}[here]
        table.add_row(repair.name, repair.defect, repair.upstream or "-", answer)
    Console().print(table)
    return 0
