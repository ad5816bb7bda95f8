"""SIGKILL at random moments: the training that goes on ends as one that was never killed.

``benchmarks/kill_and_resume.py`` does the same over more kinds of training, and more often.
"""

import importlib.util
import random
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "kill_and_resume.py"
spec = importlib.util.spec_from_file_location("kill_and_resume", SCRIPT)
kill_and_resume = importlib.util.module_from_spec(spec)
spec.loader.exec_module(kill_and_resume)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", "two_replicas", "pruned", "two_workers_of_two_replicas"])
def test_nothing_is_lost(kind, tmp_path):
    expected, _, seconds = kill_and_resume.launched(kind, tmp_path / "undisturbed")
    # A machine that has become faster meanwhile is done before it is killed: then sooner.
    for share in (0.6, 0.3, 0.15):
        found, killed, _ = kill_and_resume.launched(
            kind, tmp_path / f"killed-{share}", 2, share * seconds, random.Random(0)
        )
        assert found == expected
        if killed:
            break
    assert killed
