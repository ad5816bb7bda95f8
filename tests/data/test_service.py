"""A data service: each example once an epoch, in new orders; what cannot be served is refused."""

import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt.data import TFRecord
from tfopt.data.service import serving
from tfopt.distribute.shards import with_policy
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
    with serving(2, host="localhost") as at:
        yield at


def numbers(dataset):
    return np.concatenate(list(dataset)).tolist()


def test_each_example_comes_once_an_epoch_in_whole_batches_and_new_orders(records, address):
    data = tfopt.pipeline(records, batch_size=50, service=address, map_batch=lambda x: x + 1)
    epochs = [numbers(data) for _ in range(3)]
    assert all(sorted(epoch) == list(range(1, ROWS + 1)) for epoch in epochs)
    assert int(data.cardinality()) == 6
    assert [len(batch) for batch in data] == [50] * 5 + [6]
    whole = tfopt.data.PipelineOptions(drop_remainder=True)
    even = tfopt.pipeline(records, batch_size=50, service=address, options=whole)
    assert [len(batch) for batch in even] == [50] * 5
    places = [np.argsort(epoch) for epoch in epochs]
    for one, other in ((0, 1), (1, 2)):
        correlation = np.corrcoef(places[one], places[other])[0, 1]
        assert abs(correlation) < 0.5, (one, other, correlation)


def test_fit_knows_its_length_and_resume_refuses_its_order(records, address, tmp_path):
    data = tfopt.pipeline(records, batch_size=50, service=address)
    data = data.map(lambda x: (tf.cast(x, tf.float32)[:, None], tf.cast(x, tf.float32)))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(data, epochs=2, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == 12
    with pytest.raises(UserError, match="order of this dataset cannot be reproduced"):
        model.fit(data, callbacks=[tfopt.resume(tmp_path)], shuffle=False, verbose=0)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a: tfopt.pipeline((np.ones((4, 1)), np.ones(4)), service=a), "in this process's"),
        (lambda a: tfopt.pipeline("x.tfrecord", service="localhost:1"), "not the address"),
        (lambda a: tfopt.pipeline("x.tfrecord", service=a, cache="memory"), "cache='memory'"),
        (lambda a: tfopt.pipeline("x.tfrecord", service=a, shuffle=False), "shuffle=False"),
        (lambda a: tfopt.Pipeline(service="auto"), "not the address"),
    ],
)
def test_what_cannot_be_served_is_refused(address, call, said):
    with pytest.raises(UserError, match=said):
        call(address)


def test_a_service_that_is_not_there_a_taken_port_and_several_workers(records, address):
    with pytest.raises(UserError, match="No data service answers at grpc://localhost:9"):
        tfopt.pipeline(records, service="grpc://localhost:9")
    port = int(address.rpartition(":")[2])
    with pytest.raises(UserError, match="cannot listen on port"), serving(0, port=port):
        pass
    with pytest.raises(UserError, match="one training process"):
        with_policy(tfopt.pipeline(records, batch_size=50, service=address), 2)


@pytest.mark.slow
def test_the_command_prints_the_address_of_what_serves(records):
    words = [sys.executable, "-m", "tfopt", "launch", "--data-workers", "2", "--host", "localhost"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            data = tfopt.pipeline(records, batch_size=50, service=process.stdout.readline().strip())
            assert sorted(numbers(data)) == list(range(ROWS))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
