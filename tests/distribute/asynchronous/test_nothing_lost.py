"""Counts, sums and statistics of two workers on one ps come out as if there had been one worker.

The variables are on two ps.
"""

import keras
import numpy as np
import pytest

from .conftest import clusters

pytestmark = [pytest.mark.slow, pytest.mark.versions]


STEPS = 200  # an epoch's: 1,600 examples in batches of 8


@pytest.fixture(scope="module")
def facts(forks, tmp_path_factory):
    """One cluster that trains many models; what its chief has noted of each."""
    with clusters(forks, tmp_path_factory.mktemp("parts")) as cluster_of:
        cluster = cluster_of("parts.py", ps=2)
        cluster.start("ps 0", "ps 1", "worker 0", "worker 1", "chief 0")
        assert cluster.status("chief 0") == 0, cluster.logs()
        return {each.pop("name"): each for each in cluster.facts()}


def test_every_step_is_counted_and_every_example(facts):
    everything = facts["everything"]
    assert everything["iterations"] == 3 * STEPS
    assert everything["seen"] == [1600.0] * 3
    assert everything["steps_repeated"] == [0] * 3
    # One drawing of dropout's random numbers a step.
    assert everything["draws"] == 3 * STEPS


def test_a_pointer_stays_in_its_ring_and_a_flag_is_one(facts):
    everything = facts["everything"]
    assert 0 <= everything["pointer"] < 3
    assert everything["begun"] is True


def test_moving_statistics_follow_and_constraints_hold(facts):
    everything = facts["everything"]
    assert np.allclose(everything["moving_mean"], everything["mean"], atol=0.5)
    assert np.max(everything["norms"]) <= 0.7 + 1e-5
    assert everything["accuracy"][-1] > 0.75


def test_staleness_is_measured_and_keeps_its_bound(facts):
    # Two workers that wait for nobody: some gradients are one step old, or a few.
    everything = facts["everything"]
    assert 0 < max(everything["staleness_mean"]) <= max(everything["staleness_max"])
    assert facts["bound 0"]["staleness_max"] == [0]
    assert facts["bound 2"]["staleness_max"][0] <= 2


def test_two_optimizers_of_a_gan_count_alike_and_come_back(facts):
    gan = facts["adversaries"]
    assert [gan["d_iterations"], gan["g_iterations"]] == [16, 16]  # 64 examples in batches of 8
    assert gan["steps_repeated"] == [0, 0]
    assert max(gan["staleness_max"]) >= min(gan["staleness_mean"]) >= 0
    assert gan["moved"] > 0
    assert np.isfinite([*gan["d"], *gan["g"]]).all()


def test_every_optimizer_counts_and_learns(facts):
    optimizers = {name: each for name, each in facts.items() if name.startswith("optimizer")}
    assert len(optimizers) == 3 + hasattr(keras.optimizers, "Muon")
    for name, each in optimizers.items():
        assert each["iterations"] == 160, name
        assert each["loss"][1] < each["loss"][0], name
