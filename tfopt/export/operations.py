"""Count the floating point operations of a traced function, by TensorFlow's own profiler."""

from __future__ import annotations

from typing import Any

from tfopt.export.quiet import quiet

_NOT_COUNTED = frozenset(
    {"Einsum", "While", "StatelessWhile", "If", "StatelessIf", "Case", "StatelessCase"}
)
"""Operations that the profiler does not count, with the bodies of loops and branches."""


def float_operations(function: Any) -> tuple[int, str]:
    """Return the FLOPs of a concrete function of fixed shapes, and a note on what is not counted.

    A product of m·k by k·n values counts 2·m·k·n. Forward passes are right within a percent or so;
    gradients (of batched products and depthwise convolutions) are not.
    """
    import tensorflow as tf

    profiler = tf.compat.v1.profiler
    counting = profiler.ProfileOptionBuilder.float_operation()
    options = profiler.ProfileOptionBuilder(counting).with_empty_output().build()
    with quiet():
        profile = profiler.profile(function.graph, options=options)
    kinds = {op.type for op in function.graph.get_operations()} & _NOT_COUNTED
    note = f"operations not counted: {', '.join(sorted(kinds))}" if kinds else ""
    return profile.total_float_ops, note
