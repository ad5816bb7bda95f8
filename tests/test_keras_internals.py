"""Names and habits of Keras that may change unseen, on whatever Keras is installed.

What an attribute holds shows in ``test_public_functions.py``, which the same lanes run.
"""

import ast
import re
from contextlib import ExitStack
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import keras_internals as internals
from tfopt.hooks import putting
from tfopt.resume.position import running_fit

L = keras.layers
X = np.ones((8, 3), "float32")


def compiled(**settings):
    model = keras.Sequential([keras.Input((3,)), L.Dense(1)])
    model.compile("adam", "mse", jit_compile=False, **settings)
    return model


def test_functions_that_operations_call_can_be_replaced(monkeypatch):
    monkeypatch.setattr(internals.array_functions(), "argmax", lambda *_, **__: "replaced")
    assert keras.ops.argmax(X) == "replaced"


@pytest.mark.parametrize("steps", [1, 4])
def test_the_last_step_of_an_execution_is_counted(steps):
    ends = []

    class Counting(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(internals.last_step(self.model, batch))

    model = compiled(steps_per_execution=steps)
    model.fit(X, X[:, :1], batch_size=1, verbose=0, callbacks=[Counting()])
    assert ends == list(range(steps - 1, 8, steps))


class OwnTest(keras.Model):
    def test_step(self, data):
        x, y = data
        self.compute_metrics(x, y, self(x))
        own = {"odd": keras.ops.mean(y), "each": y[0]}
        return {metric.name: metric.result() for metric in self.metrics} | own


def test_a_test_step_of_ones_own_is_evaluated_by_metric():
    x = keras.Input((3,))
    model = OwnTest(x, L.Dense(1, kernel_initializer="zeros")(x))
    model.compile("sgd", "mse", metrics=["mae"])
    shown = internals.flat_logs(model.evaluate(X, X[:, :2], verbose=0, return_dict=True))
    assert (shown["mae"], shown["odd"], type(shown["odd"])) == (1, 1, float)
    assert np.shape(shown["each"]) == (2,)
    assert "compile_metrics" not in shown


def an_attention():
    layer, x = L.MultiHeadAttention(1, 2), X[None]
    layer(x, x)
    return layer, lambda: layer(x, x)


def a_normalization():
    layer = L.BatchNormalization()
    layer(X)
    return layer, lambda: layer(X, training=True)


def a_graph():
    model = compiled()
    return internals.functional_inside(model), lambda: model(X)


def a_model():
    model = compiled()
    return model, lambda: model.fit(X, X[:, :1], verbose=0)


def a_model_under_a_strategy():
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        return a_model()


def an_optimizer():
    model, fit = a_model()
    return model.optimizer, fit


def a_variable():
    variable = keras.Variable(1.0)
    return variable, lambda: variable.assign(2.0)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        (internals.ATTENTION, an_attention),
        (internals.ATTENTION_MASK, an_attention),
        (internals.MOMENTS, a_normalization),
        (internals.RUN_GRAPH, a_graph),
        (internals.BUILD, a_model_under_a_strategy),
        (internals.COMPUTE_LOSS, a_model),
        (internals.LOGS_OF_EPOCH, a_model),
        (internals.WEIGHT_DECAY, an_optimizer),
        (internals.DIRECT_ASSIGN, a_variable),
    ],
)
def test_what_is_replaced_on_an_object_keras_calls(name, make):
    holder, act = make()
    plain, calls = getattr(holder, name), []

    def spy(*args, **kwargs):
        calls.append(name)
        return plain(*args, **kwargs)

    with putting() as put:
        put(holder, name, spy)
        act()
    assert calls


def test_a_fit_has_its_dataset_steps_and_batches():
    seen = []

    class Looking(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            fit = running_fit(self.model)
            data, plain = fit.epoch_iterator, getattr(fit.epoch_iterator, internals.STEPS_OF_EPOCH)
            x, y = internals.dataset_of(data).element_spec
            seen.extend([x.shape[1:], y.shape[1:], getattr(data, internals.KNOWN_BATCHES)])
            seen.append(fit.shuffles)
            setattr(data, internals.STEPS_OF_EPOCH, lambda: iter(list(plain())[2:]))

        def on_train_batch_begin(self, batch, logs=None):
            seen.append(batch)

    model = compiled()
    model.fit(X, X[:, :1], batch_size=2, shuffle=False, verbose=0, callbacks=[Looking()])
    assert seen == [(3,), (1,), 4, False, 2, 3]


def test_an_attention_keeps_its_constraint():
    layer = L.MultiHeadAttention(1, 2, kernel_constraint="non_neg")
    found = getattr(layer, internals.ATTENTION_CONSTRAINT)
    assert isinstance(found, keras.constraints.NonNeg)


@pytest.mark.parametrize("asked", [True, False])
def test_attention_of_groups_says_whether_its_scores_are_asked_for(asked):
    layer = L.GroupQueryAttention(2, 2, 1)
    layer(X[None], X[None], return_attention_scores=asked)
    assert internals.asks_for_scores(layer) is asked


@pytest.mark.parametrize(
    "layer", [L.MultiHeadAttention(2, 4), L.GroupQueryAttention(4, 2, 1)], ids=["many", "grouped"]
)
def test_scores_have_the_scale_of_their_layer(layer):
    assert internals.scale_of(layer) == 0.5


@pytest.mark.parametrize("scaled", [True, False])
def test_an_optimizer_updates_each_copy_as_keras_does_on_one_device(scaled):
    def trained(change):
        optimizer = keras.optimizers.AdamW(
            0.1,
            weight_decay=0.1,
            use_ema=True,
            ema_overwrite_frequency=2,
            gradient_accumulation_steps=2,
        )
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        variable = keras.Variable([1.0, 2.0])
        optimizer.build([variable])
        with putting() as put, ExitStack() as undo:
            if change:
                internals.update_each_copy(put, undo, optimizer)
            for _ in range(4):
                optimizer.apply([tf.constant([0.5, -0.5])], [variable])
        return variable.numpy(), type(optimizer)

    (plain, kind), (changed, other_kind) = trained(False), trained(True)
    assert kind is other_kind
    np.testing.assert_allclose(changed, plain, rtol=1e-6)
    assert not np.allclose(plain, [1.0, 2.0])


def test_each_name_that_is_read_is_in_the_roster_and_in_this_keras():
    tree = ast.parse(Path(internals.__file__).read_text("utf-8"))
    read, own = set(), {"_delete_tracking", "_replace"}  # TensorFlow's, and a named tuple's
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            read.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            read.add(node.value)
        elif isinstance(node, ast.FunctionDef) and node not in tree.body:
            read.add(node.name)
    private = {name for name in read if re.fullmatch(r"_[a-z]\w*", name)} - own
    others = {"autocast_scope", "current_call_ctx", "id_to_config_map", "id_to_obj_map", "numpy"}
    rows = [line.split(": ")[1] for line in internals.NEEDED_BY.strip().splitlines()]
    assert {*" ".join(rows).split()} == private | others
    assert internals.lacking() == {}
