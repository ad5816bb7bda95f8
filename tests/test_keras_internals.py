"""Each thing that Keras keeps to itself and tfopt reads, on whatever Keras is installed."""

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


class Asking(L.Layer):
    """A layer that asks something of Keras in its call, and keeps the answer."""

    def __init__(self, ask, **settings):
        super().__init__(**settings)
        self.ask = ask

    def call(self, x):
        self.answer = self.ask(self)
        return x


def test_training_is_what_the_outermost_call_was_given():
    asking = Asking(lambda _: internals.training_of_call())
    model = keras.Sequential([keras.Input((3,)), asking])
    for training in (True, False):
        model(X, training=training)
        assert asking.answer is training
    assert internals.training_of_call() is None


def test_a_state_of_a_call_is_in_force_again_and_behind_it_the_one_before():
    asking = Asking(lambda _: internals.call_state())
    keras.Sequential([keras.Input((3,)), asking])(X, training=True)
    with internals.in_call_state(asking.answer):
        assert internals.training_of_call() is True
    assert internals.training_of_call() is None


def test_without_autocast_variables_are_as_they_are_stored():
    class Reading(L.Layer):
        def build(self, shape):
            self.weight = self.add_weight(shape=(1,))

        def call(self, x):
            with internals.without_autocast():
                self.stored = tf.convert_to_tensor(self.weight.value).dtype
            self.cast = tf.convert_to_tensor(self.weight.value).dtype
            return x

    layer = Reading(dtype="mixed_float16")
    layer(X)
    assert (layer.stored, layer.cast) == (tf.float32, tf.float16)


def test_functions_that_operations_call_can_be_replaced(monkeypatch):
    monkeypatch.setattr(internals.array_functions(), "argmax", lambda *_, **__: "replaced")
    assert keras.ops.argmax(X) == "replaced"


def test_layers_of_a_model_are_all_that_it_keeps():
    class Keeping(L.Layer):
        def __init__(self):
            super().__init__()
            self.one, self.others = L.Dense(2), [L.Dense(2)]

    keeping = Keeping()
    model = keras.Sequential([keeping])
    assert internals.layers_of(model)[0] is model
    inside = internals.layers_inside(model)
    assert {id(each) for each in inside} >= {id(keeping), id(keeping.one), id(keeping.others[0])}
    assert internals.layers_inside(model, recursive=False) == [keeping]


def test_a_rate_is_what_the_optimizer_was_given():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    optimizer = keras.optimizers.SGD(schedule)
    assert internals.learning_rate_of(optimizer) is schedule
    plain = keras.optimizers.SGD(0.5)
    assert any(internals.learning_rate_of(plain) is each for each in plain.variables)


