"""Read the splits of a TFDS data set where it is prepared, or can be downloaded in bounded time.

Without a network TFDS alone retries for minutes, so its host is asked first; a download runs in a
process of its own and is stopped when its time is over.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from tfopt.errors import first_line

_PORT = 443
_MEND = "mend or delete TFDS's folder (TFDS_DATA_DIR, ~/tensorflow_datasets), or use embedded data"


class NotToBeHadError(Exception):
    """The reason why TFDS has no such data set for us, and what would mend that."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


def read_splits(
    name: str, splits: Sequence[str], *, host: str, timeout_s: float
) -> tuple[list[dict[str, Any]], str]:
    """Return each split as a dict of arrays, and the folder they were read from.

    Args:
        name: The data set, as TFDS calls it.
        splits: Its splits.
        host: Where TFDS downloads it from.
        timeout_s: How long a download may take.
    """
    import tensorflow_datasets as tfds

    try:
        # TFDS itself looks at this variable only once, when it is imported.
        builder = tfds.builder(name, data_dir=os.environ.get("TFDS_DATA_DIR"))
        prepared = builder.data_path.exists()
    except Exception as error:
        raise NotToBeHadError(f"its cache cannot be read ({first_line(error)})", _MEND) from error
    folder = str(builder.data_path)
    if not prepared:
        _download(name, builder, host, timeout_s)
    try:
        return [_read(builder, split) for split in splits], folder
    except Exception as error:
        raise NotToBeHadError(
            f"its cache in {folder} is broken ({first_line(error)})",
            f"delete {folder} and let TFDS prepare it again, or use --data=embedded",
        ) from error


def _read(builder: Any, split: str) -> dict[str, Any]:
    import tensorflow_datasets as tfds

    dataset = builder.as_dataset(split=split, batch_size=-1, shuffle_files=False)
    return dict(tfds.as_numpy(dataset))


def _download(name: str, builder: Any, host: str, timeout_s: float) -> None:
    """Download in a process of its own: TFDS cannot be stopped otherwise."""
    if not _reachable(host, timeout_s):
        raise NotToBeHadError(
            f"it is not prepared in {builder.data_path}, and {host} cannot be reached",
            "connect to a network, prepare it elsewhere and set TFDS_DATA_DIR, or use "
            "--data=embedded",
        )
    folder = Path(builder.data_path).parent
    # Where TFDS writes before it renames; a stopped download leaves them.
    unfinished = "incomplete.*"
    before = set(folder.glob(unfinished))
    code = (
        "import sys, tensorflow_datasets as tfds; "
        "tfds.builder(sys.argv[1], data_dir=sys.argv[2]).download_and_prepare()"
    )
    # Below it lie name, configuration where there is one, and version.
    depth = builder.info.full_name.count("/")
    command = [sys.executable, "-c", code, name, str(Path(builder.data_path).parents[depth])]
    try:
        subprocess.run(command, capture_output=True, check=True, text=True, timeout=timeout_s)
        return
    except subprocess.TimeoutExpired:
        reason = f"its download took more than {timeout_s:.0f} s"
    except subprocess.CalledProcessError as error:
        last = (error.stderr or "").strip().splitlines() or [f"exit code {error.returncode}"]
        reason = f"its download failed ({last[-1]})"
    for part in set(folder.glob(unfinished)) - before:
        shutil.rmtree(part, ignore_errors=True)
    raise NotToBeHadError(reason, "try again on a faster network, or use --data=embedded")


def _reachable(host: str, timeout_s: float) -> bool:
    """Return whether the host, or the proxy in front of it, answers within three seconds.

    Resolving a name has no time-out of its own, so it waits in a thread.
    """
    proxy = urlsplit(getproxies().get("https", ""))
    address = (proxy.hostname or host, proxy.port or _PORT)
    answered: list[bool] = []

    def connect() -> None:
        try:
            with socket.create_connection(address, timeout=limit_s):
                answered.append(True)
        except OSError:
            return

    limit_s = min(timeout_s, 3.0)
    probe = threading.Thread(target=connect, daemon=True)
    probe.start()
    probe.join(limit_s)
    return bool(answered)
