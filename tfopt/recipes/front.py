"""The command line that every recipe has: absl flags, live progress, a table, the report files.

Guarantees: ``--help`` and wrong flags are answered without loading TensorFlow; a user's mistake
ends with one message and a non-zero exit code; Ctrl-C leaves a valid report of what was measured.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from tfopt.errors import UserError
from tfopt.files import prepare_folder
from tfopt.job import Chain
from tfopt.recipes.measured import INTERRUPTED, measure_and_show
from tfopt.roster import transform_name

DATA_SOURCES = ("auto", "tfds", "embedded", "synthetic")
USER_ERROR = 2
_OWN_FLAGS = (
    *("data", "batch_size", "epochs", "steps", "seed"),
    *("transforms", "skip", "output", "debug"),
)


def recipe_main(job: str, chain: Chain, *, title: str) -> int:
    """Parses the flags, measures, shows; returns only through SystemExit."""
    _define_flags(title, chain)
    module = job.partition(":")[0]

    def main(arguments: Sequence[str]) -> int:
        if len(arguments) > 1:
            raise app.UsageError(f"unexpected arguments: {' '.join(arguments[1:])}")
        values = flags.FLAGS
        with_errors_told = not values.debug
        try:
            return measure_and_show(
                title=title,
                command=f"python -m {module} {shlex.join(sys.argv[1:])}".strip(),
                job=job,
                chain=_selected(chain, values.transforms, values.skip),
                output=prepare_folder(Path(values.output)),
                arguments=_job_arguments(values),
            )
        except UserError as error:
            if not with_errors_told:
                raise
            print(f"error: {error}", file=sys.stderr)
            return USER_ERROR
        except KeyboardInterrupt:
            print("Interrupted.", file=sys.stderr)
            return INTERRUPTED

    app.run(main)
    return 0


def _define_flags(title: str, chain: Chain) -> None:
    names = ", ".join(_names_in(chain))
    flags.DEFINE_enum("data", "auto", DATA_SOURCES, "where the examples come from")
    flags.DEFINE_integer("batch_size", 32, "batch of the baseline", lower_bound=1)
    flags.DEFINE_integer("epochs", 3, "epochs of every row", lower_bound=1)
    flags.DEFINE_integer(
        "steps", None, "steps an epoch; default: the whole data set", lower_bound=1
    )
    flags.DEFINE_integer("seed", 0, "seed of weights and shuffling")
    flags.DEFINE_list("transforms", ["all"], f"which to apply, of: {names}")
    flags.DEFINE_list("skip", [], "transforms to leave out of the chain")
    flags.DEFINE_string(
        "output", f"{title}_report", "folder for the report, the model and its files"
    )
    flags.DEFINE_bool("debug", False, "show the traceback of an error")
    # --help shows the flags of the program's own module, which these are in a user's eyes.
    for name in _OWN_FLAGS:
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])


def _names_in(chain: Chain) -> list[str]:
    return [transform_name(part) for part in chain.parts]


def _job_arguments(values: Any) -> Mapping[str, Any]:
    return {
        name: getattr(values, name) for name in ("data", "batch_size", "epochs", "steps", "seed")
    }


def _selected(chain: Chain, wanted: Sequence[str], skipped: Sequence[str]) -> Chain:
    """The chain without what the flags leave out; a name it does not have is an error."""
    names = _names_in(chain)
    for name in (*wanted, *skipped):
        if name not in names and name != "all":
            raise UserError(
                f"This recipe has no transform {name!r}.",
                expected=f"all, or some of {', '.join(names)}",
                received=name,
            )
    keep = set(names) if "all" in wanted else set(wanted)
    keep -= set(skipped)
    return Chain(tuple(part for part in chain.parts if transform_name(part) in keep))
