"""How fast the file is that ``tfopt.optimize`` chooses, and whether it is the fastest.

``python benchmarks/serving_latency.py`` trains nothing: ten nets with random weights, one example a
call, one thread. The chosen file is timed by turns with the TensorFlow graph's call and with
``model.predict``. Then the whole search is made again. Where it chooses another file, both are
timed side by side in nine fresh processes each, and the first choice is right where it is at most
5 % slower there, or not told apart.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from figures import save_figures
from serving_nets import net

MNIST, MOBILENET = "cnn", "depthwise"
NETS = (MNIST, MOBILENET, "mlp", "conv1d", "unet", "lstm", "transformer", "two_inputs", "residual")
LARGE = "MobileNetV2"
_RIGHT = 1.05
_PROCESSES = 9


def measured(name: str, turns: int) -> dict[str, Any]:
    """Return what was chosen for a net, how fast it is, and what the second search says."""
    import numpy as np
    import tensorflow as tf

    import tfopt
    from tfopt.export.latency import turn_of
    from tfopt.export.model_footprint import against, in_turns, timed_turn
    from tfopt.subprocesses import Child

    model, x = net(name)
    one = [a[:1] for a in x] if isinstance(x, list) else x[:1]
    constants = [tf.constant(a) for a in (one if isinstance(one, list) else [one])]
    given = constants if isinstance(one, list) else constants[0]
    graph = tf.function(lambda: model(given, training=False))
    with tempfile.TemporaryDirectory() as folder:
        # With random weights no drop of accuracy means anything: all files may win.
        settings = {"max_drop": 100, "turns": turns}
        best = tfopt.optimize(model, x, folder=Path(folder) / "first", **settings)
        again = tfopt.optimize(model, x, folder=Path(folder) / "second", **settings)
        with Child() as child:
            file = best.winner
            inputs = [np.asarray(a) for a in constants]
            times = in_turns(
                {
                    "file": partial(child, turn_of, file.format, file.folder, 1, inputs),
                    "graph": partial(timed_turn, graph),
                    "predict": partial(timed_turn, lambda: model.predict(one, verbose=0)),
                },
                turns,
            )
        alike = best.winner.name == again.winner.name
        beside = None if alike else in_fresh_processes(best.winner, again.winner, inputs)
    row = next(row for row in again.candidates if row.file.name == best.winner.name)
    return {
        "chosen": best.winner.name,
        "ms": {key: 1e3 * statistics.median(map(statistics.median, t)) for key, t in times.items()},
        "of_the_graph": _ratio(against(times["graph"], times["file"])),
        "of_predict": _ratio(against(times["predict"], times["file"])),
        "second_search": again.winner.name,
        "second_says": row.lost or "best",
        "chosen_against_second": _ratio(beside) if beside else None,
        "right": alike or beside.ratio <= _RIGHT or beside.verdict != "slower",
        "table": str(best).splitlines(),
    }


def in_fresh_processes(first: Any, second: Any, inputs: list[Any]) -> Any:
    """Return the time of the first file as a share of the second's, process by process."""
    from tfopt.export.latency import turn_of
    from tfopt.report.statistics import compare_pairs
    from tfopt.subprocesses import Child

    seconds: dict[str, list[float]] = {first.name: [], second.name: []}
    for number in range(_PROCESSES):
        order = [first, second]
        random.Random(number).shuffle(order)
        for file in order:
            with Child() as child:
                turns = [child(turn_of, file.format, file.folder, 1, inputs) for _ in range(6)]
            seconds[file.name].append(statistics.median(map(statistics.median, turns[1:])))
    return compare_pairs(seconds[second.name], seconds[first.name])


def _ratio(comparison: Any) -> list[float]:
    return [round(each, 4) for each in (comparison.ratio, comparison.low, comparison.high)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", nargs="*", default=[*NETS, LARGE])
    parser.add_argument("--turns", type=int, default=15)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    nets = {}
    for name in options.nets:
        nets[name] = measured(name, options.turns)
        shown = {key: value for key, value in nets[name].items() if key != "table"}
        print(name, shown, flush=True)
        right = sum(each["right"] for each in nets.values())
        save_figures("serving_latency", right=f"{right} of {len(nets)}", nets=nets)


if __name__ == "__main__":
    main()
