"""Estimate what a job would take on GPUs that are not here: ``tfopt hardware``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

from tfopt.commands import arguments
from tfopt.errors import UserError
from tfopt.job.job import Transform

_DESCRIPTION = """\
Estimates on which common GPUs a job's batch fits, and whether arithmetic or bandwidth bounds its
step: what one step computes, moves and holds is counted here, without training, and set against
the published peaks. Shows what is assumed. For half precision put mixed_precision with
policy = "mixed_float16" into --chain. Nothing is measured: take it to choose what to try."""


def add_hardware(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add the command to ``tfopt``."""
    from tfopt.doctor.hardware_estimate import GPUS

    parser = arguments.add_command(
        commands,
        common,
        "hardware",
        _hardware,
        help="estimate on which common GPUs a job fits, and what bounds its step",
        description=_DESCRIPTION,
        epilog="GPUs: " + ", ".join(gpu.name for gpu in GPUS),
    )
    arguments.add_job(parser, chain=True)
    parser.add_argument("--batch-size", type=int, metavar="N", help="another number of examples")
    parser.add_argument(
        "--gpu", action="append", default=[], metavar="NAME", help="only this one; may be repeated"
    )
    arguments.add_json(parser)


def _hardware(options: argparse.Namespace, given: list[str]) -> int:
    from tfopt.doctor.hardware_estimate import as_json, hardware_estimate
    from tfopt.export.quiet import quiet
    from tfopt.job.references import resolve_job

    # Steps are traced, not run: a GPU that is here has no part in it, and stays with who uses it.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    # Else TensorFlow says that it found none.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with quiet(), arguments.json_alone(options):
        target = arguments.target_of(options)
        _require_a_policy(target.chain.parts)
        job = target.chain.apply(resolve_job(target.job, target.arguments))
        found = hardware_estimate(job, batch_size=options.batch_size, gpus=options.gpu)
    print(as_json(found).rstrip() if options.json else found)
    return 0


def _require_a_policy(transforms: Sequence[Transform]) -> None:
    """Refuse a precision that the device chooses: the one that is here is not the one asked for."""
    if any(getattr(each, "policy", None) == "auto" for each in transforms):
        raise UserError(
            "The chain leaves the precision to the GPU, which is not here.",
            expected='mixed_precision with policy = "mixed_float16" or "mixed_bfloat16"',
            received='policy = "auto"',
        )
