"""Launches scripts for real, and makes sure that none of their processes outlives the test."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import uuid

import psutil
import pytest
from on_workers import LIMIT_S
from processes import wait_until

# A task that says when it is there, and then works for ever.
WORKS = """
import json, os, pathlib, signal, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
me = f"{task['type']}{task['index']}"
def there(name="there"):
    pathlib.Path(name + me).touch()
def forever():
    there()
    time.sleep(6000)
"""


def tfopt_launch(*arguments, env=None, cwd=None, python=()):
    """Run ``tfopt launch`` to its end; return its exit code, stdout and stderr."""
    return subprocess.run(
        [sys.executable, *python, "-m", "tfopt", "launch", *arguments],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


class Launcher:
    """``tfopt launch`` in a process of its own."""

    def __init__(self, folder):
        self.folder = folder
        # Every process of this test carries it, whatever else becomes of it.
        self.mark = f"TFOPT_TEST_{uuid.uuid4().hex}"
        self._started = []

    def script(self, code):
        path = self.folder / f"script{len(list(self.folder.glob('script*')))}.py"
        path.write_text(WORKS + textwrap.dedent(code), encoding="utf-8")
        return str(path)

    def start(self, flags, code=None, command=None, environment=None):
        command = command or [sys.executable, self.script(code)]
        started = subprocess.Popen(
            [sys.executable, "-m", "tfopt", "launch", *flags.split(), "--", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="backslashreplace",
            cwd=self.folder,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1", self.mark: "1", **(environment or {})},
        )
        self._started.append(started)
        return started

    def run(self, flags, **how):
        """Return the exit code, and what was printed to stdout and stderr."""
        started = self.start(flags, **how)
        out, err = started.communicate(timeout=LIMIT_S)
        return started.returncode, out, err

    def wait_for(self, name, count=1):
        """Wait until the tasks have written so many files of that name."""
        wait_until(lambda: len(list(self.folder.glob(f"{name}*"))) >= count)

    def living(self):
        """Return the processes of this test that are still there."""
        found = []
        for process in psutil.process_iter(["status"]):
            try:
                marked = self.mark in process.environ()
            except (psutil.Error, OSError):
                continue
            if marked and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    def clean_up(self):
        for process in self.living():
            process.kill()
        for started in self._started:
            started.communicate(timeout=LIMIT_S)


@pytest.fixture
def launcher(tmp_path):
    made = Launcher(tmp_path)
    try:
        yield made
    finally:
        made.clean_up()
