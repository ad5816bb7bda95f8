"""Workers that do not come, and a taken port, without TensorFlow."""

import socket

import pytest
from on_workers import free_addresses

from tfopt.distribute import roll_call
from tfopt.distribute.launch.place import ClusterPlace
from tfopt.errors import UserError, WorkerMissing


def wait_for_others(addresses):
    place = ClusterPlace("worker", 0, {"worker": tuple(addresses)}, "TF_CONFIG")
    roll_call.wait_for_workers(place, 2)


def test_who_does_not_come_is_logged_and_named(monkeypatch, caplog):
    monkeypatch.setattr(roll_call, "_LATE_S", 0.5)
    own, other = free_addresses(2)
    with pytest.raises(WorkerMissing, match=f"worker 1 at {other} did not start"):
        wait_for_others([own, other])
    assert f"worker 0 at {own} waits for worker 1 at {other}" in caplog.text


def test_a_taken_port_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(UserError, match="cannot listen at its address"):
            wait_for_others([address, *free_addresses(1)])
