"""The server of a ps or a worker, which runs until the chief has finished or is lost."""

from __future__ import annotations

import time
from typing import Any

from tfopt.distribute.launch.place import ClusterPlace
from tfopt.distribute.roll_call import connection_error, listening
from tfopt.errors import UserError

_GONE_AFTER = 10  # failed connections in a row, after which the chief counts as lost
# In the memory file system of this process, where the chief writes through TensorFlow's channel.
LAST_WORD = "ram://tfopt/asynchronous/last_word"
DONE = "done"
_PAUSE_S = 1.0


def serve(place: ClusterPlace, patience_s: float) -> None:
    """Run this task's server until the chief is done; raise the error of the chief."""
    import tensorflow as tf

    with listening(place):
        pass  # refuses a used port
    spec = tf.train.ClusterSpec({kind: list(tasks) for kind, tasks in place.cluster.items()})
    server = tf.distribute.Server(
        spec, job_name=place.kind, task_index=place.index, protocol="grpc"
    )
    try:
        word = _wait_for_end(tf, place, patience_s)
    finally:
        del server
    if word != DONE:
        raise UserError(
            f"The chief at {place.cluster['chief'][0]} has failed, and so this {place.name} ends.",
            received=word,
            fix="fix the error of the chief, and start all tasks again",
        )


def _wait_for_end(tf: Any, place: ClusterPlace, patience_s: float) -> str:
    chief = place.cluster["chief"][0]
    seen = False
    failures = 0
    while True:
        if tf.io.gfile.exists(LAST_WORD):
            with tf.io.gfile.GFile(LAST_WORD) as file:
                word = str(file.read())
            # The chief still frees its variables here.
            time.sleep(_PAUSE_S)
            return word
        time.sleep(_PAUSE_S)
        listens = connection_error(chief) is None
        seen = seen or listens
        failures = 0 if listens else failures + 1
        # The chief itself may wait as long for the other tasks before it listens.
        if failures >= (_GONE_AFTER if seen else 2 * patience_s):
            what = "is lost" if seen else "cannot be reached"
            raise UserError(
                f"The chief at {chief} {what}, and so this {place.name} ends.",
                expected="a chief that runs until the training is done",
                received="no connection",
                fix="see the chief's output, and start all tasks again; check that no firewall is "
                "between",
            )
