"""Train a Keras 3 model asynchronously: one call, in every task of the cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tfopt.distribute.asynchronous.server import DONE, serve
from tfopt.distribute.launch.place import ClusterPlace, place_in_cluster
from tfopt.distribute.launch.task import leave_mark
from tfopt.errors import UserError, require_count, within


def train_asynchronously(
    build: Callable[[], Any],
    data: Callable[[Any], Any],
    *,
    epochs: int,
    validation_data: Any = None,
    callbacks: Sequence[Any] = (),
    staleness: int | None = None,
    checkpoint: str | Path | None = None,
    patience_s: float = 120.0,
) -> tuple[Any, Any]:
    """Train on parameter servers; the script is started once for each task of TF_CONFIG.

    Example:
        def data(share):
            return dataset.shard(share.count, share.index).batch(64)

        model, history = tfopt.train_asynchronously(build, data, epochs=5)

    The chief returns the trained model and its History. In a ps and a worker the call does not
    return: the process ends when the chief is done, with 0, or with the chief's error.

    Each worker reads the weights, computes the gradients of its next batch and applies them, while
    others do the same: a gradient may be of weights some steps old. The history tells how old
    (``staleness_mean``, ``staleness_max``), and each worker's examples per second. No update is
    lost; their order is not reproducible. A worker may die and come back: its step is done by
    another, and counts twice where it had been applied (``steps_repeated``). A ps must live: with
    it go its weights. At every epoch's end the workers wait for the chief.

    A ``train_step`` of the model's own may apply several optimizers, as those of a GAN, which
    ``build`` has built; not in a ``tf.cond``, nor in a ``tf.function`` of its own. A worker
    computes on one device, its first GPU where it has any, without XLA; GPUs were not tried.

    Args:
        build: Makes and compiles the model. It is called on the chief alone, twice: once on the
            parameter servers and once for the local copy that validates and is returned.
        data: Makes a batched ``tf.data.Dataset`` for a worker, given its ``Share``: ``index`` and
            ``count``. It is called on the chief; the dataset's graph runs on the worker, so files
            must be there, and arrays travel in the graph, of 2 GiB at most.
        epochs: Epochs to train.
        validation_data: What ``evaluate`` takes: ``(x, y)`` or a dataset, on the chief.
        callbacks: Keras callbacks that act at the ends of epochs.
        staleness: The oldest gradient to be applied, in steps; None sets no bound. A bound is
            kept by handing out fewer steps at once, so that workers wait: half as many, and one.
        checkpoint: A folder for checkpoints, one at every epoch's end, of which the newest three
            stay. A training goes on from the newest one, also with other workers or more epochs;
            another model's, optimizer's or loss's is refused. A full disk is a warning.
        patience_s: Seconds to wait for tasks that do not answer, and for a step of any worker.

    Raises:
        UserError: TF_CONFIG has no parameter servers, ``build`` or ``data`` is not a function, a
            task does not answer, or the checkpoint is another model's.
    """
    _checked(build, data, epochs, staleness, patience_s)
    place = _place()
    leave_mark()
    if place.kind != "chief":
        serve(place, patience_s)
        raise SystemExit(0)
    from tfopt.distribute.asynchronous.building import check_callbacks
    from tfopt.distribute.asynchronous.chief import Chief
    from tfopt.distribute.asynchronous.connection import Connection
    from tfopt.distribute.asynchronous.saved_progress import take_folder

    connection = Connection(place, patience_s)
    word = "the chief was ended"
    try:
        with ExitStack() as held:
            folder = None if checkpoint is None else take_folder(checkpoint, held)
            check_callbacks(callbacks)
            chief = Chief(connection, build, data, staleness, folder)
            trained = chief.train(epochs, validation_data, callbacks)
        del chief
        word = DONE
        return trained
    except Exception as error:
        cause = connection.explained(error)
        word = str(cause) if isinstance(cause, UserError) else f"{type(cause).__name__}: {cause}"
        if cause is error:
            raise
        raise cause from error
    finally:
        connection.end(word)


def _checked(build: Any, data: Any, epochs: Any, staleness: Any, patience_s: Any) -> None:
    for name, function in (("build", build), ("data", data)):
        # A compiled model can be called; build() makes one.
        if not callable(function) or hasattr(function, "compile"):
            raise UserError(
                f"{name} is not a function.",
                expected="a function: the model and the data are made where they are needed",
                received=type(function).__name__,
                fix="def build(): return a compiled model; def data(share): return "
                "dataset.shard(share.count, share.index).batch(64), each worker's own part",
            )
    require_count("epochs", epochs)
    if staleness is not None:
        require_count("staleness", staleness, minimum=0)
    if not patience_s or not within(patience_s, 0, float("inf")):
        raise UserError(
            "patience_s is no time.", expected="seconds above 0", received=repr(patience_s)
        )


def _place() -> ClusterPlace:
    place = place_in_cluster()
    kinds = () if place is None else place.cluster
    if place is not None and {"chief", "ps", "worker"} <= {*kinds}:
        return place
    raise UserError(
        "Asynchronous training needs a cluster with parameter servers.",
        expected="TF_CONFIG in each task: one chief, which validates, one worker or more, one ps "
        "or more",
        received="no TF_CONFIG" if place is None else f"{place.name} of {', '.join(kinds)}",
        fix="tfopt launch --workers 2 --ps 1 -- python train.py; elsewhere start the script once "
        "for each task, with TF_CONFIG set",
    )
