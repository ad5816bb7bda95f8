"""A block as it could have been measured on two GPUs, and workers that are no processes."""

from pathlib import Path

import fake_workers
import pytest

from tfopt.report.bench.block import Block, BlockMemory, GpuState, Timeline


@pytest.fixture
def workers(monkeypatch):
    """Answers in place of every worker process of the measuring engine."""
    made = fake_workers.Workers()
    for module in fake_workers.MODULES:
        monkeypatch.setattr(f"tfopt.measure.{module}.run_worker", made)
    return made


@pytest.fixture
def in_toy_folder(tmp_path, monkeypatch):
    """A folder of its own, where worker processes find ``toy_jobs``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return tmp_path


@pytest.fixture
def made_block():
    def make(*clocks, **changes):
        """``clocks``: the median SM clock of each GPU."""
        gpus = [made_gpu(f"GPU-{place}", clock) for place, clock in enumerate(clocks)]
        values = {
            "start_s": 4.0,
            "build_s": 0.2,
            "first_step_s": 1.0,
            "warm_up_s": 1.0,
            "windows_ms": (10.0, 20.0, 30.0),
            "steps": (4, 2, 1),
            "between_epochs_ms": (),
            "batch_size": 50,
            "examples_per_step": 50.0,
            "replicas": len(gpus) or 1,
            "memory": BlockMemory(900.0, 100.0, 90.0, 800.0, 900.0, {}),
            "gpus": tuple(gpus),
            "timeline": Timeline((0.0, 4.0), (800.0, 810.0), (), (), (), ()),
            "unavailable": {},
            "data": "toy",
            "invalid": None,
            "round": 0,
        }
        return Block(**{**values, **changes})

    return make


def made_gpu(uuid, clock):
    return GpuState(uuid, "Made", 90.0, clock, 2600.0, 60.0, 250.0, 1000.0, (), False)
