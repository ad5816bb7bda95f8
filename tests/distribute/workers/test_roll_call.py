"""The roll call on loopback: a thread for each worker, without TensorFlow."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

from on_workers import free_addresses

from tfopt.distribute import roll_call
from tfopt.distribute.launch.place import ClusterPlace
from tfopt.errors import UserError, WorkerMissing


def answer(addresses, index, timeout_s=60, late_s=0):
    """Return the error of one worker; None where all were there."""
    time.sleep(late_s)
    place = ClusterPlace("worker", index, {"worker": tuple(addresses)}, "TF_CONFIG")
    try:
        roll_call.wait_for_workers(place, timeout_s)
    except UserError as error:
        return error
    # TensorFlow's server, which answers those that come to see later.
    host, port = place.address.split(":")
    with socket.create_server((host, int(port))):
        time.sleep(1)
    return None


def answers(*given):
    with ThreadPoolExecutor(len(given)) as threads:
        return [each.result() for each in [threads.submit(answer, *each) for each in given]]


def test_all_meet_whoever_comes_first():
    addresses = free_addresses(3)
    assert answers((addresses, 0, 60, 0.3), (addresses, 1), (addresses, 2, 60, 0.6)) == [None] * 3


def test_who_does_not_come_is_logged_and_named_to_those_who_have(monkeypatch, caplog):
    monkeypatch.setattr(roll_call, "_LATE_S", 0.5)
    addresses = free_addresses(3)
    for error in answers((addresses, 0, 2), (addresses, 1, 2)):
        assert isinstance(error, WorkerMissing)
        assert f"worker 2 at {addresses[2]} did not start" in str(error)
    assert f"worker 1 at {addresses[1]} waits for worker 2 at {addresses[2]}" in caplog.text


def test_a_taken_port_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        error = answer([address, *free_addresses(1)], 0)
    assert "cannot listen at its address" in str(error)
