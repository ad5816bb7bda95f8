"""Count the floating point operations of a traced function, by TensorFlow's own profiler."""

from __future__ import annotations

from typing import Any

from tfopt.export.quiet import quiet

_NOT_COUNTED = frozenset(
    {"Einsum", "While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"}
)
"""What the profiler passes over, a whole loop or branch with all that is in it."""


def float_operations(function: Any) -> tuple[int, str]:
    """Return the operations of a concrete function whose shapes are fixed, and what is not counted.

    A product of m·k by k·n values counts 2·m·k·n. The forward pass of a model is counted right
    within a percent or so; gradients are not (of products in batches, of depthwise convolutions).
    """
    import tensorflow as tf

    profiler = tf.compat.v1.profiler
    counting = profiler.ProfileOptionBuilder.float_operation()
    options = profiler.ProfileOptionBuilder(counting).with_empty_output().build()
    with quiet():
        found = profiler.profile(function.graph, options=options)
    kinds = {op.type for op in function.graph.get_operations()} & _NOT_COUNTED
    note = f"of its operations not counted: {', '.join(sorted(kinds))}" if kinds else ""
    return found.total_float_ops, note
