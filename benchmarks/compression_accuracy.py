"""What compression costs in accuracy: each step fine-tuned, next to what tfmot gives.

``python benchmarks/compression_accuracy.py`` trains three nets (``compression_nets.py``) on real
digits over several seeds, compresses each in every way and fine-tunes it, with tfopt on Keras 3 and
with tfmot on the same net in tf_keras; files are LiteRT's, and their accuracy is what they answer.
The bars: within 1 point of the float model; pruned 80 %: gzip at least 3 times smaller, and int8
as well 10 times; QAT int8 at least 3.8 times; half the channels at least 1.8 times as fast.

Each net, seed and tool runs in its own process and saves its rows in ``--folder``. An interrupted
run resumes with the first process that has saved none.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from compression_nets import NETS
from figures import save_figures
from make_embedded_mnist import read_mnist
from tfopt.data.mnist import load_mnist
from tfopt.export.litert_file import LitertPredictor
from tfopt.export.parity import right_answers
from tfopt.files import prepare_folder, write_atomically
from tfopt.subprocesses import SHARING, Child

BATCH, RATE = 64, 1e-3
_LIMIT_S = 3600.0  # of a row
LAMP = {"across": "model", "criterion": "lamp"}
TOOLS, PARTS = ("tfopt", "tfmot"), ("train", "test")
Way = Callable[["Work"], Any]


class Work:
    """One net of one tool: its data, its float model, and how it is fine-tuned and measured."""

    def __init__(self, tool: str, net: str, seed: int, options: argparse.Namespace) -> None:
        self.tool, self.net, self.seed, self.options = tool, net, seed, options
        if tool == "tfmot":
            import tensorflow as tf
            import tf_keras

            assert tf.keras is not None
            self.keras: Any = tf_keras
        else:
            import keras

            self.keras = keras
        self.train, self.test = _data(options.data)
        self.keras.utils.set_random_seed(seed)
        self.float = self.fit(self.compile(self._new(), options.epochs))

    @property
    def steps(self) -> int:
        """Return the number of batches of a fine-tuning."""
        return -(-len(self.train[0]) // BATCH) * int(self.options.fine_tuning_epochs)

    def copy(self) -> Any:
        """Return the float model once more, compiled for fine-tuning."""
        model = self._new()
        model.set_weights(self.float.get_weights())
        return self.compile(model)

    def compile(self, model: Any, epochs: int | None = None) -> Any:
        """Return the model, ready to train so many epochs at a rate that falls to nothing."""
        epochs = self.options.fine_tuning_epochs if epochs is None else epochs
        batches = -(-len(self.train[0]) // BATCH)
        schedule = self.keras.optimizers.schedules.CosineDecay(RATE, epochs * batches)
        model.compile(
            self.keras.optimizers.Adam(schedule),
            "sparse_categorical_crossentropy",
            metrics=["accuracy"],
        )
        self.epochs = epochs
        return model

    def fit(self, model: Any) -> Any:
        """Return the model, trained for the epochs that it was compiled for."""
        model.fit(*self.train, batch_size=BATCH, epochs=self.epochs, verbose=0)
        return model

    def accuracy(self, model: Any) -> float:
        if isinstance(model, bytes):
            x, y = self.test
            return float(right_answers(LitertPredictor(model)([x])[0], y, 0.5).mean())
        return float(dict(model.evaluate(*self.test, verbose=0, return_dict=True))["accuracy"])

    def file(self, model: Any, *, int8: bool = False) -> bytes:
        """Return a plain model's LiteRT file by TensorFlow's converter, in float32 or int8."""
        import tensorflow as tf

        with tempfile.TemporaryDirectory() as folder:
            if self.tool == "tfmot":
                model.save(folder, save_format="tf", include_optimizer=False)
            else:
                model.export(folder, verbose=False)
            converter = tf.lite.TFLiteConverter.from_saved_model(folder)
            if int8:
                converter.optimizations = [tf.lite.Optimize.DEFAULT]
                examples = self.train[0][:200]
                converter.representative_dataset = lambda: ([x[None]] for x in examples)
            content: bytes = converter.convert()
        return content

    def int8_file(self, model: Any) -> bytes:
        """Return a file in int8; of a quantization-aware model tfopt's is the stripped one's."""
        if self.tool == "tfmot":
            import tensorflow as tf

            converter = tf.lite.TFLiteConverter.from_keras_model(model)
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            content: bytes = converter.convert()
            return content
        import tfopt

        made = tfopt.quantize(tfopt.strip(model), calibration=self.train[0][:256])
        if not made.fully_integer:
            raise RuntimeError(f"left in float: {made.left_float}")
        return made.content

    def _new(self) -> Any:
        return self.keras.Model(*NETS[self.net](self.keras.layers))


def _data(name: str) -> tuple[Any, Any]:
    if name == "embedded":
        loaded = load_mnist("embedded")
        return loaded.train, loaded.test
    mnist = read_mnist(Path(name))
    images = {part: (mnist[f"x_{part}"][..., None] / 255).astype("float32") for part in PARTS}
    train, test = ((images[part], mnist[f"y_{part}"].astype("int64")) for part in PARTS)
    return train, test


def pruned(work: Work, **how: Any) -> Any:
    """Return a net with 80 % zeros, rising over half of the fine-tuning; or a pattern, at once."""
    import tfopt

    if work.tool == "tfmot" and how:
        raise NotImplementedError("tfopt has tfmot prune each kernel by itself, without patterns")
    sparsity = None
    if "pattern" not in how:
        # tfmot reaches its target only where the frequency divides the window.
        end = work.steps // 2 // 20 * 20
        sparsity = tfopt.compress.PolynomialSparsity(0.8, end_step=end, frequency=20)
    return tfopt.strip(work.fit(tfopt.prune(work.copy(), sparsity, **how)))


def clustered(work: Work) -> Any:
    """Return a net with sixteen values a kernel."""
    import tfopt

    return tfopt.strip(work.fit(tfopt.cluster(work.copy(), 16)))


def aware(work: Work) -> Any:
    """Return the LiteRT file of a quantization-aware training."""
    import tfopt

    return work.int8_file(work.fit(tfopt.quantize_aware(work.copy())))


def half_the_channels(work: Work) -> Any:
    """Return a net with half of each group's channels, taught by the float model."""
    if work.tool == "tfmot":
        raise NotImplementedError("tfmot removes no channels")
    import keras

    import tfopt

    small = work.compile(tfopt.remove_channels(work.copy(), 0.5))
    # The nets end in a softmax.
    taught = keras.distillation.LogitsDistillation(1.0, loss="categorical_crossentropy")
    work.fit(work.compile(keras.distillation.Distiller(work.copy(), small, taught)))
    return small


