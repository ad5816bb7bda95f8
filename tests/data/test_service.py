"""A data service: each example once an epoch, new orders, refusals; and what a lost worker costs."""

import logging
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt.data import PipelineOptions, TFRecord
from tfopt.data.service import VARIABLE, serve, started
from tfopt.errors import UserError

FILES, EACH = 8, 32
ROWS = FILES * EACH


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """TFRecord files of numbered examples."""
    folder = tmp_path_factory.mktemp("records")
    for part in range(FILES):
        with tf.io.TFRecordWriter(str(folder / f"{part}.tfrecord")) as writer:
            for number in range(part * EACH, (part + 1) * EACH):
                value = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
                example = tf.train.Example(features=tf.train.Features(feature={"id": value}))
                writer.write(example.SerializeToString())
    return TFRecord(folder, features="id", examples=ROWS)


@pytest.fixture(scope="module")
def address():
    """A dispatcher and two data workers in this process."""
    service = tf.data.experimental.service
    dispatcher = service.DispatchServer()
    at = dispatcher.target.partition("://")[2]
    workers = [service.WorkerServer(service.WorkerConfig(dispatcher_address=at)) for _ in range(2)]
    yield dispatcher.target
    del workers


def numbers(dataset):
    return np.concatenate(list(dataset)).tolist()


def test_each_example_comes_once_an_epoch_in_whole_batches_and_new_orders(records, address):
    data = tfopt.pipeline(records, batch_size=50, service=address, map_batch=lambda x: x + 1)
    epochs = [numbers(data) for _ in range(3)]
    assert all(sorted(epoch) == list(range(1, ROWS + 1)) for epoch in epochs)
    assert int(data.cardinality()) == 6
    assert [len(batch) for batch in data] == [50] * 5 + [6]
    places = [np.argsort(epoch) for epoch in epochs]
    for one, other in ((0, 1), (1, 2)):
        correlation = np.corrcoef(places[one], places[other])[0, 1]
        assert abs(correlation) < 0.5, (one, other, correlation)


def test_fit_and_schedules_know_its_length(records, address):
    data = tfopt.pipeline(records, batch_size=50, service=address)
    data = data.map(lambda x: (tf.cast(x, tf.float32)[:, None], tf.cast(x, tf.float32)))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(data, epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2
    assert int(data.cardinality()) == 6


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a: tfopt.pipeline((np.ones((4, 1)), np.ones(4)), service=a), "in this process's"),
        (lambda a: tfopt.pipeline(lambda: iter([np.ones((4, 1))]), service=a), "runs Python"),
        (lambda a: tfopt.pipeline("x.tfrecord", service="localhost:1"), "no address"),
        (lambda a: tfopt.pipeline("x.tfrecord", service=a, cache="memory"), "cache='memory'"),
        (lambda a: tfopt.pipeline("x.tfrecord", service=a, shuffle=False), "shuffle=False"),
        (lambda a: tfopt.Pipeline(service="here"), "no address"),
    ],
)
def test_what_cannot_be_served_is_refused(address, call, said):
    with pytest.raises(UserError, match=said):
        call(address)


def test_a_service_that_is_not_there_and_several_workers_are_refused(records, address, monkeypatch):
    with pytest.raises(UserError, match="No data service answers"):
        tfopt.pipeline(records, service="grpc://localhost:9")
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UserError, match="no such variable"):
        tfopt.pipeline(records, service="auto")
    monkeypatch.setenv(VARIABLE, address)
    assert sorted(numbers(tfopt.pipeline(records, batch_size=64, service="auto")))[:2] == [0, 1]
    cluster = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    monkeypatch.setenv("TF_CONFIG", cluster)
    with pytest.raises(UserError, match="one training process"):
        tfopt.pipeline(records, service=address)


def test_serving_without_a_dispatcher_or_a_port_is_refused(address):
    with pytest.raises(UserError, match="No data service answers at grpc://localhost:9"):
        serve(1, join="grpc://localhost:9")
    with pytest.raises(UserError, match="no address"):
        serve(1, join="localhost:9")
    with pytest.raises(UserError, match="cannot listen on port"):
        serve(0, port=int(address.rpartition(":")[2]))


def test_resume_refuses_an_order_that_cannot_come_back(records, address, tmp_path):
    data = tfopt.pipeline(records, batch_size=50, service=address)
    model = keras.Sequential([keras.Input(()), keras.layers.Reshape((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(UserError, match="another order"):
        model.fit(
            data.map(lambda x: (tf.cast(x, tf.float32), tf.cast(x, tf.float32))),
            callbacks=[tfopt.resume(tmp_path)],
            shuffle=False,
            verbose=0,
        )


def slowly(x):
    """Return it after some ten milliseconds."""
    (turned,) = tf.while_loop(
        lambda m: True, lambda m: (tf.tanh(m @ m),), (tf.eye(64),), maximum_iterations=400
    )
    return x + tf.cast(0 * turned[0, 0], x.dtype)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_examples_which_is_said(records, caplog):
    with started(2) as address:
        little = PipelineOptions(buffer=8)  # what comes is trained at once
        data = tfopt.pipeline(records, batch_size=16, service=address, map=slowly, options=little)
        assert sorted(numbers(data)) == list(range(ROWS))
        workers = subprocess.check_output(["pgrep", "-f", f"tfopt.data.service work {address}"])
        seen = []
        with caplog.at_level(logging.WARNING, "tfopt"):
            for number, batch in enumerate(data):
                seen += batch.numpy().tolist()
                if number == 1:
                    os.kill(int(workers.split()[0]), signal.SIGKILL)
        assert len(seen) == ROWS
        (lost,) = map(int, re.findall(r"was lost with (\d+) of 256 examples", caplog.text))
        assert lost > 0
        assert ROWS - lost <= len(set(seen)) <= ROWS
        assert sorted(numbers(data)) == list(range(ROWS))
    with pytest.raises(UserError, match="No data service answers"):
        tfopt.pipeline(records, service=address)


@contextmanager
def command(*arguments):
    """Run ``tfopt launch --data-workers`` until the block ends; yield the address that it prints."""
    words = [sys.executable, "-m", "tfopt", "launch", *arguments]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


@pytest.mark.slow
def test_workers_of_another_host_join_the_dispatcher_at_its_port(records):
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    here = ("--host", "localhost", "--data-workers")
    with command(*here, "0", "--port", str(port)) as address:
        assert address == f"grpc://localhost:{port}"
        with command(*here, "2", "--join", address) as joined:
            assert joined == address
            data = tfopt.pipeline(records, batch_size=50, service=address)
            assert sorted(numbers(data)) == list(range(ROWS))
    with pytest.raises(UserError, match="No data service answers"):
        tfopt.pipeline(records, service=address)


TRAINED = """
import sys
import tfopt
from tfopt.data import PipelineOptions, TFRecord
source = TFRecord(sys.argv[1], features="id", examples=256)
print("rows", sum(len(batch) for batch in tfopt.pipeline(source, batch_size=16, service="auto")))
"""


@pytest.mark.slow
def test_launch_starts_it_beside_the_training(records, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(TRAINED, encoding="utf-8")
    command = ["launch", "--workers", "1", "--data-workers", "2", "--"]
    done = subprocess.run(
        [sys.executable, "-m", "tfopt", *command, sys.executable, script, records.path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "[worker 0] rows 256" in done.stdout
    assert "2 data workers serve at grpc://localhost:" in done.stderr
