"""Workers that are no processes, a folder for those that are, and the committed benchmarks."""

import importlib
from importlib import import_module
from pathlib import Path

import fake_workers
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def workers(monkeypatch):
    """Answers in place of every worker process of the measuring engine."""
    return fake_workers.install(monkeypatch, fake_workers.Workers())


@pytest.fixture
def workers_in_process(monkeypatch):
    """Workers that carry their tasks out in this process."""
    # The system would end the tests first where memory runs out.
    monkeypatch.setattr(
        import_module("tfopt.measure.batch_size.trial"),
        "_end_first_where_memory_ends",
        lambda: None,
    )
    return fake_workers.install(monkeypatch, fake_workers.InProcess())


@pytest.fixture
def in_toy_folder(tmp_path, monkeypatch):
    """A folder of its own, where worker processes find ``toy_jobs``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return tmp_path


@pytest.fixture
def benchmark_module(monkeypatch):
    """Import a module of ``benchmarks/``, which finds its neighbours as when it is run."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module
