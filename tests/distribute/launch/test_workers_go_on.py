"""tfopt launch, tfopt.distribute and tfopt.resume together, where a worker is asked to end.

Kills at random moments are in ``tests/resume/test_kills.py``.
"""

import json
import os
import signal
import sys

import pytest
from on_workers import LIMIT_S
from processes import wait_until

pytestmark = pytest.mark.slow


CODE = """
    import keras, numpy as np, tensorflow as tf, tfopt

    folder, slow = sys.argv[1], len(sys.argv) > 2
    with tfopt.distribute(logical_cpus=1, verify=False, peer_timeout_s=30) as replicas:
        keras.utils.set_random_seed(7)
        dropout = keras.layers.Dropout(0.3)
        model = keras.Sequential([keras.Input((6,)), dropout, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    me = f"{replicas.rank}-{os.environ['TFOPT_RESTART']}"

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            with open(f"steps-{folder}-{me}", "a") as file:
                file.write(f"{os.getpid()}\\n")
            if slow:
                import time
                time.sleep(0.2)

    x = np.random.default_rng(1).normal(size=(96, 6)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(96, seed=3).batch(8)
    # Keras warns of its own default.
    model.fit(
        data, epochs=4, verbose=0, shuffle=False, callbacks=[tfopt.resume(folder), Slow()]
    )
    variables = [*model.variables, *model.optimizer.variables]
    print(json.dumps([v.numpy().ravel().tolist() for v in variables]))
"""


def begun(launcher, folder):
    """The processes of both workers, once each has trained three steps."""
    pids = []
    for rank in (0, 1):
        path = launcher.folder / f"steps-{folder}-{rank}-0"
        wait_until(lambda path=path: path.exists() and path.read_text().count("\n") >= 3)
        pids.append(int(path.read_text().splitlines()[-1]))
    return pids


def start(launcher, *arguments, flags=""):
    command = [sys.executable, launcher.script(CODE), *arguments]
    return launcher.start(f"--workers 2 {flags}", command=command)


def results(out):
    return [json.loads(line.partition("] ")[2]) for line in out.splitlines() if "] [[" in line]


def test_where_one_is_asked_to_end_all_save_at_the_same_batch_and_go_on_to_the_same_weights(
    launcher,
):
    out, err = start(launcher, "undisturbed").communicate(timeout=LIMIT_S)
    expected = results(out)
    assert len(expected) == 2, err[-4000:]
    assert expected[0] == expected[1]

    # One worker alone, as by a machine that is taken away.
    job = start(launcher, "asked", "slow", flags="--restarts 1")
    os.kill(begun(launcher, "asked")[1], signal.SIGTERM)
    out, err = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0, err[-4000:]
    ends = [line.partition("] ")[2] for line in err.splitlines() if "ending with status 75" in line]
    assert len(ends) == 2
    assert ends[0] == ends[1]
    assert "requests a restart (exit code 75)" in err
    assert "starting again (1 of 1 restarts)" in err
    assert results(out) == expected
    assert launcher.living() == []
