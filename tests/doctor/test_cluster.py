"""Doctors that ask each other over real sockets on loopback."""

import json
import socket
import threading

from on_workers import free_addresses

from tfopt.doctor import cluster_checks as cluster
from tfopt.doctor.check import Subject


def checks_of(addresses, index=0, listen_s=0.0):
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    subject = Subject(environment={"TF_CONFIG": json.dumps(config)}, listen_s=listen_s)
    return {check.name: check for check in cluster.cluster(subject)}


def test_one_process_has_no_cluster_and_a_wrong_tf_config_is_a_failure():
    (check,) = cluster.cluster(Subject(environment={}))
    assert check.verdict == "not here"
    (check,) = cluster.cluster(Subject(environment={"TF_CONFIG": "{broken"}))
    assert check.verdict == "failure"
    assert "correct TF_CONFIG" in check.fix
    assert any(each.startswith("expected:") for each in check.evidence)


def test_doctors_that_run_at_the_same_time_reach_each_other():
    addresses, found = free_addresses(3), {}

    def run(index):
        found[index] = checks_of(addresses, index, listen_s=3600.0)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for checks in found.values():
        assert checks["own port"].verdict == "ok"
        assert checks["other tasks"].message == "all 2 other tasks can be reached"


def test_who_cannot_be_reached_is_named():
    addresses = [*free_addresses(2), "no-host.invalid:2222"]
    checks = checks_of(addresses)
    assert checks["other tasks"].verdict == "failure"
    assert checks["other tasks"].message == "worker 2 (no-host.invalid:2222) cannot be reached"
    # A port that nobody listens at yet is what there is before a training.
    checks = checks_of(addresses[:2])
    assert checks["other tasks"].verdict == "ok"
    assert "worker 1 does not listen yet" in checks["other tasks"].message


def test_a_port_of_its_own_that_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as held:
        checks = checks_of([f"127.0.0.1:{held.getsockname()[1]}", *free_addresses(1)])
    assert checks["own port"].verdict == "failure"
    assert "in use" in checks["own port"].evidence[1]
