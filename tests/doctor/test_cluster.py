"""Doctors that meet over real sockets on loopback, and what is said of who does not answer."""

import json
import socket
import threading
import time
from contextlib import suppress

import pytest

from tfopt.doctor import cluster_checks as cluster
from tfopt.doctor.check import Subject
from tfopt.doctor.cluster_checks import meet


@pytest.fixture
def free_ports():
    """Ports that nobody listens at, held until the test begins."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


def told_of(addresses, index=0, listen_s=0.0):
    config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    subject = Subject(environment={"TF_CONFIG": json.dumps(config)}, listen_s=listen_s)
    return {check.name: check for check in cluster.cluster(subject)}


def answering(reply):
    """A server that reads a line or two and says something, once."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        with server, suppress(OSError):
            client, _ = server.accept()
            with client:
                client.recv(100)
                client.sendall(reply())

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_one_process_has_no_cluster():
    (check,) = cluster.cluster(Subject(environment={}))
    assert check.verdict == "not here"


def test_a_wrong_tf_config_is_a_failure_with_its_fix():
    (check,) = cluster.cluster(Subject(environment={"TF_CONFIG": "{broken"}))
    assert check.verdict == "failure"
    assert "mend TF_CONFIG" in check.fix
    assert any(each.startswith("expected:") for each in check.evidence)


def test_doctors_that_run_at_the_same_time_compare_clocks(free_ports):
    addresses = [f"127.0.0.1:{port}" for port in free_ports]
    found = {}

    def run(index):
        # They do not come at the same moment.
        time.sleep(0.3 * index)
        found[index] = told_of(addresses, index, listen_s=30.0)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert time.monotonic() - begun < 25, "they wait no longer than until all have answered"
    for checks in found.values():
        assert checks["own port"].verdict == "ok"
        assert checks["other tasks"].told == "all 2 other tasks can be reached"
        assert checks["clocks of tasks"].verdict == "ok"
        assert len(checks["clocks of tasks"].evidence) == 2


def test_a_clock_that_is_ahead_is_named(free_ports):
    ahead = answering(lambda: json.dumps({"time": time.time() + 90}).encode() + b"\n")
    checks = told_of([f"127.0.0.1:{free_ports[0]}", ahead])
    assert checks["clocks of tasks"].verdict == "warning"
    assert "worker 1" in checks["clocks of tasks"].told
    assert (
        "+90.0" in checks["clocks of tasks"].evidence[0]
        or "+89.9" in checks["clocks of tasks"].evidence[0]
    )


def test_who_listens_and_is_no_doctor_is_reached_and_tells_no_time(free_ports):
    other = answering(lambda: b"\x00\x00\x12\x04 HTTP/2 perhaps\n")
    checks = told_of([f"127.0.0.1:{free_ports[0]}", other])
    assert checks["other tasks"].verdict == "ok"
    assert "no doctor" in checks["other tasks"].evidence[0]
    assert checks["clocks of tasks"].verdict == "not here"


def test_who_cannot_be_reached_is_named(free_ports):
    addresses = [f"127.0.0.1:{free_ports[0]}", f"127.0.0.1:{free_ports[1]}", "no-host.invalid:2222"]
    checks = told_of(addresses)
    assert checks["other tasks"].verdict == "failure"
    assert checks["other tasks"].told == "worker 2 (no-host.invalid:2222) cannot be reached"
    # A port that nobody listens at yet is what there is before a training.
    checks = told_of(addresses[:2])
    assert checks["other tasks"].verdict == "ok"
    assert "nobody listens yet as worker 1" in checks["other tasks"].told


def test_a_port_of_its_own_that_is_taken(free_ports):
    with socket.create_server(("127.0.0.1", free_ports[0])):
        checks = told_of([f"127.0.0.1:{port}" for port in free_ports[:2]])
    assert checks["own port"].verdict == "failure"
    assert "in use" in checks["own port"].told


def test_a_port_that_linux_gives_out_is_told(free_ports, tmp_path):
    (tmp_path / "proc/sys/net/ipv4").mkdir(parents=True)
    (tmp_path / "proc/sys/net/ipv4/ip_local_port_range").write_text("1024\t65535\n")
    config = {
        "cluster": {"worker": [f"127.0.0.1:{port}" for port in free_ports[:2]]},
        "task": {"type": "worker", "index": 0},
    }
    subject = Subject(root=tmp_path, environment={"TF_CONFIG": json.dumps(config)})
    own = {check.name: check for check in cluster.cluster(subject)}["own port"]
    assert own.verdict == "ok"
    assert "1024 to 65535" in own.evidence[0]


def test_sockets_are_free_again_at_once(free_ports):
    own = f"127.0.0.1:{free_ports[0]}"
    for _ in range(2):
        assert meet(own, {}, 0.0).not_listening is None


def test_the_own_clock_says_something_on_every_machine():
    (check,) = cluster.own_clock(Subject(environment={}))
    assert check.verdict in ("ok", "not here")
