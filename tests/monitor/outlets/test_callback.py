"""tfopt.Monitor in real trainings: the weights, the wait for input, its outlets and their failures."""

import csv
import gc
import glob
import socket
import time
import urllib.request
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from nvml_stand_in.library import gpu

import tfopt
from tfopt.monitor.input_wait import seconds_waited

X = np.random.default_rng(0).normal(size=(16 * 8 + 8, 16)).astype("float32")
Y = X.sum(1, keepdims=True)
BATCH, STEPS = 16, 9


def slow_dataset(sleep_s):
    def slowly(x, y):
        time.sleep(sleep_s)
        return x, y

    def slow(x, y):
        x, y = tf.py_function(slowly, (x, y), (tf.float32, tf.float32))
        return tf.ensure_shape(x, (None, 16)), tf.ensure_shape(y, (None, 1))

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH).map(slow)


def train(*monitors, data=None, **compiled):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
    model.compile("adam", "mse", **compiled)
    given = {"x": X, "y": Y, "batch_size": BATCH} if data is None else {"x": data, "shuffle": False}
    model.fit(
        **given, epochs=2, verbose=0, validation_data=(X[:32], Y[:32]), callbacks=list(monitors)
    )
    return np.concatenate([np.ravel(w) for w in model.get_weights()]), model


@pytest.fixture(scope="module")
def plain():
    """The weights of a training without a Monitor."""
    return train(jit_compile=False)[0]


@pytest.mark.parametrize(
    "compiled",
    [
        pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
        {"steps_per_execution": 4},
        {"run_eagerly": True},
    ],
)
def test_the_weights_are_those_without_it_and_all_steps_are_marked(compiled, sampler_threads):
    plain, _ = train(**compiled)
    monitor = tfopt.Monitor(hz=10)
    watched, model = train(monitor, **compiled)
    np.testing.assert_array_equal(watched, plain)
    marks = monitor.recording.steps
    assert sum(m.steps for m in marks) == 2 * STEPS
    assert sum(m.examples for m in marks) == 2 * len(X)
    waits = [m.input_wait_s for m in marks]
    if compiled.get("run_eagerly"):
        assert set(waits) == {None}
    else:
        assert all(0 <= m.input_wait_s <= m.seconds for m in marks)
    assert len(monitor.recording.samples) >= 1
    assert monitor.recording.gpus == ()
    assert monitor.findings()
    assert sampler_threads() == []
    # The next fit is compiled without the clock.
    waited = seconds_waited()
    model.fit(X, Y, batch_size=BATCH, verbose=0)
    assert seconds_waited() == waited
    assert monitor.recording.steps == marks


def test_the_wait_for_a_slow_pipeline_is_measured():
    monitor = tfopt.Monitor()
    train(monitor, data=slow_dataset(0.1), steps_per_execution=4)
    marks = monitor.recording.steps
    assert sum(m.input_wait_s for m in marks[1:]) > 0.5 * sum(m.seconds for m in marks[1:])


def test_one_training_feeds_all_outlets(tmp_path, played, capsys):
    pytest.importorskip("prometheus_client")
    played(gpu(0))
    scraped = {}

    class Scrape(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            scraped["url"] = f"http://127.0.0.1:{monitor.port}/metrics"
            scraped["text"] = urllib.request.urlopen(scraped["url"], timeout=30).read().decode()

    monitor = tfopt.Monitor(
        hz=10, log_dir=tmp_path, file=tmp_path / "samples.csv", prometheus_port=0, show=True
    )
    train(monitor, Scrape())
    assert "too few to judge" in capsys.readouterr().out

    assert f"tfopt_training_steps_total {2.0 * STEPS}" in scraped["text"]
    lines = scraped["text"].splitlines()
    (power,) = [line for line in lines if line.startswith("tfopt_gpu_power_w")]
    assert 'uuid="GPU-aaaa"' in power
    assert power.endswith(" 312.45")
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(scraped["url"], timeout=30)

    scalars = {}
    for path in glob.glob(str(tmp_path / "monitor" / "events*")):
        for record in tf.data.TFRecordDataset(path):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                scalars.setdefault(value.tag, []).append((event.step, value.simple_value))
    tags = {"host/rss_mib", "gpu0/power_w", "gpu0/utilisation_percent", "training/step_ms"}
    assert tags <= set(scalars)
    assert scalars["gpu0/power_w"][0] == (1, pytest.approx(312.45))

    with (tmp_path / "samples.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    samples, steps = ([row for row in rows if row["row"] == kind] for kind in ("host", "step"))
    assert [float(row["at_s"]) for row in samples] == [s.at_s for s in monitor.recording.samples]
    assert [float(row["seconds"]) for row in steps] == [m.seconds for m in monitor.recording.steps]


def test_no_failure_of_its_own_ends_a_training(tmp_path, plain):
    pytest.importorskip("prometheus_client")
    (tmp_path / "taken").write_text("a file where the folder should be")
    (tmp_path / "gone").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        monitor = tfopt.Monitor(
            log_dir=tmp_path / "taken",
            file=tmp_path / "gone" / "samples.csv",
            prometheus_port=other.getsockname()[1],
        )
        (tmp_path / "gone").rmdir()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            watched, _ = train(monitor, jit_compile=False)
    np.testing.assert_array_equal(watched, plain)
    messages = [str(w.message) for w in caught if "tfopt.Monitor" in str(w.message)]
    assert len(messages) == 3
    assert "Prometheus failed, the training continues" in " ".join(messages)
    assert sum(m.steps for m in monitor.recording.steps) == 2 * STEPS


def test_a_training_that_an_error_ends_leaves_its_recording_and_no_thread(sampler_threads):
    class Fails(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 5:
                raise ZeroDivisionError

    monitor = tfopt.Monitor(hz=10)
    with pytest.raises(ZeroDivisionError):
        train(monitor, Fails())
    assert monitor.recording.samples
    # The same callback in another fit: what was begun ends first.
    train(monitor)
    assert sampler_threads() == []
    with pytest.raises(ZeroDivisionError):
        train(monitor, Fails())
    assert len(sampler_threads()) == 1
    del monitor
    keras.backend.clear_session()
    deadline = time.monotonic() + 60
    # Where another thread is just collecting, a call does nothing.
    while sampler_threads() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.1)
    assert sampler_threads() == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"hz": 11},
        {"hz": "fast"},
        {"file": "samples.parquet"},
        {"file": "/no/such/folder/samples.csv"},
        {"prometheus_port": 70000},
        {"prometheus_port": "80"},
    ],
)
def test_bad_arguments_are_refused_before_anything_is_trained(arguments):
    with pytest.raises(tfopt.UserError, match="expected"):
        tfopt.Monitor(**arguments)


def test_a_worker_of_a_cluster_writes_beside_the_others(tmp_path, monkeypatch):
    config = '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}'
    monkeypatch.setenv("TF_CONFIG", config)
    monitor = tfopt.Monitor(log_dir=tmp_path, file=tmp_path / "samples.csv")
    assert monitor._log_dir.name == "monitor-worker-1"
    assert monitor._file.name == "samples-worker-1.csv"
