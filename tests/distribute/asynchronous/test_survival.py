"""Workers that die and come back; a ps or a chief that is lost. Real signals."""

import os
import signal

import pytest

STEPS = 200  # an epoch's: 1,600 examples in batches of 8


def epochs(cluster):
    return [each for each in cluster.facts() if "epoch" in each]


def wait_for_work_of(cluster, *workers):
    """Until these and no others have trained a whole epoch that began from now on."""
    begun = len(epochs(cluster)) + 1

    def such():
        return any(
            (each["examples_per_s_worker_0"] > 0) == (0 in workers)
            and (each["examples_per_s_worker_1"] > 0) == (1 in workers)
            for each in epochs(cluster)[begun:]
        )

    cluster.until(such, f"an epoch by {workers}")


@pytest.mark.slow
def test_workers_die_and_come_back_and_no_step_is_lost(cluster_of):
    cluster = cluster_of("until_stopped.py")
    cluster.start("ps 0", "worker 0", "worker 1", "chief 0")
    wait_for_work_of(cluster, 0, 1)
    cluster.kill("worker 0")
    assert cluster.status("worker 0") == -9
    wait_for_work_of(cluster, 1)
    cluster.start("worker 0")
    wait_for_work_of(cluster, 0, 1)
    (cluster.folder / "stop").touch()
    statuses = {task: cluster.status(task) for task in cluster.pids}
    assert set(statuses.values()) == {0}, cluster.logs()
    done = epochs(cluster)
    (last,) = [each for each in cluster.facts() if "iterations" in each]
    assert last["epochs"] == len(done)
    # At least once: a step of the killed worker may have been applied and done again.
    repeated = sum(each["steps_repeated"] for each in done)
    assert 0 <= repeated <= 1
    assert last["iterations"] == STEPS * len(done) + repeated
    assert done[-1]["accuracy"] > 0.9


@pytest.mark.slow
def test_a_lost_ps_ends_every_task_and_is_named_and_what_was_kept_is_gone_on_from(cluster_of):
    cluster = cluster_of("until_stopped.py")
    cluster.start("ps 0", "worker 0", "worker 1", "chief 0")
    cluster.until(lambda: len(epochs(cluster)) >= 3, "three epochs")
    cluster.kill("ps 0")
    lost = f"A parameter server was lost, with its weights: ps 0 at {cluster.addresses['ps'][0]}"
    for task in ("chief 0", "worker 0", "worker 1"):
        assert cluster.status(task) == 1
        text = cluster.text(task)
        # TensorFlow may hold the chief back from telling: then the others see it end.
        if task == "chief 0" or "is lost" not in text:
            assert lost in text
            assert "it resumes after its last finished epoch" in text
    before = len(epochs(cluster))
    (cluster.folder / "stop").touch()
    cluster.start("ps 0", "worker 0", "worker 1", "chief 0")
    assert {cluster.status(task) for task in cluster.pids} == {0}, cluster.logs()
    (last,) = [each for each in cluster.facts() if "iterations" in each]
    assert last["epochs"] == 1
    assert epochs(cluster)[-1]["epoch"] >= before - 1
    assert last["iterations"] == STEPS * (epochs(cluster)[-1]["epoch"] + 1)
    assert epochs(cluster)[-1]["accuracy"] > 0.8


@pytest.mark.slow
def test_without_their_chief_ps_and_workers_end(cluster_of):
    cluster = cluster_of("until_stopped.py", workers=1)
    cluster.start("ps 0", "worker 0", "chief 0")
    cluster.until(lambda: len(epochs(cluster)) >= 1, "an epoch")
    cluster.kill("chief 0")
    for task in ("ps 0", "worker 0"):
        assert cluster.status(task) == 1
        assert f"The chief at {cluster.addresses['chief'][0]} is lost" in cluster.text(task)


@pytest.mark.slow
def test_a_worker_that_stands_still_is_an_error_when_patience_is_over(cluster_of):
    cluster = cluster_of("until_stopped.py", workers=1, PATIENCE_S="20")
    cluster.start("ps 0", "worker 0", "chief 0")
    cluster.until(lambda: len(epochs(cluster)) >= 1, "an epoch")
    os.kill(cluster.pids["worker 0"], signal.SIGSTOP)
    assert cluster.status("chief 0") == 1
    assert "No worker has finished a step for 20 s" in cluster.text("chief 0")
    assert "it resumes after its last finished epoch" in cluster.text("chief 0")
    assert cluster.status("ps 0") == 1
    assert "No worker has finished a step for 20 s" in cluster.text("ps 0")
