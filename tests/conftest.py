"""Shared by all tests: quiet TensorFlow, and fresh processes for process-wide settings."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from nvml_stand_in import library as nvml_library

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

HERE = Path(__file__).parent
LIMIT_S = 240
# Not behind tfopt, which does something else when Keras is there already.
IMPORTS_FIRST = re.compile(r"\s*(import|from)\b((?!\btfopt\b)[^\n])*\b(tensorflow|keras)\b")


@pytest.fixture(scope="session", autouse=True)
def signals_are_heard():
    """A shell's background job ignores Ctrl-C, and what nohup has started a terminal that closes;
    so would every process that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="module", autouse=True)
def leftovers_are_frozen():
    """Keep what is alive after a module's tests out of every later look through all objects.

    Garbage collection takes them, and so does ``tfopt.job.compiled_steps.models_around``: in a process that
    has run a thousand tests that was most of the time.
    """
    gc.freeze()
    yield
    before, deadline = gc.get_stats()[2]["collections"], time.monotonic() + 30
    while gc.get_stats()[2]["collections"] == before:
        # A call does nothing while another thread collects; one that waits for itself never ends.
        assert time.monotonic() < deadline, "another thread is stuck in a collection of garbage"
        gc.collect()


@pytest.fixture(autouse=True)
def without_xla(request, monkeypatch):
    """Run "auto" steps without XLA, whose compilation would be most of the suite's time.

    Tests that are about XLA ask for it (``jit_compile=True``) or are marked ``xla``; with
    TFOPT_TESTS_XLA=1, as ``make test-all`` sets it, every test runs as Keras would run it.
    """
    keras = sys.modules.get("keras")
    if keras is not None and without_xla_here() and not request.node.get_closest_marker("xla"):
        monkeypatch.setattr(keras.Model, "_resolve_auto_jit_compile", lambda model: False)


@pytest.fixture
def in_toy_folder(tmp_path, monkeypatch):
    """The folder in which this test runs, and the processes that it starts: see ``processes.py``."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def one_starter(monkeypatch):
    """Let the children of all tests start from one process, which loads TensorFlow once.

    A change of the environment takes another one, and pytest keeps a test's name in it. Children
    find what several tests build on.
    """
    if "tfopt" not in sys.modules:
        return
    from tfopt.measure import children

    starter = children._starter

    def shared(settings):
        with pytest.MonkeyPatch.context() as environment:
            environment.delenv("PYTEST_CURRENT_TEST", raising=False)
            environment.setenv("PYTHONPATH", str(HERE), prepend=os.pathsep)
            return starter(settings)

    monkeypatch.setattr(children, "_starter", shared)


def without_xla_here():
    return os.environ.get("TFOPT_TESTS_XLA") != "1"


@pytest.fixture(scope="session")
def forks():
    """A process with TensorFlow loaded and not used, to fork scripts from: see ``forks.py``."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "forks.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), *filter(None, sys.path)]),
        },
    )

    def ask(**asked):
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    try:
        yield ask
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@pytest.fixture
def fresh_python(request, tmp_path):
    """Runs code in a process of its own and returns what it printed.

    Device settings and the initialised TensorFlow runtime cannot be taken back in one process.
    Code that begins by importing TensorFlow or Keras is forked from a process that has done so and
    no more; other code, and code with an environment or a memory of its own (to measure it), gets an
    interpreter of its own.
    """

    def run(
        code: str,
        *,
        fails: bool = False,
        env: dict[str, str] | None = None,
        own_memory: bool = False,
    ) -> str:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code), encoding="utf-8")
        if env is None and not own_memory and IMPORTS_FIRST.match(textwrap.dedent(code)):
            status, out, err = _forked(request.getfixturevalue("forks"), script)
        else:
            status, out, err = _run([str(script)], env)
        assert (status != 0) == fails, err[-4000:]
        return err if fails else out

    return run


def _run(words, environment=None, folder=None):
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def _forked(forks, script, folder=".", environment=None):
    out, err = script.with_suffix(".out"), script.with_suffix(".err")
    out.write_text(""), err.write_text("")
    pid = forks(
        script=str(script),
        log=str(err),
        out=str(out),
        folder=str(folder),
        environment=environment or {},
    )
    deadline = time.monotonic() + LIMIT_S
    while (status := forks(ended=pid)) is None:
        if time.monotonic() > deadline:
            forks(kill=pid)
            raise AssertionError(f"not ended after {LIMIT_S} s: {err.read_text()[-4000:]}")
        time.sleep(0.02)
    return status, out.read_text(errors="replace"), err.read_text(errors="replace")


@pytest.fixture
def run_page_block(request, tmp_path):
    """Run a Python block of a page in a folder and a home of its own; return what it printed."""

    def run(code: str) -> str:
        script = tmp_path / "block.py"
        script.write_text(code, encoding="utf-8")
        filters = "import warnings\nwarnings.filterwarnings('error', '', UserWarning, 'tfopt')\n"
        if IMPORTS_FIRST.match(code):
            script.write_text(filters + code, encoding="utf-8")
            status, out, err = _forked(
                request.getfixturevalue("forks"), script, tmp_path, {"HOME": str(tmp_path)}
            )
        else:
            words = ["-W", "error::UserWarning:tfopt", str(script)]
            status, out, err = _run(words, {"HOME": str(tmp_path)}, tmp_path)
        assert status == 0, err[-3000:]
        return out

    return run


@pytest.fixture(scope="session")
def nvml_stand_in(tmp_path_factory):
    """Traces of GPUs that are not there, for processes of their own: see ``nvml_stand_in``.

    Called with a trace, it gives the environment in which a process has these GPUs.
    """
    if nvml_library.compiler() is None:
        pytest.skip("there is no C compiler (cc) to build the stand-in for NVIDIA's library with")
    folder = tmp_path_factory.mktemp("nvml_stand_in")
    library = nvml_library.build(folder)

    def environment(trace: str) -> dict[str, str]:
        path = folder / f"{len(list(folder.iterdir()))}.trace"
        path.write_text(nvml_library.DRIVER + trace, encoding="utf-8")
        return nvml_library.environment(library, path)

    return environment


@pytest.fixture
def played(nvml_stand_in, monkeypatch):
    """Play a trace of GPUs in this process: returns a ``nvml_stand_in.library.Played``."""
    import pynvml

    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
        monkeypatch.delenv(name, raising=False)

    def play(trace):
        environment = nvml_stand_in(trace)
        played = nvml_library.Played(environment)
        monkeypatch.setattr(pynvml, "nvmlLib", played.library)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return played

    return play
