"""The cost of single functions: every kind of operation, loops, branches, what is not run."""

import math

import keras
import pytest
import tensorflow as tf

from tfopt.measure import op_cost as op_kinds
from tfopt.measure.graph_cost import graph_cost

F32 = 4


def traced(function, *shapes, dtype=tf.float32):
    specs = [tf.TensorSpec(shape, dtype) for shape in shapes]
    return tf.function(function, autograph=False).get_concrete_function(*specs)


def counted(function, *shapes, dtype=tf.float32):
    return graph_cost(traced(function, *shapes, dtype=dtype))


def test_a_product_reads_both_sides_and_writes_one():
    cost = counted(tf.matmul, (4, 30), (30, 20))
    assert cost.flops == cost.products["float32"] == 2 * 4 * 30 * 20
    assert cost.moved_bytes == F32 * (4 * 30 + 30 * 20 + 4 * 20)


@pytest.mark.parametrize(
    ("equation", "shapes", "flops"),
    [
        ("abc,cde->abde", [(2, 3, 5), (5, 7, 4)], 2 * 2 * 3 * 5 * 7 * 4),
        ("ii->i", [(4, 4)], 4),
    ],
)
def test_einsum(equation, shapes, flops):
    # TensorFlow's own operation; Keras and tf.einsum may take products instead.
    cost = counted(lambda *xs: tf.raw_ops.Einsum(inputs=list(xs), equation=equation), *shapes)
    assert cost.flops == flops


def test_padding_is_counted_as_in_published_figures():
    cost = counted(lambda x, k: tf.nn.conv2d(x, k, 1, "SAME"), (2, 8, 8, 3), (3, 3, 3, 5))
    assert cost.flops == 2 * (2 * 8 * 8 * 5) * (9 * 3)


def tensorflow_counts(function):
    from tensorflow.python.framework import ops

    graph = function.graph
    nodes = graph.as_graph_def().node
    counts = [ops.get_stats_for_node_def(graph, node, "flops") for node in nodes]
    return sum(count.value for count in counts if count.value)


def test_agreement_with_tensorflows_own_counter_where_it_is_right():
    def forward(x, kernel, depthwise, weights):
        x = tf.nn.conv2d(x, kernel, 1, "VALID")
        x = tf.nn.depthwise_conv2d(x, depthwise, [1, 1, 1, 1], "VALID")
        return tf.matmul(tf.reshape(x, (2, -1)), weights)

    function = traced(forward, (2, 8, 8, 3), (3, 3, 3, 4), (3, 3, 4, 1), (4 * 4 * 4, 10))
    assert graph_cost(function).flops == tensorflow_counts(function)


def test_tensorflows_own_counter_takes_a_wrong_k_for_a_transposed_batch_product():
    """Why it is not used: drop this when it is mended, and look at it again."""
    function = traced(lambda a, b: tf.matmul(a, b, transpose_a=True), (5, 7, 3), (5, 7, 2))
    assert graph_cost(function).flops == 2 * 5 * 3 * 7 * 2
    assert tensorflow_counts(function) == 2 * 5 * 3 * 3 * 2


def test_arithmetic_is_one_an_element_and_whole_numbers_are_not_counted():
    assert counted(lambda a, b: tf.exp(a + b), (4, 8), (8,)).flops == 2 * 32
    assert counted(lambda a: tf.reduce_sum(a, 0), (4, 8)).flops == 32
    assert counted(lambda a: a + a, (4, 8), dtype=tf.int32).flops == 0


def test_views_move_nothing_and_a_part_is_read_in_part():
    view = counted(lambda a: tf.reshape(tf.identity(a), (8, 4)), (4, 8))
    assert (view.flops, view.moved_bytes) == (0, 0)
    part = counted(lambda a: a[:, :2], (4, 8))
    assert part.moved_bytes == 2 * F32 * 4 * 2


def test_what_leads_nowhere_is_not_counted():
    def function(a, b):
        tf.matmul(a, a)
        return tf.matmul(a, b)

    assert counted(function, (4, 4), (4, 2)).flops == 2 * 4 * 4 * 2


def test_called_functions_count_for_what_is_used_of_them():
    @tf.function
    def both(a):
        return tf.matmul(a, a), tf.exp(a)

    assert counted(lambda a: both(a)[1], (4, 4)).flops == 16
    assert counted(lambda a: both(a)[0], (4, 4)).flops == 2 * 4**3


def product_loop(a, most=5):
    """Turn as Keras's recurrent layers and ``tf.map_fn`` do: they say how often at most."""
    body = (lambda i, x: i < 5, lambda i, x: (i + 1, tf.matmul(x, x)), [0, a])
    return tf.while_loop(*body, maximum_iterations=most)[1]


