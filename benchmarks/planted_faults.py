"""Whether the proof in front of fit() finds planted faults, and accuses no right model.

``python benchmarks/planted_faults.py --replicas 2`` makes each model of ``models_to_prove.py``
under a strategy and asks ``verify`` for its verdict; then right models with a step that is wrong on
purpose. A fault is found where the verdict is "different", or where the model is refused by name; a
right model may be "equal", or "inconclusive" where it draws random numbers.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf

import models_to_prove as models
import tfopt
from figures import save_figures
from tfopt.distribute import losses, metrics, step
from tfopt.distribute.models import distributed
from tfopt.distribute.verify import verify
from tfopt.distribute.whole_batch import Shard


@dataclass(frozen=True)
class Finding:
    """What the proof said of one model."""

    name: str
    group: str
    kind: str
    seconds: float
    told: str

    @property
    def is_well(self) -> bool:
        if self.group == "right":
            return self.kind in ("equal", "inconclusive")
        return self.kind in ("different", "UserError")


# Faults of the step itself: what is patched, and what takes its place


def _not_summed(self: Any, grads: Any) -> Any:
    return list(grads)


def _equal_shares(self: Shard, value: Any, kind: str) -> Any:
    return tf.convert_to_tensor(value) * (0.5 if kind == "mean" else 1.0)


def _local(value: Any, what: str = "") -> Any:
    return value


def _a_row_less(structure: Any) -> Any:
    return keras.tree.map_structure(
        lambda v: v[:-1] if isinstance(v, tf.Tensor) and v.shape.rank else v, structure
    )


def _times(factor: Callable[[], float]) -> Any:
    """Return the sum of the gradients, times a factor."""
    whole = step.Step._sum_of
    return lambda self, grads: [g if g is None else g * factor() for g in whole(self, grads)]


def _on_the_first() -> float:
    return float(tf.distribute.get_replica_context()._replica_id == 0)


terms = losses.terms
Patch = tuple[Any, str, Any]
PATCHES: dict[str, tuple[str, Patch]] = {
    "gradients halved": ("softmax_adam_accuracy", (step.Step, "_sum_of", _times(lambda: 0.5))),
    "gradients not exchanged": ("softmax_adam_accuracy", (step.Step, "_sum_of", _not_summed)),
    "one replica without gradients": (
        "sample_weights",
        (step.Step, "_sum_of", _times(_on_the_first)),
    ),
    "equal shares of uneven parts": ("own_step_of_a_mean", (Shard, "weigh", _equal_shares)),
    "sample weights left out": (
        "sample_weights",
        (losses, "terms", lambda loss, y, p, w=None: terms(loss, y, p)),
    ),
    "a loss of the local batch": ("several_outputs", (losses, "all_reduce_sum", _local)),
    "a whole gradient on each replica": ("a_sum_clipped", (step, "divide_gradient", _local)),
    "an example lost": ("metrics_of_regression", (metrics, "drop_padding", _a_row_less)),
    "rows of one replica": ("contrastive_loss", (losses, "gather_rows", _local)),
    "rows of one replica in a metric": ("a_metric_of_its_own", (metrics, "gather_rows", _local)),
    "moving averages not updated": ("averages_of_weights", (step.Step, "_sum_of", _not_summed)),
}


def made(name: str, replicas: int, table: dict[str, Any]) -> Any:
    """Return the step of a model on the replicas, and its arguments of fit()."""
    make, declared = table[name]
    keras.utils.set_random_seed(7)
    with tfopt.distribute(logical_cpus=replicas, own_losses=declared):
        model, arguments = make()
    return distributed(model).step, arguments


def tried(name: str, group: str, replicas: int, table: dict[str, Any], patch: Any) -> Finding:
    """Return what the proof says of one model."""
    begin = time.perf_counter()
    try:
        own_step, arguments = made(name, replicas, table)
        with patch:
            verdict = verify(own_step, arguments)
        kind, told = verdict.kind, str(verdict)
    except Exception as error:
        kind, told = type(error).__name__, str(error)
    return Finding(name, group, kind, time.perf_counter() - begin, told)


def findings(replicas: int, asked: list[str]) -> Iterator[Finding]:
    """Yield what the proof says of each model that is asked for, or of all."""
    for group, table in (("right", models.RIGHT), ("fault", models.FAULTS)):
        for name in table:
            if not asked or name in asked:
                yield tried(name, group, replicas, table, nullcontext())
    for name, (model, patch) in PATCHES.items():
        if not asked or name in asked:
            found = tried(model, "step", replicas, models.RIGHT, mock.patch.object(*patch))
            yield replace(found, name=name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="models; all of them if none is given")
    parser.add_argument("--replicas", type=int, default=2)
    given = parser.parse_args()
    found = []
    for each in findings(given.replicas, given.names):
        found.append(each)
        mark = "ok  " if each.is_well else "MISS"
        print(
            f"{mark} {each.group:5} {each.name:52} {each.kind:13} {each.seconds:5.1f} s", end="  "
        )
        print("" if each.kind == "equal" else each.told.splitlines()[0][:160], flush=True)
    planted = [each for each in found if each.group != "right"]
    right = [each for each in found if each.group == "right"]
    counts = {
        "planted": len(planted),
        "found": sum(each.is_well for each in planted),
        "right": len(right),
        "accused": sum(each.kind == "different" for each in right),
        "failed": sum(each.kind not in ("equal", "inconclusive", "different") for each in right),
        "seconds": sum(each.seconds for each in found),
    }
    print(", ".join(f"{name} {value:.4g}" for name, value in counts.items()))
    if not given.names:
        rows = [asdict(each) for each in found]
        save_figures("planted_faults", replicas=given.replicas, counts=counts, models=rows)
    return int(not all(each.is_well for each in found))


if __name__ == "__main__":
    sys.exit(main())
