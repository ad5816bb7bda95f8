"""Who holds up the others, on two real workers; and the judgement itself, on figures."""

import keras
import numpy as np
import pytest

import tfopt
from tfopt.distribute.worker_times import DeviceTimes, WorkerTimes, imbalance, stragglers

TRAINING = """
    import time, warnings
    import keras, numpy as np, tensorflow as tf, tfopt

    def train(name, input_s=(0, 0), between_s=(0, 0), steps_per_execution=1, plain=False):
        class Between(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                time.sleep(between_s[rank])
        def slowly(x, y):
            time.sleep(input_s[rank])
            return x, y
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
        x = np.random.default_rng(0).normal(size=(16 * 16 + 8, 16)).astype("float32")
        def slow(x, y):
            x, y = tf.py_function(slowly, (x, y), (tf.float32, tf.float32))
            return tf.ensure_shape(x, (None, 16)), tf.ensure_shape(y, (None, 1))
        data = tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(16).map(slow)
        times = tfopt.replica_times()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = model.fit(data, epochs=2, verbose=0, validation_data=data.take(2),
                                callbacks=[] if plain else [times, Between()]).history
        weights = sum(float(np.abs(w).sum()) for w in model.get_weights())
        say(**{name: {
            "named": [[[s.rank, s.cause, s.factor] for s in e.stragglers] for e in times.epochs],
            "logs": {key: values for key, values in history.items() if "_ms" in key},
            "warned": [str(w.message) for w in caught if "holds up" in str(w.message)],
            "devices": [[d.rank, d.device, len(d.product_ms)] for d in times.devices],
            "steps": [[w.steps for w in e.workers] for e in times.epochs],
            "weights": weights,
        }})
"""


@pytest.mark.slow
def test_the_worker_whom_the_others_wait_for_is_named_with_what_it_does(workers):
    code = (
        TRAINING
        + """
    with tfopt.distribute(logical_cpus=1, verify=False, global_batch=16, peer_timeout_s=120):
        train("alike", between_s=(0.05, 0.05))
        train("input", input_s=(0, 0.1))
        train("input in executions", input_s=(0, 0.1), steps_per_execution=4)
        train("host", between_s=(0.1, 0))
        train("plain", plain=True)
        from tfopt.distribute.worker_times import seconds_waited
        before = seconds_waited()
        train("not measured", plain=True, input_s=(0.01, 0.01))
        say(left_behind=seconds_waited() - before)
    """
    )
    said = workers.all_well(code)
    for each in said:
        assert each["alike"]["named"] == [[], []], each["alike"]
        for name in ("input", "input in executions"):
            for named in each[name]["named"]:
                ((rank, cause, factor),) = named
                assert (rank, cause) == (1, "input wait")
                assert factor > 1.3
        for ((rank, cause, _),) in each["host"]["named"]:
            assert (rank, cause) == (0, "host time")
        # Two epochs of 17 batches, the first of each left out; in executions the first four.
        assert each["input"]["steps"] == [[16, 16], [16, 16]]
        assert each["input in executions"]["steps"] == [[13, 13], [13, 13]]
        assert each["alike"]["devices"] == [[0, "CPU:0", 5], [1, "CPU:0", 5]]
        assert each["input"]["weights"] == each["plain"]["weights"]
        assert each["plain"]["logs"] == {}
        assert each["left_behind"] == 0.0
    logs = [each["input"]["logs"] for each in said]
    assert logs[0].keys() == logs[1].keys()
    assert set(logs[0]) == {
        "step_ms",
        *(f"{n}_ms_{r}" for n in ("input_wait", "host") for r in (0, 1)),
    }
    # Keras's loop alone would tell that all steps take as long.
    assert logs[1]["step_ms"][1] == pytest.approx(logs[0]["step_ms"][1], rel=0.3)
    waits = [logs[0][f"input_wait_ms_{rank}"] for rank in (0, 1)]
    assert min(waits[1]) > 2 * max(waits[0])
    # The chief alone warns, and once for both epochs.
    assert [len(each["input"]["warned"]) for each in said] == [1, 0]
    assert "worker 1 holds up the others by its input wait" in said[0]["input"]["warned"][0]


