"""The roll call on loopback: a thread for each worker, without TensorFlow."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from on_workers import free_addresses

from tfopt.distribute import roll_call
from tfopt.errors import UserError, WorkerMissing
from tfopt.job.cluster_place import ClusterPlace


def answer(addresses, index, card=None, timeout_s=60, late_s=0):
    """Return the chief's card, or the error, of one worker."""
    time.sleep(late_s)
    place = ClusterPlace("worker", index, {"worker": tuple(addresses)}, "TF_CONFIG")
    try:
        return roll_call.call_roll(place, card or {}, timeout_s)
    except UserError as error:
        return error


def answers(*workers):
    with ThreadPoolExecutor(len(workers)) as threads:
        return [each.result() for each in [threads.submit(answer, *given) for given in workers]]


def test_all_get_the_chief_s_card_whoever_comes_first():
    addresses = free_addresses(3)
    cards = answers(
        (addresses, 0, {"code": "a", "_seed": 5}, 60, 0.3),
        (addresses, 1, {"code": "a", "_seed": 6}),
        (addresses, 2, {"code": "a", "_seed": 7}, 60, 0.6),
    )
    assert [each["_seed"] for each in cards] == [5, 5, 5]


def test_who_does_not_come_is_named_to_those_who_have():
    addresses = free_addresses(3)
    for error in answers((addresses, 0, {}, 2), (addresses, 1, {}, 2)):
        assert isinstance(error, WorkerMissing)
        assert f"worker 2 at {addresses[2]} did not come" in str(error)


def test_a_chief_that_does_not_come_is_named(monkeypatch, caplog):
    monkeypatch.setattr(roll_call, "_FIRST_S", 0.1)
    addresses = free_addresses(2)
    error = answer(addresses, 1, timeout_s=1)
    assert isinstance(error, WorkerMissing)
    assert f"worker 0 at {addresses[0]} does not answer" in str(error)
    # While it waits it says for whom.
    assert f"worker 1 waits for worker 0 at {addresses[0]}" in caplog.text


@pytest.mark.parametrize("difference", ["cluster", "code"])
def test_who_was_started_otherwise_is_named_to_all(difference):
    addresses = free_addresses(3)
    other = (addresses, 2, {"code": "b"})
    if difference == "cluster":
        other = ([*addresses, *free_addresses(1)], 2, {"code": "a"})
    for error in answers((addresses, 0, {"code": "a"}), (addresses, 1, {"code": "a"}), other):
        assert not isinstance(error, WorkerMissing)
        words = f"worker 2 was started otherwise than worker 0: another {difference}"
        assert words in str(error)


def connected(address):
    """Return a connection to who will listen there."""
    host, port = address.split(":")
    while True:
        try:
            return socket.create_connection((host, int(port)))
        except OSError:
            time.sleep(0.02)


def test_two_with_one_index_are_an_error():
    addresses = free_addresses(3)
    card = {"task": "worker 1", "cluster": {"worker": addresses}}
    with ThreadPoolExecutor() as threads:
        first, second = (threads.submit(answer, addresses, rank, {}, 2) for rank in (0, 1))
        with connected(addresses[0]) as again:
            again.sendall(json.dumps(card).encode() + b"\n")
            for error in (first.result(), second.result()):
                assert "Two processes say that they are worker 1" in str(error)


def test_a_stranger_s_call_is_not_taken_for_a_worker():
    addresses = free_addresses(2)
    with ThreadPoolExecutor() as threads:
        chief = threads.submit(answer, addresses, 0)
        with connected(addresses[0]) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\n[1]\n")
            stranger.recv(10)
        assert answer(addresses, 1) == chief.result()
        assert chief.result()["task"] == "worker 0"


def test_a_taken_port_is_an_error():
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
        error = answer([address, *free_addresses(1)], 0)
    assert "cannot listen at its own address" in str(error)


@pytest.mark.parametrize(
    ("chief", "index", "words"),
    [
        # A name that nobody knows, and (RFC 5737) an address that no machine has.
        ("no-such-host.invalid:2222", 1, "worker 0 at no-such-host.invalid:2222 does not answer"),
        ("192.0.2.1:2222", 0, "whether 192.0.2.1:2222 is the chief's right address"),
    ],
)
def test_wrong_addresses_of_the_chief_are_named(chief, index, words):
    error = str(answer([chief, *free_addresses(1)], index, timeout_s=1))
    assert words in error
    assert index == 0 or "no answer ([Errno" in error


@contextmanager
def another_service():
    """Answer one caller as a web server does; yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            line, _ = server.accept()
            with line:
                line.recv(4096)
                line.sendall(b"HTTP/1.0 400 Bad request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_another_service_at_the_chief_s_address_is_named():
    with another_service() as address:
        error = str(answer([address, *free_addresses(1)], 1))
    assert f"What answers at {address} is not worker 0" in error
    assert "end the process that listens there" in error