@pytest.mark.parametrize("steps", [1, 4])
def test_the_last_step_of_an_execution_is_counted(steps):
    ends = []

    class Counting(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            ends.append(internals.last_step(self.model, batch))

    model = compiled(steps_per_execution=steps)
    model.fit(X, X[:, :1], batch_size=1, verbose=0, callbacks=[Counting()])
    assert ends == list(range(steps - 1, 8, steps))


def test_compile_settings_are_the_very_arguments_and_auto_is_a_truth():
    model = keras.Sequential([keras.Input((3,)), L.Dense(1)])
    loss = keras.losses.MeanSquaredError()
    model.compile("sgd", loss, loss_weights=0.5)
    assert internals.compile_settings(model)["loss"] is loss
    assert internals.compile_settings(model)["loss_weights"] == 0.5
    assert internals.auto_jit_compile(model) is model.jit_compile


def test_shapes_alone_build_what_a_step_needs():
    model = keras.Sequential([L.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    specs = tuple(tf.TensorSpec((None, width)) for width in (3, 1))
    internals.build_by_shapes(model, specs)
    assert model.built
    assert len(model.optimizer.variables) > 2
    assert len(model.metrics_variables) > 2


def test_a_graph_has_its_calls():
    dense, activation = L.Dense(2), L.ReLU()
    model = keras.Sequential([keras.Input((3,)), dense, activation])
    inner = internals.functional_inside(model)
    depths = internals.nodes_by_depth(inner)
    ordered = [node.operation for depth in sorted(depths, reverse=True) for node in depths[depth]]
    assert ordered[-2:] == [dense, activation]
    assert internals.functional_inside(keras.Sequential([L.Dense(2)])) is None


def test_masks_and_logits_are_carried_over():
    found = L.Masking()(X)
    scores = keras.activations.softmax(tf.constant(X))
    assert internals.mask_of(found) is not None
    assert internals.logits_of(scores) is not None
    bare = tf.identity(scores)
    assert internals.mask_of(bare) is internals.logits_of(bare) is None
    marked = internals.with_metadata(bare, internals.mask_of(found), internals.logits_of(scores))
    assert internals.mask_of(marked) is internals.mask_of(found)
    assert internals.logits_of(marked) is internals.logits_of(scores)


def test_a_built_layer_takes_a_weight_and_forgets_it():
    layer = L.Dense(2)
    layer.build((None, 3))
    variable = internals.add_weight_late(layer, "more", shape=(1,), trainable=False)
    assert "tfopt_more" in layer._trackable_children()
    assert any(each is variable for each in layer.weights)
    with pytest.raises(ValueError, match="cannot add"):
        layer.add_weight(name="another", shape=(1,))
    internals.forget_weight(layer, variable)
    assert [each.name for each in layer.weights] == ["kernel", "bias"]
    assert "tfopt_more" not in layer._trackable_children()


def test_a_frozen_layer_still_has_what_it_was_given_as_trainable():
    layer = L.Dense(2)
    layer.build((None, 3))
    layer.trainable = False
    assert internals.given_as_trainable(layer) == [layer.kernel, layer.bias]
    assert any(
        each is layer.kernel for tracked in internals.tracked_lists(layer) for each in tracked
    )


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


def test_losses_that_are_added_can_be_read_and_overridden():
    layer = L.Dense(1, activity_regularizer="l2", kernel_regularizer="l2")
    model = keras.Sequential([keras.Input((3,)), layer])
    model(X)
    assert len(getattr(layer, internals.LOSSES)) == 1
    assert len(model.losses) == 2
    getattr(model, internals.LOSSES_OVERRIDE).append("mine")
    assert model.losses == ["mine"]


def test_losses_of_compile_are_replaced_for_a_while():
    model = compiled()
    before = float(model.compute_loss(y=X, y_pred=2 * X))
    with putting() as put:
        internals.replace_losses(put, model, lambda plain: lambda *given: 2 * plain(*given))
        assert float(model.compute_loss(y=X, y_pred=2 * X)) == 2 * before
    assert float(model.compute_loss(y=X, y_pred=2 * X)) == before


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


def test_a_variable_has_another_of_tensorflow():
    variable, other = keras.Variable(1.0), tf.Variable(2.0)
    assert isinstance(internals.stored(variable), tf.Variable)
    internals.store(variable, other)
    assert internals.stored(variable) is other
    assert internals.stored(other) is other
    assert float(variable) == 2.0


def test_the_function_that_a_metric_wraps_and_the_names_without_decay():
    def mine(y_true, y_pred):
        return y_true - y_pred

    assert internals.function_of(keras.metrics.MeanMetricWrapper(mine)) is mine
    assert internals.function_of(keras.metrics.Mean()) is None
    optimizer = keras.optimizers.AdamW()
    assert internals.names_without_decay(optimizer) == []
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    (pattern,) = internals.names_without_decay(optimizer)
    assert re.search(pattern, "dense/bias")


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
    others = {"autocast_scope", "current_call_ctx", "id_to_config_map", "numpy"}
    rows = [line.split(": ")[1] for line in internals.NEEDED_BY.strip().splitlines()]
    assert {*" ".join(rows).split()} == private | others
    assert internals.lacking() == {}
