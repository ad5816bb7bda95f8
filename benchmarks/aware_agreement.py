"""Whether the int8 file of a trained quantization-aware model answers as the model does.

``python benchmarks/aware_agreement.py`` trains architectures of keras.applications briefly on
embedded digits, goes on quantization-aware, converts them, and compares file and model on other
digits: the class on top (the bar is 99 %), and the distance in steps of the output's 256 values.
Without training, deep networks answer noise on noise: there a change of one step in the first layer
grows with each layer, and agreement says nothing. One fresh process an architecture; a further run
goes on from the newest file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from compression_sweep import SMALLEST
from paired import RESULTS, save_figures
from sweep_tfopt import build
from tfopt.data.mnist import load_mnist

_NAMES = """
    MobileNetV3Small MobileNetV2 EfficientNetB0 ResNet50 DenseNet121 MobileNet ConvNeXtTiny
    InceptionV3 Xception MobileNetV3Large EfficientNetV2B0 ResNet50V2 NASNetMobile VGG16
"""
ARCHITECTURES = _NAMES.split()
BATCH = 32


def digits(model: Any, count: int) -> tuple[Any, Any]:
    """So many digits of each part, as large, coloured and bright as the model expects."""
    side = model.input_shape[1]
    scaled = any(type(layer).__name__ == "Rescaling" for layer in model._flatten_layers())
    loaded = load_mnist("embedded")

    def part(x: Any, y: Any) -> tuple[Any, Any]:
        larger = np.kron(x[:count], np.ones((1, side // 28, side // 28, 1)))
        border = [(n // 2, n - n // 2) for n in (side - n for n in larger.shape[1:3])]
        padded = np.pad(larger, [(0, 0), *border, (0, 0)]).repeat(3, axis=-1)
        return (padded * (255.0 if scaled else 1.0)).astype("float32"), y[:count]

    return part(*loaded.train), part(*loaded.test)


def train(model: Any, data: Any, epochs: int, rate: float) -> None:
    """Trains with Adam, its rate falling to nothing."""
    import keras

    steps = epochs * -(-len(data[0]) // BATCH)
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
    model.compile(
        keras.optimizers.Adam(schedule, global_clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    for layer in model._flatten_layers():
        if type(layer).__name__ == "BatchNormalization":
            layer.momentum = 0.9  # its statistics settle in some tens of steps
    model.fit(*data, batch_size=BATCH, epochs=epochs, verbose=0)


def measure(architecture: str, options: argparse.Namespace) -> dict[str, Any]:
    """Accuracies of the three, and how far file and model are apart."""
    import tfopt

    model = build(architecture, SMALLEST.get(architecture, 32))
    data, (x, y) = digits(model, options.examples)
    x, y = x[: options.tests], y[: options.tests]
    train(model, data, options.epochs, 1e-3)
    float_accuracy = _accuracy(model.predict(x, verbose=0), y)
    half = options.fine_tuning_epochs * len(data[0]) // BATCH // 2
    tfopt.quantize_aware(model, freeze_batchnorm_step=half)
    train(model, data, options.fine_tuning_epochs, 1e-4)
    made = tfopt.quantize(model, representative=data[0][:200])
    answers, found = model.predict(x, verbose=0), made.predict(x)[0]
    step = np.ptp(answers) / 255
    off = np.abs(answers - found) / step
    return {
        "float_accuracy": float_accuracy,
        "aware_accuracy": _accuracy(answers, y),
        "file_accuracy": _accuracy(found, y),
        "agreement": float(np.mean(answers.argmax(-1) == found.argmax(-1))),
        "steps_apart_mean": float(off.mean()),
        "steps_apart_99_percent": float(np.percentile(off, 99)),
        "steps_apart_most": float(off.max()),
        "fully_integer": made.fully_integer,
        "times_smaller": made.float_kib / made.kib,
    }


def _accuracy(answers: Any, y: Any) -> float:
    return float(np.mean(answers.argmax(-1) == y))


def in_a_fresh_process(architecture: str, arguments: list[str]) -> dict[str, Any]:
    """What was measured, or how the process ended."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, __file__, "--worker", architecture, str(answer), *arguments]
        done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
        if not answer.exists():
            return {"failed": f"ended with {done.returncode}: {done.stderr[-300:]}"}
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=ARCHITECTURES)
    parser.add_argument("--examples", type=int, default=5000)
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=2, help="in float")
    parser.add_argument("--fine-tuning-epochs", type=int, default=1, help="aware")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        architecture, answer = options.worker
        Path(answer).write_text(json.dumps(measure(architecture, options)))
        return
    settings = ("examples", "tests", "epochs", "fine_tuning_epochs")
    given = {f"--{name.replace('_', '-')}": str(getattr(options, name)) for name in settings}
    arguments = [word for pair in given.items() for word in pair]
    earlier = sorted(RESULTS.glob("*-aware_agreement.json"))
    rows = json.loads(earlier[-1].read_text())["architectures"] if earlier else {}
    for architecture in options.only:
        if architecture in rows and "failed" not in rows[architecture]:
            continue
        found = in_a_fresh_process(architecture, arguments)
        rows[architecture] = {**found, "date": datetime.now(UTC).date().isoformat()}
        print(architecture, rows[architecture], flush=True)
        command = f"python benchmarks/aware_agreement.py {' '.join(arguments)}"
        save_figures("aware_agreement", command, architectures=rows)


if __name__ == "__main__":
    main()
