"""Weigh the losses of micro-batches, so that those of all, on all replicas, are the batch's loss.

A mean counts by how many values, or how much weight, it is a mean of. What ``add_loss`` adds counts
by examples, which is exact for regularizers and for means over examples, and whole where its graph
says that it is a sum over them. Only losses that are computed inside ``weighing``, on the thread
that entered, are changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from tfopt.distribute.mends import loss_calls
from tfopt.distribute.mends.loss_shares import as_a_value, averaged_over
from tfopt.distribute.mends.loss_terms import terms_of
from tfopt.errors import UserError

_of_this_thread = threading.local()
_installed: list[bool] = []
_lock = threading.Lock()


@dataclass
class Counting:
    """What each mean loss of one micro-batch, in the order of computation, is a mean of.

    None stands for its examples, each alike.
    """

    counts: list[Any] = field(default_factory=list)


@dataclass
class Weighing:
    """The share of the examples, and where masks or weights decide, of each loss by its count."""

    examples: Any
    totals: list[Any]
    seen: int = 0

    def share(self, count: Any) -> Any:
        """Return the share of the next mean loss in that of the batch."""
        import tensorflow as tf

        total = self.totals[self.seen] if self.seen < len(self.totals) else None
        self.seen += 1
        if count is None or total is None:
            return self.examples
        return tf.math.divide_no_nan(count, total)


@contextmanager
def weighing(mode: Counting | Weighing) -> Iterator[None]:
    """Count or weigh the losses that Keras computes on this thread inside the block."""
    _install()
    before = getattr(_of_this_thread, "mode", None)
    _of_this_thread.mode = mode
    try:
        yield
    finally:
        _of_this_thread.mode = before


def added_loss(aggregate: Callable[[Any], Any], loss: Any) -> Any:
    """Return what ``add_loss`` has added, scaled by Keras's ``aggregate`` and by its share."""
    from keras.src.trainers.trainer import Trainer

    mode = getattr(_of_this_thread, "mode", None)
    if not isinstance(mode, Weighing):
        return aggregate(loss)
    if hasattr(loss, "graph"):
        terms = terms_of(loss, None, 1)
        if terms.adding_up and not terms.means and not terms.unknown:
            return Trainer._aggregate_additional_loss(None, loss)
    scaled = aggregate(loss)
    return scaled * _factor(mode.examples, scaled)


def _install() -> None:
    with _lock:
        if _installed:
            return
        _installed.append(True)
        from keras.src.losses import loss as home

        loss_calls.follow()
        plain = home.reduce_weighted_values

        @wraps(plain)
        def reduce_weighted_values(
            values: Any,
            sample_weight: Any = None,
            mask: Any = None,
            reduction: str = "sum_over_batch_size",
            dtype: Any = None,
        ) -> Any:
            mode = getattr(_of_this_thread, "mode", None)
            kind = home.standardize_reduction(reduction)
            if mode is not None and kind in ("none", None):
                raise UserError(
                    "A loss that is not reduced cannot be added up over micro-batches.",
                    expected="a loss that is one number: its mean, or its sum",
                    received=f"reduction={reduction!r}",
                    fix="leave the reduction out",
                )
            if mode is None or kind == "sum":
                return plain(values, sample_weight, mask, reduction, dtype)
            count = None
            if loss_calls.is_one_number(values):
                values = as_a_value(values)
            else:
                count = _count(values, sample_weight, mask, kind)
            loss = plain(values, sample_weight, mask, reduction, dtype)
            if loss_calls.is_part_of_another():
                return home.unscale_loss_for_distribution(loss)
            if isinstance(mode, Counting):
                mode.counts.append(count)
                return loss
            return loss * _factor(mode.share(count), loss)

        home.reduce_weighted_values = reduce_weighted_values


def _count(values: Any, sample_weight: Any, mask: Any, reduction: str) -> Any:
    """Return what a mean was divided by; None where that is its examples, each alike."""
    weighs = reduction == "mean_with_sample_weight" and sample_weight is not None
    if mask is None and not weighs:
        return None
    return averaged_over(values, sample_weight, mask, reduction)


def _factor(share: Any, loss: Any) -> Any:
    """Return a share as a factor, since Keras gives each replica an equal share first."""
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return tf.cast(tf.stop_gradient(share) * float(replicas), loss.dtype)
