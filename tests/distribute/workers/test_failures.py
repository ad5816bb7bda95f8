"""What goes wrong on one worker is an error on every one that names the cause, in bounded time."""

import pytest

COMMON = """
    import contextlib, keras, numpy as np, os, tensorflow as tf, tfopt, time
    x = np.ones((64, 4), "float32")
    y = np.ones((64, 1), "float32")

    def built(size=4, units=1, loss="mse"):
        model = keras.Sequential([keras.Input((size,)), keras.layers.Dense(units)])
        model.compile("sgd", loss, jit_compile=False)
        return model

    def refused(name, call):
        try: call()
        except tfopt.UserError as error: say(**{name: str(error)})

    def fit(epochs=4, peer_timeout_s=20, **hooks):
        global model
        with tfopt.distribute(logical_cpus=1, verify=False, peer_timeout_s=peer_timeout_s):
            model = built()
        callback = keras.callbacks.LambdaCallback(**hooks)
        refused("error", lambda: model.fit(
            x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[callback]))
"""

MISTAKES = """
    def scope():
        return tfopt.distribute(logical_cpus=1, verify=False, peer_timeout_s=60)

    with scope():
        model, other = built(), built(loss=["mse", "mae"][rank])
        toned = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, ["tanh", "relu"][rank])])
        toned.compile("sgd", "mse", jit_compile=False)
        loaded = built()
    refused("activation", lambda: toned.fit(x, y, batch_size=8, verbose=0))
    if rank == 0:
        loaded.set_weights([each + 1 for each in loaded.get_weights()])
    refused("weights", lambda: loaded.fit(x, y, batch_size=8, verbose=0))
    refused("shape", lambda: model.fit(x[:, : 4 - rank], y, batch_size=8, verbose=0))
    refused("loss", lambda: other.fit(x, y, batch_size=8, verbose=0))
    refused("batch", lambda: model.fit(x, y, batch_size=9, verbose=0))
    refused("batches", lambda: model.fit(x, y, batch_size=8 + 8 * rank, verbose=0))
    refused("call", lambda: model.fit(x, y, verbose=0) if rank else model.evaluate(x, y, verbose=0))
    if rank == 1:  # a small model that the other worker has not
        with tf.distribute.OneDeviceStrategy("CPU:0").scope():
            helper = built()
        helper.fit(x, y, batch_size=10, validation_data=(x, y), verbose=0)
        say(helper=int(helper.optimizer.iterations.numpy()))
        other = built()
        other.predict(x, verbose=0), other.evaluate(x, y, verbose=0)
    tf.random.set_seed(rank)
    refused("seed", lambda: model.fit(x, y, batch_size=8, verbose=0))
    tf.random.set_seed(1)
    model.fit(x, y, batch_size=8, verbose=0)
    say(trained=int(model.optimizer.iterations.numpy()))

    from tfopt.distribute import workers
    read = workers.Exchange._read
    def late(self, key, wait_s):  # the chief, whose end ends the store, waits for who reads late
        time.sleep(3 * rank if key == "tfopt/waits/worker 0" else 0)
        return read(self, key, wait_s)
    workers.Exchange._read = late
    alone = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rank or model.predict(x[:10], verbose=0))
    refused("callback", lambda: model.fit(
        x, y, batch_size=8, epochs=4, verbose=0, callbacks=[alone]))
"""
REFUSED = {
    "shape": "worker 1 has another fit(x=) than worker 0",
    "activation": "worker 1 has another layer 2 (Dense) than worker 0",
    "weights": "worker 1 has another content of the weights than worker 0",
    "loss": "worker 1 has another compile arguments than worker 0",
    "batch": "does not divide over 2 replicas",
    "batches": "worker 1 has another fit(batch_size=) than worker 0",
    "call": "worker 1 has another call than worker 0",
    "seed": "worker 1 has another random seed than worker 0",
    "callback": "The workers run different calls in one step",
}


def test_a_mistake_is_an_error_of_all_before_anything_is_trained(workers):
    """It leaves the cluster as it was, and a worker may have a helper of its own."""
    both = workers.all_well(COMMON + MISTAKES)
    for said in both:
        assert {name: words for name, words in REFUSED.items() if words not in said[name]} == {}
        assert said["trained"] == 8
        assert "worker 0: predict() inside fit(); worker 1: fit()" in said["callback"]
    assert both[1]["helper"] == 7


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_worker_that_is_killed_is_named_by_the_other(workers, victim):
    ended = workers.run(
        COMMON
        + f"""
    fit(10**6, on_train_batch_end=lambda batch, logs:
        os.kill(os.getpid(), 9) if rank == {victim} and batch == 5 else None)
    """
    )
    assert ended[victim].code == -9
    left = ended[1 - victim]
    assert left.code == 0, left.err[-3000:]
    assert f"worker {victim} has ended or cannot be reached" in left.said["error"]


@pytest.mark.slow
def test_a_worker_that_is_late_is_named_in_the_log(workers):
    """It ends well: another one has only waited for it."""
    first, second = workers.run(
        COMMON
        + """
    from tfopt.distribute import workers
    workers._LATE_S, workers._REPLY_S = 1, 2
    fit(2, peer_timeout_s=60, on_train_batch_end=lambda batch, logs:
        time.sleep(8) if rank == 1 and batch == 2 else None)
    """
    )
    assert (first.code, second.code) == (0, 0)
    assert "worker 0 waits for worker 1, in fit()" in first.err
    assert "waits for" not in second.err


@pytest.mark.slow
def test_a_worker_that_stands_still_is_no_hang(workers):
    first, second = workers.all_well(
        COMMON
        + """
    from tfopt.distribute import workers
    workers._REPLY_S = 2
    fit(10**6, peer_timeout_s=8, on_train_batch_end=lambda batch, logs:
        time.sleep(22) if rank == 1 and batch == 5 else None)
    """
    )
    assert "did not reach a step in which worker 0 waited" in first["error"]
    # By then the other one has ended.
    assert "worker 0 has ended" in second["error"]


@pytest.mark.slow
def test_a_worker_that_ends_by_an_error_of_its_own_is_named(workers):
    ended = workers.run(
        COMMON
        + """
    def fail(batch, logs):
        if rank == 1 and batch == 2:
            raise RuntimeError("a mistake of its own")
    fit(on_train_batch_end=fail)
    """
    )
    assert ended[1].code == 1
    assert "RuntimeError: a mistake of its own" in ended[1].err
    assert "worker 1 has ended or cannot be reached" in ended[0].said["error"]
    assert "worker 1: RuntimeError: a mistake of its own" in ended[0].said["error"]
