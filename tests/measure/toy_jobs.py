"""Small jobs that worker processes of the tests make, and what may go wrong in them.

Run as a script, it measures a chain into the folder ``out``, for a test that interrupts it.
"""

import os
import sys
import threading
import time
import traceback
from pathlib import Path

from tfopt import Data, Execution, Job, chain


def job(samples=256, epochs=2, note="", seed=0) -> Job:
    """Return a job that trains in a moment."""
    return Job(
        build=build, data=lambda: data(samples, note), compile=compile_, epochs=epochs, seed=seed
    )


def build():
    import keras

    print("this must not reach the event stream")
    layers = [keras.Input((6,)), keras.layers.Dense(4, "relu"), keras.layers.Dense(2, "softmax")]
    return keras.Sequential(layers)


def dies_over_its_file() -> Job:
    """Return a job whose process dies once its model is made into a file, which is after it."""

    def build_fragile():
        import keras

        class Fragile(keras.layers.Dense):
            def call(self, x, training=None):
                files = [frame.filename for frame in traceback.extract_stack()]
                if any(name.endswith("measure/serving.py") for name in files):
                    os._exit(7)
                return super().call(x)

        return keras.Sequential([keras.Input((6,)), Fragile(2, "softmax")])

    return job().with_(build=build_fragile)


def set_up() -> Job:
    """Return a job whose module sets what TensorFlow reads when it is loaded; its data tells it."""
    first = "tensorflow" not in sys.modules
    os.environ["TF_SET_BY_THE_JOB"] = "1"
    return job(note=f"set before TensorFlow was loaded: {first}")


def drawing() -> Job:
    """Return a job whose data tells a random number."""
    import numpy as np

    return job(note=str(np.random.random()))


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


def generated() -> Job:
    """Return a job whose generator still waits when the measurement is over."""
    import numpy as np

    def batches():
        for _ in range(50):
            time.sleep(0.02)
            yield np.zeros((32, 6), "float32"), np.zeros(32, "int64")

    return job().with_(data=lambda: Data(train=batches, name="generated"))


def troubled(trouble) -> Job:
    """Fail in a way, before TensorFlow is loaded, so that it takes no time."""
    if trouble == "dies":
        print("last words", file=sys.stderr, flush=True)
        os._exit(7)
    if trouble == "killed":
        os.kill(os.getpid(), 9)
    if trouble == "exits":
        threading.Thread(target=time.sleep, args=(200,)).start()
        sys.exit("no licence")
    if trouble == "leaves a child" and os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    if trouble == "hangs":
        Path("hangs").touch()
        time.sleep(600)
    raise RuntimeError("the disk of the data is gone")


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
    import numpy as np
    import tensorflow as tf

    x = np.zeros((512, 4), "float32")
    train = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).map(in_python).batch(16)
    return Job(
        build=lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]),
        data=lambda: Data(train=train),
        compile=lambda: {"optimizer": "sgd", "loss": "mse"},
    )


if __name__ == "__main__":
    from tfopt.recipes.recipe_main import Links, measure_and_show

    sys.exit(
        measure_and_show(
            title="toy",
            command="python toy_jobs.py",
            job="toy_jobs:job",
            output=Path("out"),
            links=Links(chain(Execution(steps_per_execution=2))),
            arguments={},
        )
    )
