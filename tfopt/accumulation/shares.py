"""What a micro-batch's mean loss counts in that of its batch.

Guarantees: the losses of all micro-batches, on all replicas, add up to the loss of the batch: a
mean counts by how many values, or how much weight, it is a mean of. What ``add_loss`` adds counts
by examples, which is exact for regularizers and for means over examples; so does a loss that is one
number, which is taken for such a mean. Only losses that are computed inside ``weighing`` or
``counting``, on the thread that entered, are changed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from tfopt.repairs import loss_calls
from tfopt.repairs.loss_shares import as_a_value, averaged_over, is_one_number

_of_this_thread = threading.local()
_put_on: list[bool] = []
_lock = threading.Lock()


@dataclass
class Counting:
    """What each mean loss of one micro-batch, in the order of computation, is a mean of.

    None: of its examples, each alike.
    """

    counts: list[Any] = field(default_factory=list)


@dataclass
class Weighing:
    """The share of the examples, and where masks or weights decide, of each loss by its count."""

    examples: Any
    totals: list[Any]
    seen: int = 0

    def share(self, count: Any) -> Any:
        """What the next mean loss counts."""
        import tensorflow as tf

        total = self.totals[self.seen] if self.seen < len(self.totals) else None
        self.seen += 1
        if count is None or total is None:
            return self.examples
        return tf.math.divide_no_nan(count, total)


@contextmanager
def inside(what: Counting | Weighing) -> Iterator[None]:
    """Inside, Keras's losses on this thread are counted, or weighed."""
    _install()
    before = getattr(_of_this_thread, "what", None)
    _of_this_thread.what = what
    try:
        yield
    finally:
        _of_this_thread.what = before


def weighed_loss(loss: Any) -> Any:
    """A loss that counts by examples, inside ``Weighing``; as it is elsewhere."""
    what = getattr(_of_this_thread, "what", None)
    return loss * _factor(what.examples, loss) if isinstance(what, Weighing) else loss


def _install() -> None:
    with _lock:
        if _put_on:
            return
        _put_on.append(True)
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
            what = getattr(_of_this_thread, "what", None)
            kind = home.standardize_reduction(reduction)
            if what is None or kind in ("sum", "none", None):
                return plain(values, sample_weight, mask, reduction, dtype)
            count = None
            if is_one_number(values):
                values = as_a_value(values)
            else:
                count = _count(values, sample_weight, mask, kind)
            loss = plain(values, sample_weight, mask, reduction, dtype)
            if loss_calls.is_part_of_another():
                return home.unscale_loss_for_distribution(loss)
            if isinstance(what, Counting):
                what.counts.append(count)
                return loss
            return loss * _factor(what.share(count), loss)

        home.reduce_weighted_values = reduce_weighted_values


def _count(values: Any, sample_weight: Any, mask: Any, reduction: str) -> Any:
    """What a mean was divided by; None where that is its examples, each alike."""
    weighs = reduction == "mean_with_sample_weight" and sample_weight is not None
    if mask is None and not weighs:
        return None
    return averaged_over(values, sample_weight, mask, reduction)


def _factor(share: Any, loss: Any) -> Any:
    """Keras gives each replica an equal share first."""
    import tensorflow as tf

    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return tf.cast(tf.stop_gradient(share) * float(replicas), loss.dtype)
