"""Write a data set as shards of a good size, ``tfopt data convert``, and read them back."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tfopt.commands import arguments

_CONVERT = """\
Writes a Parquet, CSV or TFRecord file or folder, a folder of images by class, or a Hugging Face
data set as shards of Parquet or TFRecord, several at a time, with checksums. Run again after an
interruption it writes what is missing."""

_SERVE = """\
Runs a dispatcher and data workers of tf.data's service until it is told to end, and prints the
address for Pipeline(service=...). With --join the workers serve a dispatcher on another host. It
has no passwords: keep its ports inside your network."""

_CHECK = """\
Reads the shards that `tfopt data convert` wrote, and compares their checksums. Exit code 2: one of
them has changed or is missing."""


def add_data(commands: Any, common: argparse.ArgumentParser) -> None:
    """Add ``tfopt data`` with its parts."""
    data = commands.add_parser(
        "data", help="write a data set as shards, check them, or prepare batches"
    )
    parts = data.add_subparsers(required=True, metavar="convert|check|serve")
    convert = arguments.add_command(
        parts, common, "convert", _convert, help="write shards", description=_CONVERT
    )
    convert.add_argument("source", metavar="SRC", help="a file or folder")
    convert.add_argument("folder", metavar="DEST", type=Path, help="an empty or new folder")
    convert.add_argument(
        "--format", choices=("parquet", "tfrecord"), default="parquet", help="(default: parquet)"
    )
    convert.add_argument(
        "--shard-mib", type=int, default=128, metavar="N", help="size of a shard (default: 128)"
    )
    convert.add_argument("--workers", type=int, metavar="N", help="at a time (default: the cores)")
    check = arguments.add_command(
        parts, common, "check", _check, help="compare checksums", description=_CHECK
    )
    check.add_argument("folder", metavar="FOLDER", type=Path, help="what convert has written")
    serve = arguments.add_command(
        parts, common, "serve", _serve, help="prepare batches here", description=_SERVE
    )
    serve.add_argument(
        "--workers", type=int, default=1, metavar="N", help="processes here (default: 1)"
    )
    serve.add_argument("--port", type=int, default=0, help="the dispatcher's (default: a free one)")
    serve.add_argument("--host", help="by which name others reach this host (default: its own)")
    serve.add_argument("--join", metavar="ADDRESS", help="of a dispatcher elsewhere: grpc://...")


def _serve(options: argparse.Namespace, given: list[str]) -> int:
    from tfopt.data.service import serve

    serve(options.workers, port=options.port, host=options.host, join=options.join)
    return 0


def _convert(options: argparse.Namespace, given: list[str]) -> int:
    from tfopt.data.convert import convert

    def progress(part: int, count: int) -> None:
        print(f"part {part + 1} of {count} is written", file=sys.stderr)

    print(
        convert(
            options.source,
            options.folder,
            format=options.format,
            shard_mib=options.shard_mib,
            workers=options.workers,
            progress=progress,
        )
    )
    return 0


def _check(options: argparse.Namespace, given: list[str]) -> int:
    from tfopt.data.convert import check_shards

    print(f"as they were written: {check_shards(options.folder)}")
    return 0
