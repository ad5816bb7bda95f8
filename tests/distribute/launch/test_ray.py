"""A function on a real local Ray: places, results by rank, which rank failed, nothing left."""

import json
import sys

import pytest

from tfopt.distribute.launch.ray import run_on_ray
from tfopt.errors import UserError

from .conftest import wait_until

ON_RAY = """
    import json, os, time

    import ray

    import tfopt
    from tfopt.distribute.launch.ray import WorkerFailed, run_on_ray

    ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False)
    facts = {}
"""
ADDED = """
    def added(factor):
        import tensorflow as tf
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        mine = factor * (strategy.cluster_resolver.task_id + 1.0)

        @tf.function
        def step():
            replica = tf.distribute.get_replica_context
            return strategy.run(lambda: replica().all_reduce("SUM", tf.constant(mine)))

        return float(step())

    facts["added"] = run_on_ray(added, workers=2, arguments=(10,))
    print(json.dumps(facts))
"""
PLACES = """
    def place():
        from tfopt.job.cluster_place import place_in_cluster
        mine = place_in_cluster()
        return mine.rank, mine.workers, mine.address, os.getpid()

    facts["places"] = run_on_ray(place, 2)

    def one_raises():
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 1:
            raise ValueError("out of luck")
        time.sleep(600)

    def one_dies():
        if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
            os._exit(3)
        time.sleep(600)

    for name, function in (("raised", one_raises), ("died", one_dies)):
        try:
            run_on_ray(function, 2)
        except WorkerFailed as error:
            facts[name] = (error.rank, str(error))

    # All that the workers had is free again.
    ray.util.placement_group([{"CPU": 2}]).ready()
    for name, asked in (("cpus", {"workers": 3}), ("gpus", {"workers": 1, "gpus_per_worker": 1})):
        try:
            run_on_ray(place, **asked)
        except tfopt.UserError as error:
            facts[name] = str(error)

    @ray.remote(num_cpus=1)
    class Other:
        def there(self):
            return True

    other = Other.remote()
    ray.get(other.there.remote())
    try:
        run_on_ray(place, 2, patience=1)
    except tfopt.UserError as error:
        facts["busy"] = str(error)
    print(json.dumps(facts))
"""


@pytest.fixture
def on_ray(launcher):
    """Run code that prints facts; return them when nothing of it is left."""
    pytest.importorskip("ray")

    def run(code):
        status, out, err = launcher.run(
            "--workers 1 --grace 60",
            code=ON_RAY + code,
            environment={"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"},
        )
        assert status == 0, err
        wait_until(lambda: launcher.living() == [])
        (line,) = [line for line in out.splitlines() if line.startswith("[worker 0] {")]
        return json.loads(line.partition("] ")[2])

    return run


@pytest.mark.slow
def test_workers_of_tensorflow_on_ray_reach_each_other(on_ray):
    assert on_ray(ADDED)["added"] == [30.0, 30.0]


@pytest.mark.slow
def test_workers_on_a_local_ray(on_ray):
    facts = on_ray(PLACES)
    assert [(rank, workers) for rank, workers, _, _ in facts["places"]] == [(0, 2), (1, 2)]
    assert len({address for _, _, address, _ in facts["places"]}) == 2
    assert len({process for _, _, _, process in facts["places"]}) == 2
    assert facts["raised"][0] == 1
    assert "ValueError: out of luck" in facts["raised"][1]
    assert facts["died"][0] == 0
    assert facts["died"][1].startswith("worker 0 (")
    assert "Ray has too few CPUs" in facts["cpus"]
    assert "Ray has too few GPUs" in facts["gpus"]
    assert "not given 2 worker(s) their place within 1 s" in facts["busy"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((print, 0), "workers is not a count"),
        ((print, 2.5), "workers is not a count"),
    ],
)
def test_what_is_wrong_is_said_before_ray_is_asked(arguments, words):
    with pytest.raises(UserError, match=words):
        run_on_ray(*arguments)


def test_without_ray_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"tfopt\[ray\]"):
        run_on_ray(print)
