"""The cost of whole training steps, by hand and as published, and the share of the ceiling."""

import json
from dataclasses import asdict

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import Data, Job, run
from tfopt.measure.step_cost import StepCost, roofline, step_cost
from tfopt.report.bench_report import Ceilings
from tfopt.run import prepared

L = keras.layers
B = 4


def two_dense(**arguments):
    return keras.Sequential(
        [
            keras.Input((30,)),
            L.Dense(20, use_bias=False, **arguments),
            L.Dense(7, use_bias=False, **arguments),
        ]
    )


# The first layer's input needs no gradient: twice its forward product, three times the other's.
TWO_DENSE = 2 * (2 * B * 30 * 20) + 3 * (2 * B * 20 * 7)


def a_job(model, x=None, y=None, batch=B, **compile_arguments):
    x = np.zeros((batch, *model.input_shape[1:]), "float32") if x is None else x
    y = np.zeros((batch, *model.output_shape[1:]), "float32") if y is None else y
    arguments = {"optimizer": "sgd", "loss": "mse", **compile_arguments}
    return Job(
        build=lambda: model,
        data=lambda: Data(train=(x, y)),
        compile=lambda: arguments,
        batch_size=batch,
    )


def cost_of(model, **arguments):
    with prepared(a_job(model, **arguments)) as ready:
        return step_cost(ready)


def cost_of_data(model, train):
    compiled = {"optimizer": "sgd", "loss": "mse"}
    job = Job(build=lambda: model, data=lambda: Data(train=train), compile=lambda: compiled)
    with prepared(job) as ready:
        return step_cost(ready)


def products_of(model, **arguments):
    cost = cost_of(model, **arguments)
    assert isinstance(cost, StepCost), cost
    assert "not counted" not in cost.note
    return round(cost.product_gflop * 1e9)


def test_the_update_is_counted_beside_the_products():
    """Adam computes with every weight some ten times, plain SGD twice."""
    sgd, adam = (cost_of(two_dense(), optimizer=name) for name in ("sgd", "adam"))
    weights = 30 * 20 + 20 * 7
    assert adam.product_gflop == sgd.product_gflop
    assert 5 * weights < (adam.gflop_per_step - sgd.gflop_per_step) * 1e9 < 20 * weights
    assert adam.gib_per_step > 2 * sgd.gib_per_step


def convolutions():
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            L.DepthwiseConv2D(3),
            L.Conv2D(8, 3, strides=2),
            L.Conv2DTranspose(4, 3),
            L.GlobalAveragePooling2D(),
        ]
    )


DEPTHWISE = 2 * B * (14 * 14 * 3) * 9
STRIDED = 2 * B * (6 * 6 * 8) * (9 * 3)
TRANSPOSED = 2 * B * (6 * 6 * 8) * (9 * 4)


def grouped():
    return keras.Sequential([keras.Input((8, 8, 4)), L.Conv2D(6, 3, groups=2), L.Flatten()])


def cubes():
    return keras.Sequential([keras.Input((6, 6, 6, 2)), L.Conv3D(5, 3), L.Flatten()])


def attention():
    x = keras.Input((9, 16))
    return keras.Model(x, L.MultiHeadAttention(2, 8)(x, x))


PROJECTION = 2 * B * 9 * 16 * 2 * 8
SCORES = 2 * B * 2 * 9 * 9 * 8


def recurrent():
    return keras.Sequential([keras.Input((7, 5)), L.LSTM(8), L.Dense(10)])


# Seven time steps, each with the products of four gates.
RECURRENT = 7 * (2 * (2 * B * 5 * 4 * 8) + 3 * (2 * B * 8 * 4 * 8)) + 3 * (2 * B * 8 * 10)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (two_dense, TWO_DENSE),
        (convolutions, 2 * DEPTHWISE + 3 * STRIDED + 3 * TRANSPOSED),
        (grouped, 2 * 2 * B * (6 * 6 * 6) * (9 * 2)),
        (cubes, 2 * 2 * B * (4**3 * 5) * (27 * 2)),
        (attention, 2 * (3 * PROJECTION) + 3 * (SCORES + SCORES + PROJECTION)),
        (recurrent, RECURRENT),
    ],
)
def test_products_are_two_m_n_k_thrice_but_for_the_first(make, expected):
    assert products_of(make()) == expected


def forward_gmacs(model):
    """Multiply-adds of one example: half the operations of the traced forward pass."""
    from tfopt.measure.graph_cost import graph_cost

    forward = tf.function(lambda x: model(x, training=False))
    shape = tf.TensorSpec((1, *model.input_shape[1:]))
    counted = graph_cost(forward.get_concrete_function(shape))
    assert not counted.left_out
    return sum(counted.products.values()) / 2e9


def test_a_known_network_costs_what_was_published():
    """Sandler 2018, table 4."""
    model = keras.applications.MobileNetV2(weights=None)
    assert forward_gmacs(model) == pytest.approx(0.300, rel=0.03)


def test_mixed_precision_computes_the_same_in_another_dtype():
    cost = cost_of(two_dense(dtype="mixed_bfloat16"))
    assert round(cost.product_gflop * 1e9) == TWO_DENSE
    assert cost.dtype == "bfloat16"


