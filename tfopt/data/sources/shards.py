"""The list of shards that ``tfopt.data.convert`` leaves in a folder, and what it says of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tfopt.errors import UserError

MANIFEST = "_tfopt_shards.json"
"""Its name; Arrow passes over names that begin so."""


def require_whole(folder: str | os.PathLike[str]) -> int | None:
    """Return the rows of a folder's shards, None without a list; refuse it where some are missing.

    Example:
        require_whole("rows/")  # 1200180
    """
    listed = Path(folder).expanduser() / MANIFEST
    if not listed.is_file():
        return None
    kept = json.loads(listed.read_text(encoding="utf-8"))
    if len(kept["shards"]) != kept["parts"]:
        raise UserError(
            f"{folder} was not converted to its end.",
            expected=f"{kept['parts']} parts",
            received=f"{len(kept['shards'])}",
            fix="call tfopt.data.convert again, which writes the rest",
        )
    shards = [each for part in kept["shards"].values() for each in part]
    for each in shards:
        path = listed.with_name(each["name"])
        size = path.stat().st_size if path.is_file() else None
        if size != each["bytes"]:
            raise UserError(
                f"{path} is not as it was written.",
                expected=f"{each['bytes']:,} bytes",
                received="no such file" if size is None else f"{size:,} bytes",
                fix="call tfopt.data.convert again, which writes its part; or delete "
                f"{MANIFEST} to read what is there",
            )
    return sum(int(each["rows"]) for each in shards)
