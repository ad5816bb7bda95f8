"""Estimate on which GPUs that are not here a job fits: ``tfopt hardware``."""

from __future__ import annotations

import argparse
import os
from typing import Any

from tfopt.commands import arguments
from tfopt.errors import UserError
from tfopt.recipes.flags import add_flags

_DESCRIPTION = """\
Estimates on which common GPUs a job's batch fits, and whether arithmetic or bandwidth bounds its
step: what a step computes, moves and holds, set against published peaks. For half precision put
mixed_precision with policy = "mixed_float16" into --chain. Nothing is trained or measured."""


def add_hardware(commands: Any) -> None:
    """Add the command to ``tfopt``."""
    parser = arguments.add_command(
        commands,
        "hardware",
        _hardware,
        help="estimate on which GPUs a job fits, and what bounds its step",
        description=_DESCRIPTION,
    )
    arguments.add_job(parser, chain=True)
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="examples a step (default: the job's)"
    )
    add_flags(parser, "--json")


def _hardware(options: argparse.Namespace) -> int:
    from tfopt.doctor.hardware_estimate import hardware_estimate
    from tfopt.export.quiet import quiet
    from tfopt.job.references import resolve_job

    # Steps are traced, not run: a GPU that is here stays with who uses it.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with quiet(), arguments.json_alone(options):
        target = arguments.target_of(options)
        # "auto" would take the precision of this machine.
        if any(getattr(part, "policy", None) == "auto" for part in target.chain.parts):
            raise UserError(
                "The chain leaves the precision to the GPU, which is not here.",
                expected='mixed_precision with policy = "mixed_float16" or "mixed_bfloat16"',
            )
        job = resolve_job(target.job, target.arguments)
        found = hardware_estimate(job, target.chain, batch_size=options.batch_size)
    print(found.to_json().rstrip() if options.json else found)
    return 0
