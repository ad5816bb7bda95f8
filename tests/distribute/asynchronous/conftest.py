"""Clusters of real processes on loopback, on ports that were free."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from on_workers import LIMIT_S, free_addresses

TASKS = Path(__file__).parent / "tasks"


class Cluster:
    """The tasks of one TF_CONFIG, each started with the same script when the test says so."""

    def __init__(self, forks, folder, script, workers=2, ps=1, **environment):
        self._forks = forks
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        addresses = free_addresses(workers + ps + 1)
        self.addresses = {
            "chief": addresses[:1],
            "ps": addresses[1 : 1 + ps],
            "worker": addresses[1 + ps :],
        }
        self.script = TASKS / script
        self.environment = environment
        self.pids = {}

    def start(self, *tasks):
        for task in tasks:
            environment = {"TF_CONFIG": self.tf_config(task), "FOLDER": str(self.folder)}
            self.pids[task] = self._forks(
                script=str(self.script),
                log=str(self.log(task)),
                environment=environment | self.environment,
            )

    def tf_config(self, task):
        kind, index = task.split()
        place = {"cluster": self.addresses, "task": {"type": kind, "index": int(index)}}
        return json.dumps(place)

    def kill(self, task):
        os.kill(self.pids[task], signal.SIGKILL)

    def status(self, task):
        """Return how the task has ended, after waiting for that."""
        return self.until(lambda: self._forks(ended=self.pids[task]), f"{task} to end")

    def until(self, found, what):
        """Return what ``found`` gives as soon as that is something."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            value = found()
            if value is not None and value is not False:
                return value
            time.sleep(0.1)
        raise AssertionError(f"waited {LIMIT_S} s for {what}\n{self.logs()}")

    def log(self, task):
        return self.folder / f"{task.replace(' ', '-')}.log"

    def text(self, task):
        return self.log(task).read_text(encoding="utf-8", errors="replace")

    def facts(self):
        """Return what the chief's script has noted, a JSON object a line."""
        path = self.folder / "facts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def logs(self):
        return "\n".join(f"--- {task}\n{self.text(task)[-3000:]}" for task in self.pids)

    def end(self):
        for task, pid in self.pids.items():
            if self._forks(ended=pid) is None:
                self.kill(task)


@contextmanager
def clusters(forks, folder):
    """Makes clusters, and ends what is left of them."""
    made = []

    def make(script, **sizes):
        made.append(Cluster(forks, folder / f"cluster{len(made)}", script, **sizes))
        return made[-1]

    try:
        yield make
    finally:
        for cluster in made:
            cluster.end()


@pytest.fixture
def cluster_of(forks, tmp_path):
    with clusters(forks, tmp_path) as make:
        yield make
