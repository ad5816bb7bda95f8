"""Starts scripts: as forks of one process that has loaded TensorFlow and not used it.

An import costs six seconds of processor time and a fork nothing; what a script sees is what it would
see in a process of its own. Reads one JSON object a line. ``{"script", "environment", "log"}``
starts a script, with ``"out"`` where its output goes elsewhere and ``"folder"`` where it runs in
another one, and is answered with its process id;
``{"ended": pid}`` is answered with its exit status, or null while it runs; ``{"kill": pid}`` kills
it with all that it has started. When its standard input closes, all that are left are killed.
"""

import atexit
import json
import os
import runpy
import signal
import sys
import threading
import traceback

import keras
import tensorflow  # noqa: F401

if os.environ.get("TFOPT_TESTS_XLA") != "1":  # see conftest.without_xla
    keras.Model._resolve_auto_jit_compile = lambda model: False


def run(task):
    os.setpgid(0, 0)
    log = os.open(task["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    out = os.open(task.get("out", task["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(log, 2)
    os.close(0)
    os.environ.update(task["environment"])
    os.chdir(task.get("folder", "."))
    sys.argv = [task["script"]]
    sys.path[0] = os.path.dirname(task["script"])
    code = 1
    try:
        runpy.run_path(task["script"], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    # As Python ends.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main():
    running, ended = set(), {}
    for line in sys.stdin:
        asked = json.loads(line)
        if "script" in asked:
            pid = os.fork()
            if pid == 0:
                run(asked)
            running.add(pid)
            print(json.dumps(pid), flush=True)
            continue
        if "kill" in asked:
            os.killpg(asked["kill"], signal.SIGKILL)
            print("null", flush=True)
            continue
        pid = asked["ended"]
        if pid in running:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                running.discard(pid)
                ended[pid] = os.waitstatus_to_exitcode(status)
        print(json.dumps(ended.get(pid)), flush=True)
    for pid in running:
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
