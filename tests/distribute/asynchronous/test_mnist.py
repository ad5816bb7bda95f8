"""Real digits on two workers and a ps: as accurate as in one process."""

import pytest


@pytest.mark.slow
def test_the_accuracy_is_near_that_of_one_process(cluster_of):
    cluster = cluster_of("mnist.py")
    cluster.start("ps 0", "worker 0", "worker 1", "chief 0")
    assert {cluster.status(task) for task in cluster.pids} == {0}, cluster.logs()
    assert not [task for task in cluster.pids if "Traceback" in cluster.text(task)]
    (facts,) = cluster.facts()
    history = facts["history"]
    # Measured with 5 epochs: 0.957 and 0.956 (two cores, TensorFlow 2.21, Keras 3.15.1, 2026-11-22).
    assert facts["again"] > 0.93
    assert facts["again"] > facts["alone"] - 0.02
    assert facts["iterations"] == 200 * len(history["loss"])
    for worker in (0, 1):
        assert max(history[f"examples_per_s_worker_{worker}"]) > 0
    assert history["loss"][-1] < history["loss"][0]
