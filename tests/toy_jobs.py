"""Small jobs and tasks for the child processes of the tests, and what may go wrong in them."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tfopt import Data, Job, UserError

OPENED = []


def job(samples=256, epochs=2, note="", seed=0) -> Job:
    """Return a job that trains in a moment."""
    return Job(
        build=build, data=lambda: data(samples, note), compile=compile_, epochs=epochs, seed=seed
    )


def build():
    import keras

    print("this must not disturb what the process says")
    layers = [keras.Input((6,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2, "softmax")]
    return keras.Sequential(layers)


def compile_():
    return {
        "optimizer": "adam",
        "loss": "sparse_categorical_crossentropy",
        "metrics": ["accuracy"],
        "jit_compile": False,
    }


def data(samples, note=""):
    import numpy as np

    x = np.random.default_rng(0).normal(size=(samples, 6)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int64")
    return Data(train=(x, y), test=(x, y), name="toy", note=note)


def set_up() -> Job:
    """Return a job whose module sets what TensorFlow reads when it is loaded; its data tells it."""
    first = "TF_SET_BY_THE_JOB" in os.environ
    os.environ["TF_SET_BY_THE_JOB"] = f"{os.environ.get('TF_SET_BY_THE_JOB', '')} 1"
    return job(note=f"set before TensorFlow was loaded: {first}")


def with_flags() -> Job:
    """Return a job whose data tells the flags that XLA has."""
    return job(note=os.environ.get("TF_XLA_FLAGS", ""))


def drawing() -> Job:
    """Return a job whose data tells a random number."""
    import numpy as np

    return job(note=str(np.random.random()))


def leaving(dies=False) -> Job:
    """Return a job whose data tells the temporary folder into which a thread of it writes."""
    handle, name = tempfile.mkstemp()
    os.close(handle)
    Path(tempfile.mkdtemp(), "more").touch()
    if dies:
        print(Path(name).parent, file=sys.stderr, flush=True)
        os.abort()

    def keep_writing():
        while True:
            os.close(tempfile.mkstemp()[0])
            time.sleep(0.001)

    threading.Thread(target=keep_writing, daemon=True).start()
    return job(note=str(Path(name).parent))


def troubled(trouble) -> Job:
    """Fail in a way, or return a job that does later."""
    if trouble == "dies":
        print("last words", file=sys.stderr, flush=True)
        os._exit(7)
    if trouble == "is killed":
        os.kill(os.getpid(), 9)
    if trouble == "exits":
        threading.Thread(target=time.sleep, args=(200,)).start()
        sys.exit("no licence")
    if trouble == "refuses":
        raise UserError("There is no such digit.")
    if trouble == "raises":
        return job().with_(data=gone)
    if trouble == "hangs":
        time.sleep(600)
    if trouble == "has workers":
        subprocess.Popen(["sleep", "600"])
        if os.fork() == 0:
            time.sleep(600)
            os._exit(0)
    if trouble == "opens a port":
        OPENED.append(socket.create_server(("127.0.0.1", int(Path("port").read_text()))))
    if trouble == "ends":
        return job().with_(data=lambda: Data(train=few_batches))
    if trouble == "dies in a step":
        return job().with_(callbacks=(dying,))
    return job()


def gone():
    raise RuntimeError("the disk of the data is gone")


def few_batches(left=[9]):  # noqa: B006 (it holds what is left)
    """Yield as from a stream, which does not begin anew."""
    import numpy as np

    while left[0]:
        left[0] -= 1
        yield np.zeros((32, 6), "float32"), np.zeros(32, "int64")


def dying():
    import keras

    class Dying(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if Path("die").exists():
                os._exit(7)

    return Dying()


@dataclass(frozen=True)
class Talk:
    """Say what was heard, twice, until nothing is heard; the result is how often."""

    def __call__(self, job, chain, pipe):
        heard = 0
        while (said := pipe.recv()) is not None:
            pipe.send(("said", 2 * said))
            heard += 1
        return heard


@dataclass(frozen=True)
class TellData:
    """Return what the job's data says of itself."""

    def __call__(self, job, chain, pipe):
        return job.data().note


def in_python(x, y):
    import tensorflow as tf

    def slow(each):
        sum(number * number for number in range(4000))
        return each

    given = tf.numpy_function(slow, [x], tf.float32)
    given.set_shape((4,))
    return given, y


def python_in_a_map() -> Job:
    """Return a job whose input waits for Python, far longer than its step takes."""
    import keras

    def data():
        import numpy as np
        import tensorflow as tf

        x = np.zeros((512, 4), "float32")
        examples = tf.data.Dataset.from_tensor_slices((x, x[:, :1]))
        return Data(train=examples.map(in_python).batch(16))

    return Job(
        build=lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]),
        data=data,
        compile=lambda: {"optimizer": "sgd", "loss": "mse"},
    )
