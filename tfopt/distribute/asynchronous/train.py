"""Train a Keras 3 model asynchronously: one call, in every task of the cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tfopt.distribute.asynchronous.server import DONE, serve
from tfopt.distribute.launch.place import ClusterPlace, place_in_cluster
from tfopt.distribute.launch.task import mark_joined
from tfopt.errors import UserError, require_count, require_within


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
    """Train on parameter servers; start the script once for each task of TF_CONFIG.

    Example:
        def data(share):
            return dataset.shard(share.count, share.index).batch(64)

        model, history = tfopt.train_asynchronously(build, data, epochs=5)

    The chief returns the trained model and its History. In a ps or a worker the call does not
    return: the process ends with the chief, with 0 or with the chief's error.

    Each worker reads the weights, computes the gradients of its next batch and applies them,
    independently of others: a gradient may be computed from weights some steps old. The history
    has this staleness (``staleness_mean``, ``staleness_max``), and the examples per second of each
    worker. No update is lost; their order is not reproducible. A worker may fail and restart: its
    step is repeated by another, and counts twice if it had been applied (``steps_repeated``). A
    ps must not fail, since its weights would be lost. The workers wait for the chief at the end
    of every epoch.

    A custom ``train_step`` may apply several optimizers that ``build`` has built, as those of a
    GAN, but not in a ``tf.cond`` or a nested ``tf.function``. A worker computes on one device, its
    first GPU if it has one, without XLA; GPUs were not tried.

    Args:
        build: A function that returns a compiled model. The chief calls it twice: once on the
            parameter servers and once for the local copy that validates and is returned.
        data: A function that returns a batched ``tf.data.Dataset`` for the ``Share`` of a worker,
            with ``index`` and ``count``. The chief calls it; the dataset's graph runs on the
            worker, which needs its files, and contains arrays, of at most 2 GiB.
        epochs: The number of epochs.
        validation_data: Data for ``evaluate`` on the chief: ``(x, y)`` or a dataset.
        callbacks: Keras callbacks that act at the ends of epochs.
        staleness: The largest staleness of a gradient, in steps; None sets no bound. A bound
            limits the steps scheduled at once to half of it and one, so that workers wait.
        checkpoint: A folder for the newest three checkpoints, written at the end of every epoch.
            A training resumes from it, also with other workers or more epochs; that of another
            model, optimizer or loss is refused. A full disk is a warning.
        patience_s: The timeout for tasks that cannot be reached, and for a step of any worker.

    Raises:
        UserError: TF_CONFIG has no parameter servers, ``build`` or ``data`` is not a function, a
            task cannot be reached, or the checkpoint is another model's.
    """
    _checked(build, data, epochs, staleness, patience_s)
    place = _place()
    mark_joined()
    if place.kind != "chief":
        serve(place, patience_s)
        raise SystemExit(0)
    from tfopt.distribute.asynchronous.building import check_callbacks
    from tfopt.distribute.asynchronous.chief import Chief
    from tfopt.distribute.asynchronous.connection import Connection
    from tfopt.distribute.asynchronous.saved_progress import Progress

    connection = Connection(place, patience_s)
    word = "the chief was stopped"
    try:
        with ExitStack() as stack:
            progress = None if checkpoint is None else Progress(checkpoint, stack)
            check_callbacks(callbacks)
            chief = Chief(connection, build, data, staleness, progress)
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
        # A model is callable too.
        if not callable(function) or hasattr(function, "compile"):
            raise UserError(
                f"{name} is not a function.",
                expected="a function that returns the model, or the data of a worker",
                received=type(function).__name__,
                fix="def build(): return a compiled model; def data(share): return "
                "dataset.shard(share.count, share.index).batch(64)",
            )
    require_count("epochs", epochs)
    if staleness is not None:
        require_count("staleness", staleness, minimum=0)
    require_within("`patience_s`", patience_s, 1, threading.TIMEOUT_MAX, "seconds")


def _place() -> ClusterPlace:
    place = place_in_cluster()
    kinds = () if place is None else place.cluster
    if place is not None and {"chief", "ps", "worker"} <= {*kinds}:
        return place
    raise UserError(
        "Asynchronous training needs a cluster with parameter servers.",
        expected="TF_CONFIG in each task, with a chief, one or more workers, one or more ps",
        received="no TF_CONFIG" if place is None else f"{place.name} of {', '.join(kinds)}",
        fix="tfopt launch --workers 2 --ps 1 -- python train.py; on several machines start the "
        "script once for each task, with TF_CONFIG set",
    )
