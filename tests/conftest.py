"""Shared by all tests: quiet TensorFlow, and fresh processes for process-wide settings."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


@pytest.fixture(scope="session", autouse=True)
def signals_are_heard():
    """A shell's background job ignores Ctrl-C, and what nohup has started a terminal that closes;
    so would every process that a test starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def fresh_python(tmp_path):
    """Runs code in a process of its own and returns what it printed.

    Device settings and the initialised TensorFlow runtime cannot be taken back in one process.
    """

    def run(code: str, *, fails: bool = False, env: dict[str, str] | None = None) -> str:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, **(env or {})},
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stderr[-4000:]
        return done.stderr if fails else done.stdout

    return run


@pytest.fixture
def stand_in_driver(monkeypatch):
    """A GPU that is not there, told by the real pynvml: see ``stand_in_driver.py``."""
    import pynvml

    path = Path(__file__).parent / "stand_in_driver.py"
    spec = importlib.util.spec_from_file_location("stand_in_driver", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    driver = module.StandInDriver()
    driver.another_gpu = module.StandInGpu
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", driver.function)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return driver
