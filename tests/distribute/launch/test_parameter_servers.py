"""Parameter servers under the launcher: a lost worker comes back alone; with a ps or chief, all."""

import json
import os
import signal
from contextlib import suppress

import pytest
from on_workers import LIMIT_S

from .conftest import wait_until

# The examples are few, and the training ends when the test says so.
CODE = """
    pathlib.Path(f"pid-{me}-{os.environ['TFOPT_RESTART']}").write_text(str(os.getpid()))
    import keras, numpy as np, tensorflow as tf, tfopt

    x = np.random.default_rng(0).normal(size=(400, 8)).astype("float32")
    y = x[:, :1]

    def build():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse")
        return model

    def data(share):
        mine = slice(share.index, None, share.count)
        return tf.data.Dataset.from_tensor_slices((x[mine], y[mine])).batch(8)

    class Noted(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            with open("epochs", "a") as file:
                file.write(json.dumps({"epoch": epoch, **logs}) + "\\n")
            self.model.stop_training = pathlib.Path("stop").exists()

    model, history = tfopt.train_asynchronously(
        build, data, epochs=100_000, callbacks=[Noted()], checkpoint="kept", patience_s=60
    )
    print("iterations", int(model.optimizer.iterations.numpy()))
"""


def epochs(folder):
    lines = (folder / "epochs").read_text().splitlines() if (folder / "epochs").exists() else []
    found = []
    for line in lines:
        with suppress(json.JSONDecodeError):  # it is being written
            found.append(json.loads(line))
    return found


def wait_for(launcher, holds):
    """Wait until one epoch that ended from now on is such, in which both workers may have trained."""
    begun = len(epochs(launcher.folder)) + 1
    wait_until(lambda: any(holds(each) for each in epochs(launcher.folder)[begun:]))


def by_both(epoch):
    return epoch["examples_per_s_worker_0"] > 0 and epoch["examples_per_s_worker_1"] > 0


def kill(launcher, name):
    os.kill(int((launcher.folder / f"pid-{name}").read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_a_lost_worker_comes_back_alone_and_a_lost_ps_or_chief_is_a_new_job(launcher):
    job = launcher.start("--workers 2 --ps 1 --restarts 3 --grace 10", code=CODE)
    wait_for(launcher, by_both)
    kill(launcher, "worker1-0")
    wait_until(lambda: (launcher.folder / "pid-worker1-1").exists())
    wait_for(launcher, by_both)
    assert not (launcher.folder / "pid-chief0-1").exists()
    for number, lost in ((2, "ps0-0"), (3, "chief0-2")):
        kill(launcher, lost)
        wait_until(lambda number=number: (launcher.folder / f"pid-chief0-{number}").exists())
        before = epochs(launcher.folder)
        wait_for(launcher, by_both)
        # From what was kept, not from the start; an epoch that was noted and not kept comes again.
        assert epochs(launcher.folder)[len(before)]["epoch"] >= before[-1]["epoch"]
    (launcher.folder / "stop").touch()
    out, err = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0, err[-6000:]
    assert "worker 1 ended by SIGKILL, often by the kernel for want of memory: starting it" in err
    assert "(1 of 3 restarts)" in err
    assert "[tfopt] ps 0 failed first" in err
    assert "[tfopt] chief 0 failed first" in err
    assert "starting again (3 of 3 restarts)" in err
    (line,) = [each for each in out.splitlines() if "iterations" in each]
    assert int(line.split()[-1]) >= 50 * (epochs(launcher.folder)[-1]["epoch"] + 1)
    assert launcher.living() == []


def test_a_worker_that_fails_with_no_restart_left_ends_the_job(launcher):
    code, _, err = launcher.run(
        "--workers 1 --ps 1 --restarts 1 --grace 5",
        code="""
            if task["type"] == "worker":
                raise SystemExit(7)
            forever()
        """,
    )
    assert code == 7
    assert "worker 0 ended by exit code 7: starting it again in 5 s (1 of 1 restarts)" in err
    assert "worker 0 failed first: exit code 7" in err
    assert "starting again" not in err