@pytest.mark.parametrize("most", [lambda: 5, lambda: tf.reduce_max(5)])
def test_a_loop_counts_as_often_as_it_may_turn(most):
    cost = counted(lambda a: product_loop(a, most()), (4, 4))
    assert cost.products["float32"] == 5 * 2 * 4**3
    assert not cost.left_out


def test_the_gradient_of_a_loop_turns_as_often():
    def function(a):
        with tf.GradientTape() as tape:
            tape.watch(a)
            x = product_loop(a)
        return tape.gradient(x, a)

    forward, backward = 5 * 2 * 4**3, 5 * 2 * (2 * 4**3)
    assert counted(function, (4, 4)).products["float32"] == forward + backward


def test_loops_within_loops():
    def function(a):
        most = tf.reduce_max(5)
        return tf.while_loop(
            lambda i, x: i < 4,
            lambda i, x: (i + 1, product_loop(x, most)),
            [0, a],
            maximum_iterations=4,
        )[1]

    cost = counted(function, (4, 4))
    assert cost.products["float32"] == 4 * 5 * 2 * 4**3
    assert not cost.left_out


def test_a_loop_that_data_ends_is_named():
    def function(a):
        return tf.while_loop(
            lambda x: tf.reduce_sum(x) < 100.0, lambda x: (tf.matmul(x, x) + 1.0,), [a]
        )

    cost = counted(function, (4, 4))
    assert cost.products["float32"] == 2 * 4**3
    assert any("turns but one" in what for what in cost.left_out)


def test_a_variable_of_a_loop_that_nobody_reads_is_not_computed():
    def function(a):
        def body(i, x, y):
            return i + 1, tf.matmul(x, x), tf.exp(y)

        return tf.while_loop(lambda i, x, y: i < 5, body, [0, a, a], maximum_iterations=5)[2]

    assert counted(tf.function(function), (4, 4)).flops == 5 * 16


def test_of_a_branch_the_costliest_side_is_taken():
    def function(a):
        chosen = tf.reduce_sum(a) > 0.0
        return tf.cond(chosen, lambda: tf.matmul(a, a), lambda: tf.exp(a))

    cost = counted(function, (4, 4))
    assert cost.products["float32"] == 2 * 4**3
    assert any("branches" in what for what in cost.left_out)


@pytest.mark.parametrize(
    ("layer", "shape", "pooled"),
    [
        (keras.layers.AveragePooling2D(3, 2, "same"), (3, 9, 9, 5), 3 * 5 * 5 * 5),
        (keras.layers.AveragePooling3D(2), (3, 4, 4, 4, 5), 3 * 2 * 2 * 2 * 5),
    ],
)
def test_pooling_meets_every_value_of_the_window_forth_and_back(layer, shape, pooled):
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x)
        return tape.gradient(y, x, output_gradients=tf.ones_like(y))

    cost = counted(function, shape)
    assert not cost.left_out
    # The forward pass is not needed for the gradient of an average, and is not counted.
    assert cost.flops == math.prod(layer.pool_size) * pooled


def test_an_operation_without_a_rule_is_named():
    cost = counted(lambda a: tf.linalg.matmul(tf.linalg.inv(a), a), (4, 4))
    assert cost.flops == 2 * 4**3
    assert cost.left_out == {"the arithmetic of MatrixInverse": 1}


def test_shapes_that_only_a_run_shows_are_named():
    cost = counted(lambda a: tf.boolean_mask(a, a[:, 0] > 0) * 2.0, (4, 4))
    assert "the arithmetic of Mul" in cost.left_out


def test_recurrent_layers_in_cudnn_meet_every_weight_at_every_step():
    """The graph alone: there was no GPU to run it on."""

    def function(x, h, c, weights):
        return tf.raw_ops.CudnnRNNV3(
            input=x, input_h=h, input_c=c, params=weights, sequence_lengths=[7, 7],
            rnn_mode="lstm", is_training=True,
        ).output  # fmt: skip

    weights = 4 * 8 * (5 + 8) + 2 * 4 * 8
    cost = counted(function, (7, 2, 5), (1, 2, 8), (1, 2, 8), (weights,))
    assert cost.products["float32"] == 2 * 7 * 2 * weights


def test_every_name_in_the_tables_is_one_of_tensorflow():
    named = {
        *op_kinds.NO_ARITHMETIC, *op_kinds.VIEWS, *op_kinds.READS_A_PART, *op_kinds.AN_INPUT,
        *op_kinds.AN_OUTPUT, *op_kinds.POOLS, *op_kinds.POOL_GRADIENTS, *op_kinds.PRODUCTS,
    }  # fmt: skip
    assert [name for name in named if not hasattr(tf.raw_ops, name)] == []
    assert op_kinds.VIEWS | op_kinds.READS_A_PART <= op_kinds.NO_ARITHMETIC
    assert not op_kinds.NO_ARITHMETIC & {*op_kinds.AN_INPUT, *op_kinds.AN_OUTPUT}
