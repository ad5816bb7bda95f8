"""Code in several real processes that are the workers of one cluster on loopback.

One process imports TensorFlow and is forked for each worker: an import costs six seconds of
processor time, and a fork nothing. It must not have initialised TensorFlow's devices, so a
worker has everything before it that a process of its own has.

    with Workers(folder) as workers:
        first, second = workers.run("say(rank=rank)", count=2)
        assert first.said["rank"] == 0

In the code are ``rank``, ``folder`` (for all runs) and ``say(**facts)``, which keeps what JSON can
hold, also of a process that is killed afterwards; ``said`` are the facts so far.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ended:
    """How one worker ended."""

    said: dict
    code: int
    """The exit code; a negative one is a signal, -9 also where the time was up."""
    err: str


class Workers:
    """A process to fork workers from; it ends with its context."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_):
        # Workers that are still there go too.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def run(self, code, *, count=2, limit_s=400, env=None, each_env=None, absent=()):
        """Runs the code in ``count`` workers; what each said and how it ended, in their order.

        ``absent`` are ranks that are in the cluster and not started; None stands for them.
        """
        task = {
            "code": textwrap.dedent(code),
            "count": count,
            "limit_s": limit_s,
            "env": env or {},
            "each_env": {str(rank): each for rank, each in (each_env or {}).items()},
            "absent": list(absent),
        }
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process that forks the workers has ended"
        return [None if each is None else Ended(**each) for each in json.loads(line)]

    def all_well(self, code, **settings):
        """What each said, where all have ended well."""
        ended = self.run(code, **settings)
        for rank, each in enumerate(ended):
            assert each.code == 0, f"worker {rank}: {each.code}\n{each.err[-6000:]}"
        return [each.said for each in ended]


def _free_addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


def _serve(folder):
    import keras
    import tensorflow  # noqa: F401

    if os.environ.get("TFOPT_TESTS_XLA") != "1":  # see conftest.without_xla
        keras.Model._resolve_auto_jit_compile = lambda model: False

    for number, line in enumerate(sys.stdin):
        task = json.loads(line)
        place = folder / f"run{number}"
        place.mkdir()
        script = place / "script.py"
        script.write_text(task["code"], encoding="utf-8")
        addresses = _free_addresses(task["count"])
        started = {}
        for rank in range(task["count"]):
            if rank not in task["absent"]:
                pid = os.fork()
                if pid == 0:
                    _work(folder, place, script, task, addresses, rank)
                started[rank] = pid
        codes = _waited(started, task["limit_s"])
        answer = []
        for rank in range(task["count"]):
            if rank in codes:
                said = place / f"{rank}.json"
                facts = json.loads(said.read_text()) if said.exists() else {}
                err = (place / f"{rank}.err").read_text(errors="replace")
                answer.append({"said": facts, "code": codes[rank], "err": err})
            else:
                answer.append(None)
        print(json.dumps(answer), flush=True)


def _waited(started, limit_s):
    codes, end = {}, time.monotonic() + limit_s
    while len(codes) < len(started):
        for rank, pid in started.items():
            if rank not in codes:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    codes[rank] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return codes


def _work(folder, place, script, task, addresses, rank):
    """A worker's whole life, in the fork."""
    code = 1
    try:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(place / f"{rank}.{name}", os.O_WRONLY | os.O_CREAT), stream)
        os.environ |= task["env"] | task["each_env"].get(str(rank), {})
        where = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        os.environ.setdefault("TF_CONFIG", json.dumps(where))
        said = {}

        def say(**facts):
            said.update(facts)
            new = place / f"{rank}.new"
            new.write_text(json.dumps(said))
            new.rename(place / f"{rank}.json")

        names = {
            "rank": rank,
            "folder": str(folder),
            "say": say,
            "said": said,
            "__name__": "__main__",
        }
        sys.modules["__main__"].__file__ = str(script)
        exec(compile(script.read_text(), str(script), "exec"), names)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        _leave_cluster(code)


def _leave_cluster(code):
    """Ends as Python does, with what is registered to be done at the end."""
    import atexit

    try:
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
