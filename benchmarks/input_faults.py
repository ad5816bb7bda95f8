"""Does `tfopt bench JOB --input` name what holds an input up, and blame no healthy one?

    python -m benchmarks.input_faults
    python -m benchmarks.input_faults --only python_map,gzip

Twenty faults are planted, each in a pipeline of its own: what binds it and in which stage is known,
and whether one of the changes can help. A wait for a disk is TensorFlow's own sleeping dataset: it
keeps a thread and no core busy. Ten healthy pipelines must not be blamed. Each is measured once, in
processes of its own that take turns.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tfopt
from benchmarks.figures import save_figures
from tfopt.measure.input_doctor import InputDiagnosis, diagnose_input
from tfopt.measure.targets import Target

# A child's tempfile.gettempdir() is its own.
FILES = Path(os.environ.get("TMPDIR", "/tmp"), "tfopt_input_faults")
BATCH, PIXELS = 32, 32
_PYTHON_LOOPS = 6000
_WAIT_US = 1500


@dataclass(frozen=True)
class Fault:
    """What is planted: the bound and the stage to be named, and whether a change can help.

    ``remark`` is a word that a remark must hold instead: the fault costs no time.
    """

    make: Callable[[], Any]
    bound: str
    stage: str
    helps: bool = True
    remark: str = ""


def _images(count: int = 2048) -> Any:
    random = np.random.default_rng(0)
    x = random.random((count, PIXELS, PIXELS, 3), dtype="float32")
    return tf.data.Dataset.from_tensor_slices((x, np.arange(count) % 10))


def _model(width: int) -> Any:
    return keras.Sequential(
        [
            keras.Input((PIXELS, PIXELS, 3)),
            layers.Conv2D(width, 3, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(10),
        ]
    )


def _python(x: Any, y: Any) -> tuple[Any, Any]:
    given = tf.numpy_function(lambda each: (_busy(), each)[1], [x], tf.float32)
    given.set_shape(x.shape)
    return given, y


def _busy() -> int:
    return sum(number * number for number in range(_PYTHON_LOOPS))


def _heavy(x: Any, y: Any) -> tuple[Any, Any]:
    for _ in range(60):
        x = tf.sin(x) + 0.1
    return x, y


def _tiny(x: Any, y: Any) -> tuple[Any, Any]:
    """Do much that costs little: what is called for each example is what costs."""
    mean = tf.reduce_mean(x, axis=[0, 1])
    for _ in range(40):
        mean = mean * 0.5 + 0.1
    return x - mean, y


def _augmented(x: Any, y: Any) -> tuple[Any, Any]:
    for _ in range(30):
        x = tf.image.random_brightness(x, 0.1) + tf.random.normal(tf.shape(x)) * 0.01
    return x, y


def _waiting(dataset: Any, us: int = _WAIT_US) -> Any:
    from tensorflow.python.data.experimental.ops import testing

    return dataset.apply(testing.sleep(us))


def _records(kind: str, shards: int = 4, each: int = 256) -> list[str]:
    """Return TFRecord files of examples, written the first time."""
    folder = FILES / kind
    names = [str(folder / f"{number}.tfrecord") for number in range(shards)]
    if not folder.exists():
        folder.mkdir(parents=True)
        random = np.random.default_rng(0)
        options = tf.io.TFRecordOptions(compression_type="GZIP" if kind == "gzip" else "")
        for name in names:
            with tf.io.TFRecordWriter(name, options) as writer:
                for _ in range(each):
                    writer.write(_record(kind, random))
    return names


def _record(kind: str, random: Any) -> bytes:
    if kind in ("jpeg", "png"):
        side = 256 if kind == "jpeg" else 192
        image = random.integers(0, 255, (side, side, 3), dtype="uint8")
        encode = tf.io.encode_jpeg if kind == "jpeg" else tf.io.encode_png
        return bytes(encode(image).numpy())
    x = random.random((PIXELS, PIXELS, 3), dtype="float32")
    # What compresses well is long to take apart for what it holds.
    return (x.tobytes() * 8) if kind == "gzip" else x.tobytes()


def _raw(record: Any) -> tuple[Any, Any]:
    size = PIXELS * PIXELS * 3 * 4
    values = tf.io.decode_raw(tf.strings.substr(record, 0, size), tf.float32)
    return tf.reshape(values, (PIXELS, PIXELS, 3)), tf.constant(1, tf.int64)


def _decode(record: Any) -> tuple[Any, Any]:
    image = tf.io.decode_image(record, channels=3, expand_animations=False)
    image.set_shape((None, None, 3))
    small = tf.image.resize(image, (PIXELS, PIXELS)) / 255.0
    return small, tf.constant(1, tf.int64)


def _fed(dataset: Any) -> Any:
    """Shuffle, batch and prefetch, as a healthy pipeline ends."""
    return dataset.shuffle(256).batch(BATCH).prefetch(2)


def _read(us: int = 0) -> Callable[[Any], Any]:
    def read(name: Any) -> Any:
        dataset = tf.data.TFRecordDataset(name)
        return _waiting(dataset, us) if us else dataset

    return read


def _files(kind: str) -> Any:
    return tf.data.Dataset.from_tensor_slices(_records(kind))


def _one_slow_shard() -> Any:
    names = _records("raw")

    def read(name: Any) -> Any:
        slow = tf.cast(tf.strings.regex_full_match(name, ".*0.tfrecord"), tf.int64) * 6000
        return _waiting(tf.data.TFRecordDataset(name), slow)

    return _fed(_files("raw").interleave(read, cycle_length=len(names)).map(_raw))


def _csv() -> Any:
    path = FILES / "lines.csv"
    if not path.exists():
        FILES.mkdir(parents=True, exist_ok=True)
        values = np.random.default_rng(0).random((512, 768)).round(4).astype(str)
        path.write_text("\n".join(",".join(row) for row in values))

    def parse(line: Any) -> tuple[Any, Any]:
        columns = tf.stack(tf.io.decode_csv(line, [0.0] * 768))
        return tf.tile(tf.reshape(columns, (16, 16, 3)), (2, 2, 1)), tf.constant(1, tf.int64)

    return _fed(tf.data.TextLineDataset(str(path)).map(parse))


def _generator() -> Any:
    x, y = np.zeros((PIXELS, PIXELS, 3), "float32"), 1

    def examples() -> Any:
        for _ in range(1024):
            _busy()
            yield x, y

    spec = (tf.TensorSpec(x.shape, tf.float32), tf.TensorSpec((), tf.int64))
    return _fed(tf.data.Dataset.from_generator(examples, output_signature=spec))


def _batches() -> Any:
    x, y = np.zeros((BATCH, PIXELS, PIXELS, 3), "float32"), np.ones(BATCH)
    for _ in range(32):
        for _ in range(20):
            _busy()
        yield x, y


def _pydataset() -> Any:
    class Slow(keras.utils.PyDataset):  # type: ignore[misc]  # Keras has no types
        @property
        def num_batches(self) -> int:
            return 32

        def __getitem__(self, index: int) -> Any:
            for _ in range(20):
                _busy()
            return np.zeros((BATCH, PIXELS, PIXELS, 3), "float32"), np.ones(BATCH)

    return Slow()


def _cut(x: Any, y: Any) -> tuple[Any, Any]:
    return x[:, :PIXELS, :PIXELS], y


PLANTED = {
    "python_map": Fault(lambda: _fed(_images().map(_python)), "Python", "map(_python)"),
    "python_map_after_shuffle": Fault(
        lambda: _images().shuffle(256).map(_python).batch(BATCH).prefetch(2),
        "Python",
        "map(_python)",
        helps=False,
    ),
    "from_generator": Fault(_generator, "Python", "generator"),
    "generator_of_batches": Fault(lambda: _batches, "Python", "generator"),
    "pydataset": Fault(_pydataset, "Python", "pydataset"),
    "heavy_map": Fault(lambda: _fed(_images().map(_heavy)), "processor", "map(_heavy)"),
    "heavy_map_no_prefetch": Fault(
        lambda: _images().map(_heavy).shuffle(256).batch(BATCH), "processor", "map(_heavy)"
    ),
    "cache_before_map": Fault(
        lambda: _fed(_images().cache().map(_heavy)), "processor", "map(_heavy)"
    ),
    "tiny_map": Fault(
        lambda: _images().shuffle(256).map(_tiny).batch(BATCH).prefetch(2),
        "processor",
        "map(_tiny)",
    ),
    "augmentation": Fault(
        lambda: _fed(_images().map(_augmented)), "processor", "map(_augmented)", helps=False
    ),
    "filter_after_map": Fault(
        lambda: _fed(_images().map(_heavy).filter(lambda x, y: y < 5)), "processor", "map(_heavy)"
    ),
    "jpeg": Fault(lambda: _fed(_files("jpeg").flat_map(_read()).map(_decode)), "processor", "map"),
    "png": Fault(lambda: _fed(_files("png").flat_map(_read()).map(_decode)), "processor", "map"),
    "gzip": Fault(
        lambda: _fed(tf.data.TFRecordDataset(_records("gzip"), "GZIP").map(_raw)),
        "processor",
        "read",
    ),
    "csv": Fault(_csv, "processor", "map"),
    "slow_disk": Fault(
        lambda: _fed(_files("raw").flat_map(_read(_WAIT_US)).map(_raw)), "disk", "read"
    ),
    "slow_disk_one_thread": Fault(
        lambda: _fed(_files("raw").interleave(_read(_WAIT_US), cycle_length=4).map(_raw)),
        "disk",
        "read",
    ),
    "one_slow_shard": Fault(_one_slow_shard, "disk", "read"),
    "padded_far": Fault(
        lambda: _images().padded_batch(BATCH, ((512, 512, 3), ())).map(_cut).prefetch(2),
        "processor",
        "batch",
        helps=False,
    ),
    "tiny_shuffle": Fault(
        lambda: _images().shuffle(16).batch(BATCH).prefetch(2), "", "", remark="hardly change"
    ),
}


def _light(x: Any, y: Any) -> tuple[Any, Any]:
    return x * 2.0 - 1.0, y


HEALTHY: dict[str, Callable[[], Any]] = {
    "arrays": lambda: (np.zeros((1024, PIXELS, PIXELS, 3), "float32"), np.ones(1024)),
    "dataset": lambda: _fed(_images()),
    "light_map": lambda: _fed(_images().map(_light)),
    "light_map_no_prefetch": lambda: _images().shuffle(256).map(_light).batch(BATCH),
    "map_by_batch": lambda: _images().shuffle(256).batch(BATCH).map(_light).prefetch(2),
    "cached": lambda: _fed(_images().map(_heavy).cache()),
    "tfrecord": lambda: _fed(_files("raw").interleave(_read()).map(_raw)),
    "several_threads": lambda: _fed(_images().map(_light, num_parallel_calls=2)),
    "batch_in_memory": lambda: _images().batch(BATCH).cache().prefetch(2),
    "repeated": lambda: _fed(_images().repeat(2)),
}


def job(name: str) -> tfopt.Job:
    """Return the training of one of the pipelines; a healthy one's step takes longer."""
    healthy = name in HEALTHY
    made = HEALTHY[name] if healthy else PLANTED[name].make
    return tfopt.Job(
        build=lambda: _model(64 if healthy else 4),
        data=lambda: tfopt.Data(train=made()),
        compile=lambda: {
            "optimizer": "sgd",
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        },
    )


