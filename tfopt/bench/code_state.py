"""Which version of the code in a folder was measured, as git knows it.

Guarantees: never raises, never waits long, writes nothing into the repository.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_PATIENCE_S = 10.0
# What git does not know and a job may be made of.
_SOURCES = ("*.py", "*.toml")


def git_state(folder: Path) -> str | None:
    """The commit, and whether files differ from it; None outside of git.

    Files that git does not know count where they are Python or TOML: a report does not.
    """
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    unknown = _git(folder, "ls-files", "--others", "--exclude-standard", "--", *_SOURCES)
    if changed or unknown:
        return f"{commit} with uncommitted changes"
    if changed is None or unknown is None:
        return f"{commit}; git did not tell of uncommitted changes in time"
    return commit


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None where there is no git, no repository or no answer in time."""
    # Without these, asking may refresh the index, and may start the repository's own programs.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=True,
            env={**os.environ, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
