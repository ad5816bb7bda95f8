"""What a model's call keeps on itself is the last replica's once another one has been at it.

What is wrong: replicas trace a step in turn, and change over wherever they exchange something. What
the call of the first one has set (``self.attention = scores``, an auxiliary loss) is then that of
the last one, whose graph it cannot train by: other weights than on one device, silently. tfopt's
own exchanges, in losses, make such changes where TensorFlow has none.

The mend: a replica that goes on finds the tensors that it has left. Guarantees: only attributes of
models and layers of the user's own classes, which hold tensors, or a list, tuple or dict of them;
only while a step of Keras's is traced under a strategy that this was asked for.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from tfopt.distribute.mends.replica_parts import step_here
from tfopt.distribute.mends.under_strategies import UnderStrategies

_mended = UnderStrategies()
_NOT_KEPT = ("_losses", "_loss_ids")  # of Keras's own: see added_losses


def probe(strategy: Any) -> bool:
    """Whether a replica finds what another one has set, after an exchange."""
    import tensorflow as tf

    kept: dict[str, Any] = {}
    found = []

    def on_each() -> None:
        replica = tf.distribute.get_replica_context()
        kept["mine"] = own = tf.identity(tf.cast(replica.replica_id_in_sync_group, tf.float32))
        replica.merge_call(lambda _: None)
        found.append(kept["mine"] is own)

    tf.function(lambda: strategy.run(on_each), autograph=False).get_concrete_function()
    return not all(found)


def mend(strategy: Any) -> None:
    """Gives each replica its own back under this strategy."""
    if _mended.add(strategy):
        _put_on()


def _put_on() -> None:
    from tensorflow.python.distribute.mirrored_run import _MirroredReplicaContext

    plain = _MirroredReplicaContext._merge_call

    @wraps(plain)
    def _merge_call(self: Any, *arguments: Any) -> Any:
        step = step_here()
        if step is None or step.graph == "eager" or self.strategy not in _mended:
            return plain(self, *arguments)
        own = _tensors_on(step.own_parts)
        try:
            return plain(self, *arguments)
        finally:
            for each, name, value in own:
                vars(each)[name] = value

    _MirroredReplicaContext._merge_call = _merge_call


def _tensors_on(parts: list[Any]) -> list[tuple[Any, str, Any]]:
    """The attributes that hold what is being traced: whose, under which name, and what."""
    return [
        (each, name, value)
        for each in parts
        for name, value in vars(each).items()
        if name not in _NOT_KEPT and _holds_tensors(value)
    ]


def _holds_tensors(value: Any) -> bool:
    import tensorflow as tf

    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return any(isinstance(each, tf.Tensor) and hasattr(each, "graph") for each in value)
    return isinstance(value, tf.Tensor) and hasattr(value, "graph")
