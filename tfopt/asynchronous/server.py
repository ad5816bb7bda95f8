"""What a ps or a worker does: it lends itself to the chief until that has finished, or is gone.

Guarantees: ends two seconds behind the chief's word, and within half a minute of its death; an
error of the chief's is told here too, so that every task's output names the cause; where TensorFlow
holds the chief back (it may wait for a ps that is lost), it says to look there. A chief that never
comes is an error after a bounded time.
"""

from __future__ import annotations

import threading
from typing import Any

from tfopt.asynchronous.reach import GONE_AFTER, answers
from tfopt.errors import UserError
from tfopt.places import ClusterPlace

# The memory file system of a process: the chief writes there through TensorFlow's own channel.
LAST_WORD = "ram://tfopt/asynchronous/last_word"
DONE = "done"
_LOOK_S = 0.2
_LINGER_S = 1.0


def serve(place: ClusterPlace, patience_s: float) -> None:
    """Runs this task's server until the chief is done; raises what the chief has died of."""
    import tensorflow as tf

    server = _started(tf, place)
    try:
        word = _until_the_end(tf, place, patience_s)
    finally:
        del server
    if word != DONE:
        raise UserError(
            f"The chief at {place.cluster['chief'][0]} has given up, and so this "
            f"{place.kind} {place.index} ends.",
            received=word,
            fix="mend what the chief says, and start all tasks again",
        )


def _started(tf: Any, place: ClusterPlace) -> Any:
    cluster = {kind: list(addresses) for kind, addresses in place.cluster.items()}
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(cluster),
            job_name=place.kind,
            task_index=place.index,
            protocol="grpc",
        )
    except tf.errors.OpError as error:
        raise UserError(
            f"{place.kind} {place.index} cannot listen at {place.address}.",
            expected="a free port of this machine",
            received=(error.message or type(error).__name__).splitlines()[0],
            fix="end what uses the port (an earlier run?), or name another one in TF_CONFIG",
        ) from error


def _until_the_end(tf: Any, place: ClusterPlace, patience_s: float) -> str:
    chief = place.cluster["chief"][0]
    seen = False
    silent = looks = 0
    pause = threading.Event()
    while True:
        if tf.io.gfile.exists(LAST_WORD):
            with tf.io.gfile.GFile(LAST_WORD) as file:
                word = str(file.read())
            # The chief still frees what it has here; without an answer it would complain.
            pause.wait(_LINGER_S)
            return word
        pause.wait(_LOOK_S)
        looks += 1
        if looks % round(1 / _LOOK_S):
            continue
        there = answers(chief)
        seen = seen or there
        silent = 0 if there else silent + 1
        if seen and silent >= GONE_AFTER:
            raise UserError(
                f"The chief at {chief} is gone, and so this {place.kind} {place.index} ends.",
                expected="a chief that says when the training is done",
                received="no connection any more",
                fix="see the chief's output, and start all tasks again",
            )
        # The chief itself may wait as long for the other tasks before it listens.
        if not seen and silent >= 2 * patience_s:
            raise UserError(
                f"The chief at {chief} does not answer.",
                expected=f"a chief that connects within {2 * patience_s:g} s",
                received="no connection",
                fix="start the script as the chief as well; see that no firewall is between",
            )
