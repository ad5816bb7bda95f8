"""Bytes of XLA's compiled programs, real ones for the CPU and one written down as for a GPU."""

import pytest
import tensorflow as tf
from tensorflow.compiler.xla.service import hlo_pb2

from tfopt.measure.graph_cost import graph_cost
from tfopt.measure.hlo_bytes import program_bytes, xla_bytes

F32 = 4
ELEMENTS = 1 << 16


def both(function, *shapes):
    """Bytes as XLA's program moves them, and as the graph would unfused."""
    specs = tuple(tf.TensorSpec(shape) for shape in shapes)
    step = tf.function(function, jit_compile=True, autograph=False)
    unfused = graph_cost(step.get_concrete_function(*specs))
    fused = xla_bytes(step, specs, unfused.turns)
    assert not isinstance(fused, str), fused
    return fused, unfused


def test_what_is_fused_is_read_once_and_written_once():
    fused, unfused = both(lambda x: tf.exp(x * 2.0 + 1.0), (ELEMENTS,))
    assert fused.moved_bytes == pytest.approx(2 * F32 * ELEMENTS, rel=0.01)
    assert unfused.moved_bytes == pytest.approx(6 * F32 * ELEMENTS, rel=0.01)


def test_a_product_moves_its_three_matrices():
    fused, _ = both(lambda a, b: tf.matmul(a, b), (300, 200), (200, 100))
    assert fused.moved_bytes == F32 * (300 * 200 + 200 * 100 + 300 * 100)


def test_a_loop_counts_as_often_as_it_turns_and_reads_slices_only():
    def function(x):
        def body(i, total):
            return i + 1, tf.tanh(total + x[i])

        return tf.while_loop(lambda i, total: i < 50, body, [0, x[0]])

    fused, _ = both(function, (50, 1000))
    row = F32 * 1000
    # In each turn: a row and the sum read, the sum written; at most a copy of it besides.
    assert 50 * 3 * row <= fused.moved_bytes <= 50 * 6 * row
    assert fused.notes == ()


def test_loops_that_xla_does_not_see_the_end_of_take_their_turns_from_the_graph():
    def body(i, y):
        return i + 1, tf.tanh(tf.matmul(y, y))

    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(lambda i, y: True, body, [0, x], maximum_iterations=20)
        return tape.gradient(y, x)

    fused, unfused = both(function, (64, 64))
    assert fused.notes == ()
    # Three products a turn, each of three matrices, at the very least.
    assert fused.moved_bytes > 20 * 3 * 3 * F32 * 64 * 64
    specs = (tf.TensorSpec((64, 64)),)
    alone = xla_bytes(tf.function(function, jit_compile=True, autograph=False), specs, {})
    assert any("one turn only" in note for note in alone.notes)
    assert set(unfused.turns.values()) == {20}


def test_what_xla_cannot_compile_is_a_reason():
    step = tf.function(lambda x: tf.strings.to_number(tf.strings.as_string(x)), jit_compile=True)
    reason = xla_bytes(step, (tf.TensorSpec((4,)),), {})
    assert isinstance(reason, str)
    assert "cannot be read" in reason


F32_TYPE, U8_TYPE, TUPLE_TYPE = 11, 6, 13


def instruction(computation, number, opcode, dims=(), operands=(), element=F32_TYPE, tuple_of=()):
    added = computation.instructions.add(id=number, name=f"i{number}", opcode=opcode)
    added.operand_ids.extend(operands)
    added.shape.element_type = TUPLE_TYPE if tuple_of else element
    added.shape.dimensions.extend(dims)
    for kind, size in tuple_of:
        added.shape.tuple_shapes.add(element_type=kind).dimensions.extend(size)
    return added


def test_a_call_of_cudnn_does_not_count_its_working_memory():
    """Written down after XLA's documentation: no program for a GPU has been read."""
    module = hlo_pb2.HloModuleProto(entry_computation_id=1)
    entry = module.computations.add(id=1, root_id=4)
    instruction(entry, 2, "parameter", (8, 4))
    call = ((F32_TYPE, (8, 4)), (U8_TYPE, (1000,)))
    instruction(entry, 3, "custom-call", operands=(2,), tuple_of=call)
    instruction(entry, 4, "get-tuple-element", (8, 4), (3,))
    assert program_bytes(module, {}).moved_bytes == 2 * F32 * 32
