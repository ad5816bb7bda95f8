"""The roll call, in real processes on loopback, without TensorFlow."""

import json
import socket
import subprocess
import sys
import time

import pytest

WORKER = """
import json, sys, time
from tfopt.job.cluster_place import place_in_cluster
from tfopt.errors import UserError
from tfopt.distribute.roll_call import WorkerMissing, call_roll
place = place_in_cluster()
card, timeout_s, late_s = json.loads(sys.argv[1])
time.sleep(late_s)
try:
    print(json.dumps({"card": call_roll(place, card, timeout_s)}))
except UserError as error:
    print(json.dumps({"missing": isinstance(error, WorkerMissing), "error": str(error)}))
"""


def free_addresses(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]
    for s in sockets:
        s.close()
    return addresses


@pytest.fixture
def answers(tmp_path):
    """Starts workers, each with its cluster, index, card, time limit and delay; what they say."""
    started = []

    def run(*workers):
        for cluster, index, card, timeout_s, late_s in workers:
            task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", WORKER, json.dumps([card, timeout_s, late_s])],
                    env={"TF_CONFIG": json.dumps(task), "PYTHONPATH": ":".join(sys.path)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=tmp_path,
                )
            )
        told = []
        for process in started:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            told.append({**json.loads(out), "said": err})
        return told

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def test_all_get_the_chief_s_card_whoever_comes_first(answers):
    cluster = {"worker": free_addresses(3)}
    told = answers(
        (cluster, 0, {"code": "a", "_seed": 5}, 30, 0.5),
        (cluster, 1, {"code": "a", "_seed": 6}, 30, 0),
        (cluster, 2, {"code": "a", "_seed": 7}, 30, 1),
    )
    assert [each["card"]["_seed"] for each in told] == [5, 5, 5]


def test_who_does_not_come_is_named_to_those_who_have(answers):
    cluster = {"worker": free_addresses(3)}
    begun = time.monotonic()
    told = answers((cluster, 0, {}, 2, 0), (cluster, 1, {}, 2, 0))
    assert time.monotonic() - begun < 30
    for each in told:
        assert each["missing"]
        assert f"worker 2 at {cluster['worker'][2]} did not come" in each["error"]


def test_a_chief_that_does_not_come_is_named(answers):
    cluster = {"worker": free_addresses(2)}
    (told,) = answers((cluster, 1, {}, 12, 0))
    assert told["missing"]
    # While it waits it says for whom.
    where = f"worker 1 waits for worker 0 at {cluster['worker'][0]}"
    assert where in told["said"]
    assert f"worker 0 at {cluster['worker'][0]} does not answer" in told["error"]


@pytest.mark.parametrize("difference", ["cluster", "code"])
def test_who_was_started_otherwise_is_named_to_all(answers, difference):
    cluster = {"worker": free_addresses(3)}
    other = cluster
    if difference == "cluster":
        other = {"worker": [*cluster["worker"], *free_addresses(1)]}
    told = answers(
        (cluster, 0, {"code": "a"}, 30, 0.5),
        (cluster, 1, {"code": "a"}, 30, 0),
        (other, 2, {"code": "a" if difference == "cluster" else "b"}, 30, 0),
    )
    for each in told:
        assert not each["missing"]
        assert (
            f"worker 2 was started otherwise than worker 0: another {difference}" in each["error"]
        )


def test_two_with_one_index_are_told(answers):
    cluster = {"worker": free_addresses(3)}
    told = answers((cluster, 0, {}, 2, 0.5), (cluster, 1, {}, 2, 0), (cluster, 1, {}, 2, 0))
    # One of the two could not even listen at the address.
    assert sum("Two processes say" in each["error"] for each in told) >= 1 or any(
        "cannot listen" in each["error"] for each in told
    )


def test_a_taken_port_is_told(answers):
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        (told,) = answers(({"worker": [address, *free_addresses(1)]}, 0, {}, 1, 0))
    assert "cannot listen at its own address" in told["error"]


def test_wrong_addresses_of_the_chief_are_told_as_that(answers):
    """A name that nobody knows, and (RFC 5737) an address that no machine has."""
    for chief, index, words in (
        ("no-such-host.invalid:2222", 1, "worker 0 at no-such-host.invalid:2222 does not answer"),
        ("192.0.2.1:2222", 0, "192.0.2.1:2222, where they look for this one, is no address of"),
    ):
        cluster = {"worker": [chief, *free_addresses(1)]}
        *_, told = answers((cluster, index, {}, 1, 0))
        assert words in told["error"]
        if index:
            assert "no answer ([Errno" in told["error"]


def test_another_service_at_the_chief_s_address_is_told(answers):
    held = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        port = held.stdout.readline().split("port ")[1].split()[0]
        cluster = {"worker": [f"127.0.0.1:{port}", *free_addresses(1)]}
        (told,) = answers((cluster, 1, {}, 20, 0))
    finally:
        held.kill()
        held.wait()
        held.stdout.close()
    assert f"What answers at 127.0.0.1:{port} is not worker 0" in told["error"]
    assert "end the process that listens there" in told["error"]


def test_a_stranger_s_call_is_not_taken_for_a_worker(answers):
    cluster = {"worker": free_addresses(2)}
    host, port = cluster["worker"][0].split(":")
    code = (
        "import socket,sys,time\n"
        "for _ in range(100):\n"
        "    try: s=socket.create_connection((sys.argv[1],int(sys.argv[2]))); break\n"
        "    except OSError: time.sleep(.05)\n"
        "s.sendall(b'GET / HTTP/1.1\\n[1]\\n'); s.recv(10)\n"
    )
    stranger = subprocess.Popen([sys.executable, "-c", code, host, port])
    try:
        told = answers((cluster, 0, {}, 30, 0), (cluster, 1, {}, 30, 1.5))
    finally:
        stranger.kill()
        stranger.wait()
    assert all("card" in each for each in told)
