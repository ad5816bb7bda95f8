"""The kept chain of cnn_mnist against its baseline: equal epochs, and time to equal accuracy.

``python benchmarks/cnn_mnist_time.py`` runs, for each seed, one right after the other and each
in a fresh process: the plain job for EPOCHS epochs, the kept chain for as many, and the kept
chain for SHORT epochs, whose learning rate decays within them. Training time is the time
inside ``fit``, tracing included, evaluation excluded. The bars: half the time at equal epochs;
the baseline's final test accuracy, less at most 0.3 point, in a third of its time.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from paired import paired_ratio, save_result
from tfopt.job.job import Chain, chain
from tfopt.job.roster import transform_name
from tfopt.measure.process import run_worker
from tfopt.measure.tasks import Training
from tfopt.recipes.cnn_mnist import CHAIN

SPEED_PARTS = ("learning_rate", "pipeline", "execution")


@dataclass(frozen=True)
class Trained:
    train_s: float
    accuracy: float


def train(transforms: Chain, epochs: int, seed: int, data: str) -> Trained:
    result = run_worker(
        Training(),
        job="tfopt.recipes.cnn_mnist:job",
        arguments={"data": data, "epochs": epochs, "seed": seed},
        chain=transforms,
    )
    if result.value is None or result.value.test_accuracy is None:
        raise SystemExit(f"no measurement: {result.reason}")
    return Trained(result.value.train_s, result.value.test_accuracy)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--short", type=int, default=3)
    parser.add_argument("--whole", action="store_true", help="with pruning and quantization too")
    options = parser.parse_args()
    kept = (
        CHAIN
        if options.whole
        else chain(*(part for part in CHAIN.parts if transform_name(part) in SPEED_PARTS))
    )
    variants = {
        "baseline": (chain(), options.epochs),
        "chain": (kept, options.epochs),
        "short": (kept, options.short),
    }
    runs: dict[str, list[Trained]] = {name: [] for name in variants}
    for seed in range(options.seeds):
        for name, (transforms, epochs) in variants.items():
            runs[name].append(train(transforms, epochs, seed, "embedded"))
            last = runs[name][-1]
            print(f"seed {seed} {name}: {last.train_s:.2f} s, accuracy {last.accuracy:.4f}")
    times = {name: [run.train_s for run in done] for name, done in runs.items()}
    accuracies = {name: [run.accuracy for run in done] for name, done in runs.items()}
    gaps = [s - b for s, b in zip(accuracies["short"], accuracies["baseline"], strict=True)]
    flags = " --whole" if options.whole else ""
    save_result(
        "cnn_mnist_time_whole" if options.whole else "cnn_mnist_time",
        f"python benchmarks/cnn_mnist_time.py --seeds {options.seeds} "
        f"--epochs {options.epochs} --short {options.short}{flags}",
        [
            paired_ratio("training time at equal epochs", times["chain"], times["baseline"]),
            paired_ratio("training time to equal accuracy", times["short"], times["baseline"]),
        ],
        chain=repr(kept),
        epochs=options.epochs,
        short_epochs=options.short,
        train_s=times,
        test_accuracy=accuracies,
        accuracy_gap_of_the_short_run=gaps,
        least_gap_points=100 * min(gaps),
    )


if __name__ == "__main__":
    main()