WAYS: dict[str, Way] = {
    "prune 80 %": pruned,
    "prune 80 %, one ranking": lambda work: pruned(work, **LAMP),
    "2:4": lambda work: pruned(work, pattern="2:4"),
    "cluster 16": clustered,
    "QAT int8": aware,
    "channels -50 %": half_the_channels,
}


def rows_of(
    tool: str, net: str, seed: int, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield a row for the float model of one tool, net and seed, and for each way."""
    work = Work(tool, net, seed, options)
    plain = work.file(work.float)
    yield _row(work, "float", work.accuracy(work.float), plain)
    for name in options.ways:
        # What is drawn does not depend on which rows were made before in this process.
        work.keras.utils.set_random_seed(work.seed)
        try:
            made = WAYS[name](work)
            # tf_keras settles what "accuracy" means when it saves, unless it has evaluated before.
            accuracy = work.accuracy(made)
            content = made if isinstance(made, bytes) else work.file(made)
            row = _row(work, name, accuracy, content)
            if name.startswith("prune 80 %"):
                # tfmot leaves int8 without training to the converter.
                mine = work.tool == "tfopt"
                smaller = work.int8_file(made) if mine else work.file(made, int8=True)
                row["int8_gzip_kib"] = _kib(gzip.compress(smaller, 9))
            if name == "channels -50 %":
                row["latency_of_float"] = _latency(plain, content)
            yield row
        # What a tool cannot do is a row as well, in its own words.
        except Exception as error:
            reason = str(error).strip().splitlines() or [""]
            yield {**_head(work, name), "failed": f"{type(error).__name__}: {reason[0][:200]}"}


def _latency(plain: bytes, content: bytes) -> dict[str, float]:
    """Return the latency of a file as a share of the float file's."""
    from tfopt.export.model_footprint import compared
    from tfopt.export.serving import ServingFile

    found = compared([ServingFile("plain", plain), ServingFile("small", content)]).rows[1].latency
    assert found is not None
    return {"ratio": found.ratio, "low": found.low, "high": found.high}


def _head(work: Work, way: str) -> dict[str, Any]:
    return {"net": work.net, "seed": work.seed, "tool": work.tool, "way": way}


def _row(work: Work, way: str, accuracy: float, content: bytes) -> dict[str, Any]:
    sizes = {"kib": _kib(content), "gzip_kib": _kib(gzip.compress(content, 9, mtime=0))}
    return {**_head(work, way), "accuracy": accuracy, **sizes}


def _kib(content: bytes) -> float:
    return len(content) / 1024


def main() -> None:
    from compression_accuracy import rows_of  # by a name that a child process finds

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nets", nargs="+", choices=list(NETS), default=list(NETS))
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--data", default="embedded", help="embedded, or a folder of IDX files")
    parser.add_argument("--folder", type=Path, default=Path("compression_accuracy"))
    parser.add_argument("--epochs", type=int, default=10, help="of the float model")
    parser.add_argument("--fine-tuning-epochs", type=int, default=8, help="of each way")
    options = parser.parse_args()
    folder = prepare_folder(options.folder)
    for seed, net, tool in itertools.product(range(options.seeds), options.nets, options.tools):
        path = folder / f"{tool}-{net}-{seed}.json"
        if not path.exists():
            with Child(gpu=True, environment=SHARING) as child:
                found = []
                for row in child.each(rows_of, tool, net, seed, options, limit_s=_LIMIT_S):
                    found.append(row)
                    print(json.dumps(row), flush=True)
            write_atomically(path, json.dumps(found))
    # With what earlier runs left there: each line of the summary tells its own number of seeds.
    rows = [row for path in sorted(folder.glob("*.json")) for row in json.loads(path.read_text())]
    known = "embedded" if options.data == "embedded" else "complete"
    save_figures(
        f"compression_accuracy-{known}",
        data=f"MNIST, {known}",
        settings={"batch_size": BATCH, "rate": RATE, "schedule": "cosine to 0"},
        summary=summary(rows),
        rows=rows,
    )


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return means over the seeds: accuracy, points lost against float, times smaller."""
    found = []
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["net"], row["way"], row["tool"]), []).append(row)
    for (net, way, tool), mine in groups.items():
        line: dict[str, Any] = {"net": net, "way": way, "tool": tool, "seeds": len(mine)}
        failed = [row["failed"] for row in mine if "failed" in row]
        if failed:
            found.append({**line, "failed": failed[0]})
            continue
        plain = {row["seed"]: row for row in groups[net, "float", tool]}
        lost = [100 * (plain[row["seed"]]["accuracy"] - row["accuracy"]) for row in mine]
        line["accuracy"] = float(np.mean([row["accuracy"] for row in mine]))
        line["points_lost"] = float(np.mean(lost))
        line["points_lost_each"] = lost
        for size in (size for size in ("kib", "gzip_kib", "int8_gzip_kib") if size in mine[0]):
            ratios = [plain[row["seed"]][size.removeprefix("int8_")] / row[size] for row in mine]
            line[f"times_smaller_{size}"] = float(np.mean(ratios))
        if "latency_of_float" in mine[0]:
            ratios = [row["latency_of_float"]["ratio"] for row in mine]
            line["latency_of_float"] = float(np.exp(np.mean(np.log(ratios))))
        found.append(line)
        print(json.dumps(line))
    return found


if __name__ == "__main__":
    main()