@pytest.mark.slow
def test_on_one_worker_alone_it_is_an_error_in_time(workers):
    code = (
        TRAINING
        + """
    with tfopt.distribute(logical_cpus=1, verify=False, global_batch=16, peer_timeout_s=25):
        train("one", plain=rank == 1)
    """
    )
    ended = workers.run(code)
    assert ended[0].code == 1
    assert "worker 1 did not come to replica_times(), given to this worker" in ended[0].err
    assert ended[1].code == 1  # by an error of its own, not by the limit
    assert "WorkerMissing" in ended[1].err


def fit(epochs=2, folder=None, **compiled):
    """Return the keys of the times in the logs, the number of devices, and all epochs' times."""
    x = np.ones((96, 4), "float32")
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **compiled)
    times = tfopt.replica_times()
    callbacks = [times] if folder is None else [times, tfopt.resume(folder)]
    history = model.fit(
        x, x[:, :1], batch_size=16, epochs=epochs, verbose=0, callbacks=callbacks
    ).history
    return sorted(key for key in history if "_ms" in key), len(times.devices), times.epochs


def trainings(folder):
    with tfopt.distribute(logical_cpus=2, verify=False):
        resumed = [fit(epochs, folder)[2] for epochs in (2, 3)]
        return fit(), fit(run_eagerly=True), resumed


def test_replicas_have_times_in_the_logs_one_device_has_none_and_resume_begins_anew(
    replicas, tmp_path
):
    (keys, devices, epochs), eager, (before, after) = replicas(trainings, str(tmp_path))
    assert keys == eager[0] == ["host_ms", "input_wait_ms", "step_ms"]
    assert devices == 2
    assert [each.workers[0].steps for each in epochs] == [5, 5]
    assert all(each.workers[0].input_wait_ms > 0 for each in (*epochs, *eager[2]))
    assert [each.epoch for each in before] == [0, 1]
    assert [each.epoch for each in after] == [2]
    assert replicas(fit) == ([], 0, [])


def worker(rank, wait, host=0.1, *, step=10.0, steps=100, error=0.05):
    return WorkerTimes(rank, steps, step, wait, host, error)


def test_what_the_noise_explains_has_no_name():
    assert stragglers([worker(0, 0.1), worker(1, 0.9)]) == ()  # below a tenth of a step
    assert stragglers([worker(0, 0.1), worker(1, 5.0, error=2.0)]) == ()
    assert stragglers([worker(0, 0.1), worker(1, 5.0, steps=4)]) == ()
    assert stragglers([worker(0, 5.0)]) == ()
    (one,) = stragglers([worker(0, 0.1), worker(1, 5.1)])
    assert (one.rank, one.cause, one.excess_ms) == (1, "input wait", pytest.approx(5.0))
    assert one.factor == pytest.approx(2.0)


def test_two_slow_workers_of_three_are_both_named_and_one_fast_one_names_nobody():
    slow = stragglers([worker(0, 0.1), worker(1, 6.0), worker(2, 5.0)])
    assert [each.rank for each in slow] == [1, 2]
    assert stragglers([worker(0, 0.1), *(worker(rank, 4.0) for rank in range(1, 5))]) == ()


def gpu(index, model, *times):
    return DeviceTimes(0, f"GPU:{index}", model, times)


def test_gpus_of_another_speed_or_model_are_named():
    alike = [gpu(0, "H200", 1.0, 1.02, 1.01), gpu(1, "H200", 1.03, 1.0, 1.05)]
    assert imbalance(alike) is None
    assert imbalance(alike[:1]) is None
    slow = imbalance([*alike, gpu(2, "H200", 1.5, 1.6, 1.55)])
    assert "unequal speed" in slow
    assert "GPU:2 of worker 0 (H200) 1.53 times" in slow
    one_slow_moment = gpu(2, "H200", 1.0, 2.0, 2.0)
    assert imbalance([*alike, one_slow_moment]) is None
    other = imbalance([*alike, gpu(2, "A100", 2.0, 2.0, 2.0)])
    assert "different models (A100, H200)" in other
    assert imbalance([DeviceTimes(0, f"CPU:{n}", "CPU", (n + 1.0,)) for n in range(2)]) is None