def judge(name: str, found: InputDiagnosis) -> dict[str, Any]:
    """Return whether the diagnosis is right, and whether what it advises helps."""
    if name in HEALTHY:
        return {"right": found.bound == "nothing", "helps": None}
    fault = PLANTED[name]
    if fault.remark:
        return {"right": any(fault.remark in each for each in found.remarks), "helps": None}
    right = found.bound == fault.bound and (found.stage or "").startswith(fault.stage)
    return {"right": right, "helps": bool(found.remedy) if fault.helps else None}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of pipelines, with commas between them")
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [*PLANTED, *HEALTHY]
    rows = {}
    for name in names:
        target = Target(name, "benchmarks.input_faults:job", arguments={"name": name})
        found = diagnose_input(target)
        rows[name] = {**judge(name, found), **found.to_dict()}
        print(f"{name}: {'right' if rows[name]['right'] else 'WRONG'}", flush=True)
        print(found, flush=True)
    planted = [rows[name] for name in names if name in PLANTED]
    healthy = [rows[name] for name in names if name in HEALTHY]
    summary = {
        "planted": len(planted),
        "named_rightly": sum(row["right"] for row in planted),
        "may_be_helped": sum(row["helps"] is not None for row in planted),
        "helped": sum(bool(row["helps"]) for row in planted),
        "healthy": len(healthy),
        "blamed": sum(not row["right"] for row in healthy),
    }
    print(json.dumps(summary, indent=1))
    save_figures("input_faults", summary=summary, pipelines=rows)


if __name__ == "__main__":
    main()
