"""Code in several real processes that are the workers of one cluster on loopback.

They are forks of one process that has imported TensorFlow (see ``forks.py``).

    first, second = workers.run("say(rank=rank)", count=2)
    assert first.said["rank"] == 0

In the code are ``rank``, ``folder`` (one for all workers of a run) and ``say(**facts)``, which keeps
what JSON can hold, also of a process that is killed afterwards; ``said`` are the facts so far.
"""

from __future__ import annotations

import json
import os
import socket
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

LIMIT_S = 900  # a bound against hangs alone
rank = int(os.environ.get("RANK", "0"))
folder = os.environ.get("FOLDER", "")
said = {}


def say(**facts):
    said.update(facts)
    new = Path(folder) / f".{rank}.new"
    new.write_text(json.dumps(said))
    new.rename(Path(folder) / f".{rank}.json")


@dataclass(frozen=True)
class Ended:
    """How one worker ended."""

    said: dict
    code: int
    """The exit code; a negative one is a signal."""
    err: str


class Workers:
    """Runs of workers; ``folder`` is that of the latest run."""

    def __init__(self, forks, root):
        self._forks = forks
        self._root = Path(root)
        self.folder = self._root

    def run(self, code, *, count=2, env=None):
        """Run the code in ``count`` workers; return what each said and how it ended, by rank."""
        self.folder = self._root / f"run{len(list(self._root.iterdir()))}"
        self.folder.mkdir()
        script = self.folder / ".script.py"
        names = "from on_workers import folder, rank, said, say\n"
        script.write_text(names + textwrap.dedent(code), encoding="utf-8")
        addresses = free_addresses(count)
        pids = []
        for index in range(count):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            place = {"RANK": str(index), "FOLDER": str(self.folder), "TF_CONFIG": json.dumps(task)}
            pids.append(
                self._forks(
                    script=str(script),
                    log=str(self.folder / f".{index}.err"),
                    out=str(self.folder / f".{index}.out"),
                    environment=place | (env or {}),
                )
            )
        return [self._ended(index, code) for index, code in enumerate(self._codes(pids))]

    def _codes(self, pids):
        codes, deadline = {}, time.monotonic() + LIMIT_S
        while len(codes) < len(pids):
            ended = {pid: self._forks(ended=pid) for pid in pids if pid not in codes}
            codes |= {pid: code for pid, code in ended.items() if code is not None}
            if time.monotonic() > deadline:
                for pid in set(pids) - set(codes):
                    self._forks(kill=pid)
            time.sleep(0.02)
        return [codes[pid] for pid in pids]

    def _ended(self, index, code):
        facts = self.folder / f".{index}.json"
        err = (self.folder / f".{index}.err").read_text(errors="replace")
        return Ended(json.loads(facts.read_text()) if facts.exists() else {}, code, err)

    def all_well(self, code, **settings):
        """Return what each said, where all have ended well."""
        ended = self.run(code, **settings)
        for index, each in enumerate(ended):
            assert each.code == 0, f"worker {index}: {each.code}\n{each.err[-6000:]}"
        return [each.said for each in ended]


def free_addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    return addresses
