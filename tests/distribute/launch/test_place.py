"""Who a process is in its cluster: TF_CONFIG and Slurm read as they are, or one error."""

import json

import pytest

from tfopt.distribute.launch.place import hosts_of, place_in_cluster
from tfopt.errors import UserError

TWO = {"worker": ["a:2222", "b:2222"]}


def tf_config(cluster, kind="worker", index=0):
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


def srun(**changed):
    return {
        "SLURM_JOB_ID": "71",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "2",
        "SLURM_NTASKS": "3",
        "SLURM_NODEID": "1",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "node[9-10]",
        "SLURM_STEP_TASKS_PER_NODE": "2,1",
    } | changed


def test_the_place_among_workers_alone_and_no_place():
    for given in ({}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}):
        assert place_in_cluster(given) is None
    first = place_in_cluster(tf_config(TWO))
    second = place_in_cluster(tf_config(TWO, index="1"))
    assert (first.workers, first.is_chief, first.rank, first.address) == (2, True, 0, "a:2222")
    assert (second.index, second.is_chief, second.rank, second.address) == (1, False, 1, "b:2222")
    assert second.source == "TF_CONFIG"
    assert place_in_cluster({"TF_CONFIG": second.tf_config}) == second
    assert place_in_cluster(tf_config({"worker": ["[::1]:2222", "[::1]:2223"]})).workers == 2


def test_a_parameter_server_job_has_one_rank_for_each_task():
    cluster = {"ps": ["p:1"], "chief": ["c:1"], **TWO}
    places = [
        place_in_cluster(tf_config(cluster, *task))
        for task in (("chief", 0), ("worker", 0), ("worker", 1), ("ps", 0))
    ]
    assert [place.rank for place in places] == [0, 1, 2, 3]
    assert [place.is_chief for place in places] == [True, False, False, False]
    assert {place.workers for place in places} == {3}
    assert places[-1].cluster == {"chief": ("c:1",), "worker": ("a:2222", "b:2222"), "ps": ("p:1",)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"TF_CONFIG": '{"cluster": '}, "not a JSON object"),
        ({"TF_CONFIG": '{"task": {"type": "worker", "index": 0}}'}, "KeyError: 'cluster'"),
        (tf_config({}), "has no tasks"),
        (tf_config(TWO, index=2), "index below 2"),
        (tf_config(TWO, index=None), "with its index"),
        (tf_config(TWO, kind="ps"), '"ps" in cluster'),
        (tf_config(TWO, kind="evaluator"), "not one of chief, worker, ps"),
        (tf_config({"worker": ["a", "b:1"]}), "host:port"),
        (tf_config({"worker": ["a:70000"]}), "host:port"),
        (tf_config({"worker": ["grpc://a:2222"]}), "without http"),
        (tf_config({"worker": {"0": "a:1"}}), "not a list"),
        (tf_config({**TWO, "ps": ["b:2222"]}), "two tasks the same address"),
    ],
)
def test_a_wrong_tf_config_is_one_error(given, words):
    with pytest.raises(UserError) as error:
        place_in_cluster(given)
    assert words in str(error.value)


def test_slurms_tasks_are_workers_in_slurms_order():
    place = place_in_cluster(srun())
    assert (place.kind, place.index, place.source) == ("worker", 2, "Slurm")
    # TensorFlow's own resolver sorts node10 before node9, and so gives task 2 node9's address.
    hosts = [address.partition(":")[0] for address in place.cluster["worker"]]
    assert hosts == ["node9", "node9", "node10"]
    ports = {address.partition(":")[2] for address in place.cluster["worker"][:2]}
    assert len(ports) == 2
    assert place.address.startswith("node10:")


def test_slurms_ports_differ_by_job_and_one_task_or_a_batch_script_is_no_cluster():
    port = [
        place_in_cluster(srun(**changed)).address
        for changed in ({}, {"SLURM_JOB_ID": "72"}, {"SLURM_STEP_ID": "1"})
    ]
    assert len(set(port)) == 3
    for changed in ({"SLURM_NTASKS": "1"}, {"SLURM_STEP_NUM_TASKS": "1"}):
        assert place_in_cluster(srun(**changed)) is None
    batch = srun()
    del batch["SLURM_STEP_NODELIST"]
    assert place_in_cluster(batch) is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"SLURM_PROCID": "3"}, "contradict each other"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2"}, "contradict each other"),
        ({"SLURM_STEP_TASKS_PER_NODE": "2;1"}, "contradict each other"),
        ({"SLURM_LOCALID": "1"}, "--distribution=block"),
        (
            {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_DISTRIBUTION": "cyclic:block"},
            "'cyclic'",
        ),
    ],
)
def test_wrong_slurm_variables_are_one_error(changed, words):
    with pytest.raises(UserError) as error:
        place_in_cluster(srun(**changed))
    assert words in str(error.value)


def test_slurms_short_forms_of_lists_of_nodes():
    for hostlist, hosts in (
        ("node[01-03,7],gpu2", "node01 node02 node03 node7 gpu2"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("rack[1-2]n[3-4]", "rack1n3 rack1n4 rack2n3 rack2n4"),
        ("n[1,2]-ib,login", "n1-ib n2-ib login"),
    ):
        assert hosts_of(hostlist) == hosts.split()