def test_loss_scaling_takes_the_branch_that_updates():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = two_dense()
        cost = cost_of(model)
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.optimizer.__class__.__name__ == "LossScaleOptimizer"
    assert round(cost.product_gflop * 1e9) == TWO_DENSE
    assert cost.gflop_per_step > cost_of(two_dense()).gflop_per_step
    assert "branches" in cost.note


@pytest.mark.parametrize("arguments", [{"run_eagerly": True}, {"jit_compile": True}])
def test_how_a_step_is_run_does_not_change_what_it_computes(arguments):
    plain, other = cost_of(two_dense()), cost_of(two_dense(), **arguments)
    assert other == plain


class Own(keras.Model):
    """A subclassed model that trains two steps on every batch."""

    input_shape, output_shape = (None, 30), (None, 7)

    def __init__(self):
        super().__init__()
        self.layer_stack = two_dense()
        self.built = True

    def call(self, x):
        return self.layer_stack(x)

    def train_step(self, data):
        x, y = data
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self(x) - y) ** 2)
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


def test_a_train_step_of_ones_own_is_the_one_counted():
    assert products_of(Own()) == 2 * TWO_DENSE


def test_what_no_graph_shows_is_named():
    class WithPython(Own):
        def call(self, x):
            seen = tf.numpy_function(lambda a: a, [x], tf.float32, stateful=False)
            return super().call(tf.ensure_shape(seen, (B, 30)))

    cost = cost_of(WithPython())
    assert "not counted: the arithmetic of PyFunc" in cost.note


def test_what_cannot_be_counted_is_a_reason():
    class Failing(Own):
        def train_step(self, data):
            raise RuntimeError("no such thing\nand more")

    class OwnLoop(Own):
        def make_train_function(self, force=False):
            raise NotImplementedError

    assert cost_of(Failing()) == "the step cannot be traced: RuntimeError: no such thing"
    assert "make_train_function of its own" in cost_of(OwnLoop())


def test_batches_of_a_dataset_and_of_a_generator():
    x, y = np.zeros((10, 30), "float32"), np.zeros((10, 7), "float32")

    def batches():
        yield x[:B], y[:B]
        yield x[:B], y[:B]

    class Sequence(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            return x[:B], y[:B]

    open_batch = tf.data.Dataset.from_tensor_slices((x, y)).batch(B)
    for train in (open_batch, batches, Sequence()):
        cost = cost_of_data(two_dense(), train)
        assert round(cost.product_gflop * 1e9) == TWO_DENSE
        assert "first batch" not in cost.note


def test_examples_of_open_length_count_as_in_the_first_batch():
    rows = [np.zeros((length, 3), "float32") for length in (5, 5, 9, 9)]
    data = tf.data.Dataset.from_generator(
        lambda: ((row, np.zeros(2, "float32")) for row in rows),
        output_signature=(tf.TensorSpec((None, 3)), tf.TensorSpec((2,))),
    ).padded_batch(2)
    model = keras.Sequential([keras.Input((None, 3)), L.Conv1D(2, 3), L.GlobalMaxPooling1D()])
    cost = cost_of_data(model, data)
    assert round(cost.product_gflop * 1e9) == 2 * (2 * 2 * (3 * 2) * (3 * 3))
    assert "first batch" in cost.note


def test_counting_leaves_the_training_as_it_was():
    def build():
        return keras.Sequential([keras.Input((30,)), L.Dropout(0.5, seed=1), L.Dense(7)])

    x = np.random.default_rng(0).normal(size=(16, 30)).astype("float32")
    job = a_job(two_dense(), x, x[:, :7], optimizer="adam").with_(build=build)
    plain = run(job).model.get_weights()
    with prepared(job) as ready:
        assert isinstance(step_cost(ready), StepCost)
        ready.fit()
    for expected, trained in zip(plain, ready.model.get_weights(), strict=True):
        np.testing.assert_array_equal(trained, expected)


def test_a_cost_goes_through_json():
    cost = cost_of(two_dense())
    assert StepCost(**json.loads(json.dumps(asdict(cost)))) == cost


MACHINE = Ceilings("cpu", "float32", 1000.0)


def a_cost(gflop, dtype="float32", note=""):
    return StepCost(gflop, gflop / 2, 1.0, "by hand", dtype, note)


@pytest.mark.parametrize(
    ("gflop", "step_ms", "utilisation", "note"),
    [
        (100.0, 200.0, 0.5, ""),
        (1e-6, 20.0, 5e-8, ""),
        # A speed above the ceiling is explained and kept.
        (100.0, 50.0, 2.0, "faster than the largest product"),
    ],
)
def test_utilisation_is_the_share_of_the_fastest_product(gflop, step_ms, utilisation, note):
    seen = roofline(a_cost(gflop), step_ms, MACHINE, "resident step")
    assert seen.gflops == pytest.approx(gflop / step_ms * 1000)
    assert seen.utilisation == pytest.approx(utilisation)
    assert seen.basis == "resident step"
    assert note in seen.note
    assert bool(note) == bool(seen.note)


def test_notes_are_handed_on_and_a_foreign_ceiling_is_named():
    cost = a_cost(1.0, dtype="bfloat16", note="not counted: X")
    seen = roofline(cost, 100.0, MACHINE, "fit")
    assert seen.note.startswith("not counted: X; ")
    assert "in bfloat16, the ceiling is that of float32" in seen.note
