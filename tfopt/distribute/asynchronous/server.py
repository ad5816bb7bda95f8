"""Be a ps or a worker: lend this process to the chief until that has finished, or is gone."""

from __future__ import annotations

import time
from typing import Any

from tfopt.distribute.launch.place import ClusterPlace
from tfopt.distribute.workers import answers, listening
from tfopt.errors import UserError

# The chief counts as gone when it has not answered so often in a row, a second and more apart:
# between ten and thirty seconds, never on one lost packet.
_GONE_AFTER = 10
# The memory file system of a process: the chief writes there through TensorFlow's own channel.
LAST_WORD = "ram://tfopt/asynchronous/last_word"
DONE = "done"
_PAUSE_S = 1.0


def serve(place: ClusterPlace, patience_s: float) -> None:
    """Run this task's server until the chief is done; raise what the chief has died of."""
    import tensorflow as tf

    server = _started(tf, place)
    try:
        word = _until_the_end(tf, place, patience_s)
    finally:
        del server
    if word != DONE:
        raise UserError(
            f"The chief at {place.cluster['chief'][0]} has given up, and so this "
            f"{place.name} ends.",
            received=word,
            fix="mend what the chief says, and start all tasks again",
        )


def _started(tf: Any, place: ClusterPlace) -> Any:
    with listening(place):
        pass  # or another process has the port
    cluster = {kind: list(addresses) for kind, addresses in place.cluster.items()}
    spec = tf.train.ClusterSpec(cluster)
    return tf.distribute.Server(spec, job_name=place.kind, task_index=place.index, protocol="grpc")


def _until_the_end(tf: Any, place: ClusterPlace, patience_s: float) -> str:
    chief = place.cluster["chief"][0]
    seen = False
    silent = 0
    while True:
        if tf.io.gfile.exists(LAST_WORD):
            with tf.io.gfile.GFile(LAST_WORD) as file:
                word = str(file.read())
            # The chief still frees what it has here; without an answer it would complain.
            time.sleep(_PAUSE_S)
            return word
        time.sleep(_PAUSE_S)
        there = answers(chief)
        seen = seen or there
        silent = 0 if there else silent + 1
        # The chief itself may wait as long for the other tasks before it listens.
        if silent >= (_GONE_AFTER if seen else 2 * patience_s):
            what = "is gone" if seen else "does not answer"
            raise UserError(
                f"The chief at {chief} {what}, and so this {place.name} ends.",
                expected="a chief that says when the training is done",
                received="no connection" + (" any more" if seen else ""),
                fix="see the chief's output, and start all tasks again; see that no firewall is "
                "between",
            )
