"""Each thing that Keras keeps to itself and tfopt reads, on whatever Keras is installed."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import keras_internals as internals

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


def test_saving_is_noticed(tmp_path):
    class Noticing(keras.constraints.Constraint):
        seen = False

        def __call__(self, w):
            return w

        def get_config(self):
            self.seen |= internals.is_saving()
            return {}

    noticing = Noticing()
    assert noticing.get_config() == {}
    assert not noticing.seen
    model = keras.Sequential([keras.Input((3,)), L.Dense(1, kernel_constraint=noticing)])
    model.save(tmp_path / "m.keras")
    assert noticing.seen


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


def test_a_fit_begins_at_an_epoch():
    epochs = []

    class Later(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            internals.begin_at(self.model, 2)

        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(epoch)
            internals.begin_at(self.model, None)

    compiled().fit(X, X[:, :1], epochs=4, verbose=0, callbacks=[Later()])
    assert epochs == [2, 3]


@pytest.mark.parametrize("steps_before", [0, 3])
def test_accumulators_make_the_optimizer_that_keras_makes(steps_before):
    model = compiled()
    for _ in range(steps_before):
        model.train_on_batch(X, X[:, :1])
    internals.add_gradient_accumulators(model.optimizer, 2)
    model.train_function = None
    model.train_on_batch(X, X[:, :1])
    assert int(model.optimizer.iterations) == steps_before
    wanted = keras.optimizers.Adam(gradient_accumulation_steps=2)
    wanted.build(model.trainable_variables)
    found = model.optimizer.variables
    assert [each.name for each in found] == [each.name for each in wanted.variables]


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


def test_a_graph_has_its_calls_and_tensors_their_operations():
    dense, activation = L.Dense(2), L.ReLU()
    model = keras.Sequential([keras.Input((3,)), dense, activation])
    inner = internals.functional_inside(model)
    depths = internals.nodes_by_depth(inner)
    ordered = [node.operation for depth in sorted(depths, reverse=True) for node in depths[depth]]
    assert ordered[-2:] == [dense, activation]
    (result,) = internals.first_results(activation)
    assert internals.operation_of(result) is activation
    assert internals.operation_of(inner.outputs[0]) is activation
    assert internals.first_results(L.Dense(2)) is None
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
    with internals.unlocked(layer):
        variable = layer.add_weight(name="more", shape=(1,), trainable=False)
    assert any(each is variable for each in layer.weights)
    with pytest.raises(ValueError, match="cannot add"):
        layer.add_weight(name="another", shape=(1,))
    internals.forget_weight(layer, variable)
    assert [each.name for each in layer.weights] == ["kernel", "bias"]


def test_a_frozen_layer_still_has_what_it_was_given_as_trainable():
    layer = L.Dense(2)
    layer.build((None, 3))
    layer.trainable = False
    assert internals.own_trainable_variables(layer) == [layer.kernel, layer.bias]
    assert any(
        each is layer.kernel for tracked in internals.tracked_lists(layer) for each in tracked
    )
