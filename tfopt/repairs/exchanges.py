"""What replicas have exchanged in a graph: the same on each of them, whatever it was made of.

Guarantees: each result of a replica's ``all_reduce`` and ``all_gather`` is known as long as its
graph lives, from the first ``follow()`` on; nothing else is changed.
"""

from __future__ import annotations

import threading
from functools import wraps
from typing import Any

_EXCHANGED = "tfopt_exchanged"
_lock = threading.Lock()
_followed: list[bool] = []


def follow() -> None:
    """From now on exchanges are noted; asking twice does no more."""
    import tensorflow as tf

    with _lock:
        if _followed:
            return
        _followed.append(True)
        for name in ("all_reduce", "all_gather"):
            setattr(
                tf.distribute.ReplicaContext,
                name,
                _noting(getattr(tf.distribute.ReplicaContext, name)),
            )


def _noting(plain: Any) -> Any:
    @wraps(plain)
    def exchange(*arguments: Any, **named: Any) -> Any:
        import tensorflow as tf

        result = plain(*arguments, **named)
        for each in tf.nest.flatten(result, expand_composites=True):
            if hasattr(each, "graph"):
                each.graph.add_to_collection(_EXCHANGED, each.name)
        return result

    return exchange


def exchanged_in(graph: Any) -> set[str]:
    """The names of what was exchanged."""
    return set(graph.get_collection(_EXCHANGED))
