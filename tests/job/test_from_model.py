"""Job.from_model and rebuild: what carries over, what is refused."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import Job, LearningRate, UserError, mixed_precision, run
from tfopt.hooks import named_arguments
from tfopt.job.rebuild import rebuild
from tfopt.run import prepared

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 6)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def own_activation(x):
    return keras.ops.tanh(x) * 0.5


class Scale(keras.layers.Layer):
    """A user's layer, not registered anywhere."""

    def __init__(self, start=1.0, **kwargs):
        super().__init__(**kwargs)
        self.start = start

    def build(self, shape):
        self.gain = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.gain * self.start

    def get_config(self):
        return {**super().get_config(), "start": self.start}


class Subclassed(keras.Model):
    def __init__(self, width=4, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.hidden = keras.layers.Dense(width, activation="relu")
        self.out = keras.layers.Dense(2)

    def call(self, x):
        return self.out(self.hidden(x))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


class NoConfig(keras.Model):
    def __init__(self, width):
        super().__init__()
        self.out = keras.layers.Dense(width)

    def call(self, x):
        return self.out(x)


class Weighted(keras.layers.Layer):
    """Makes objects for its configuration each time."""

    def __init__(self, strengths=(), **kwargs):
        super().__init__(**kwargs)
        self.strengths = strengths

    def get_config(self):
        penalties = [keras.regularizers.serialize(keras.regularizers.L2(s)) for s in self.strengths]
        return {**super().get_config(), "penalties": penalties}

    @classmethod
    def from_config(cls, config):
        penalties = map(keras.regularizers.deserialize, config.pop("penalties"))
        return cls([round(float(penalty.l2), 1) for penalty in penalties], **config)


class Tied(keras.layers.Layer):
    """Scores by the kernel of another layer, which it holds."""

    def __init__(self, table, **kwargs):
        super().__init__(**kwargs)
        self.table = table

    def call(self, x):
        return keras.ops.matmul(x, keras.ops.transpose(self.table.embeddings))

    def get_config(self):
        table = keras.saving.serialize_keras_object(self.table)
        return {**super().get_config(), "table": table}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "table": keras.saving.deserialize_keras_object(config["table"])})


def own_loss(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)


class Parted(Tied):
    """Makes a layer of its own where Keras would give it the shared one."""

    @classmethod
    def from_config(cls, config):
        table = {**config["table"], "shared_object_id": None}
        return super().from_config({**config, "table": table})


def sequential():
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(5, "relu"),
            Scale(0.5),
            keras.layers.Dense(3, own_activation),
            keras.layers.Dense(2),
        ]
    )


def functional():
    shared = keras.layers.Dense(6, "relu")
    x = keras.Input((6,))
    h = keras.layers.Add()([shared(x), shared(shared(x))])
    inner = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(4), keras.layers.LayerNormalization()]
    )
    return keras.Model(x, keras.layers.Dense(2)(inner(h)))


def subclassed():
    model = Subclassed(5)
    model(X[:2])
    return model


def compiled(model, optimizer="adam", **settings):
    model.compile(optimizer, own_loss, jit_compile=False, **settings)
    return model


def trained(optimizer):
    model = compiled(sequential(), optimizer)
    model.fit(X, Y, verbose=0)
    return model


def frozen():
    model = subclassed()
    model.hidden.trainable = False
    return model


@pytest.mark.parametrize("make", [sequential, functional, frozen])
def test_training_goes_on_exactly_where_the_model_was(make):
    def begun():
        keras.utils.set_random_seed(1)
        optimizer = keras.optimizers.Adam(0.01, beta_1=0.7)
        model = compiled(make(), optimizer, metrics=["accuracy"])
        model.fit(X, Y, batch_size=32, shuffle=False, verbose=0)
        return model

    plain, entered = begun(), begun()
    before = entered.get_weights()
    np.testing.assert_array_equal(rebuild(entered)(X), entered(X))
    job = Job.from_model(entered, (X, Y), batch_size=96, epochs=2, seed=5)
    outcome = run(job)
    plain.fit(X, Y, batch_size=96, epochs=2, verbose=0)

    for expected, got in zip(plain.get_weights(), outcome.model.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)
    assert int(outcome.model.optimizer.iterations) == 3 + 2
    assert outcome.model.optimizer.beta_1 == 0.7
    assert "accuracy" in outcome.history
    for old, now in zip(before, entered.get_weights(), strict=True):
        np.testing.assert_array_equal(old, now)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"validation_data": (X, Y)}, "no field 'validation_data'[\\s\\S]*validation=\\(x_val"),
        ({"class_weight": {0: 2.0}}, "no field 'class_weight'[\\s\\S]*\\(x, y, weights\\)"),
        (
            {"callbacks": [keras.callbacks.EarlyStopping()]},
            "functions that return[\\s\\S]*lambda: EarlyStopping",
        ),
    ],
)
def test_a_word_of_fit_is_refused_with_its_place(setting, words):
    with pytest.raises(UserError, match=words):
        Job.from_model(compiled(sequential()), (X, Y), **setting)


def two_inputs():
    a, b = keras.Input((6,)), keras.Input((6,))
    h = keras.layers.Concatenate()([a, b])
    return keras.Model([a, b], [keras.layers.Dense(2)(h), keras.layers.Dense(2)(h)])


def test_what_load_data_returns_is_the_training_and_the_test_part():
    def parts(model, data):
        return Job.from_model(compiled(model), data).data()

    for model in (sequential(), subclassed()):
        found = parts(model, ((X, Y), (X[:40], Y[:40])))
        assert found.train[0] is X
        assert len(found.test[0]) == 40
    train, test = (tf.data.Dataset.from_tensors((X[:n], Y[:n])) for n in (96, 40))
    assert parts(sequential(), (train, test)).test is test
    # Two inputs and two targets are no test part.
    assert parts(two_inputs(), ((X, X), (Y, Y))).test is None


@keras.saving.register_keras_serializable("test_from_model")
class Task(keras.Sequential):
    """A model with methods as KerasHub's tasks have them."""

    def compile(self, optimizer="auto", loss="auto", **kwargs):
        super().compile("sgd" if optimizer == "auto" else optimizer, loss, **kwargs)

    def fit(self, x=None, y=None, **kwargs):
        return super().fit(x, y, **kwargs)


@keras.saving.register_keras_serializable("test_from_model")
class Distiller(Task):
    def compile(self, optimizer, alpha, **kwargs):
        super().compile(optimizer, **kwargs)

    def fit(self, *args, **kwargs):
        return super().fit(*args, **kwargs)


def test_methods_that_pass_their_arguments_on_train_as_keras_own():
    losses = []
    for kind in (Task, keras.Sequential):
        keras.utils.set_random_seed(1)
        model = compiled(kind([keras.Input((6,)), keras.layers.Dense(2)]))
        losses += run(Job.from_model(model, (X, Y), epochs=2)).history["loss"]
    np.testing.assert_allclose(losses[:2], losses[2:], rtol=1e-5)

    model = Distiller([keras.Input((6,)), keras.layers.Dense(2)])
    model.compile("sgd", 0.1, loss=own_loss)
    with pytest.raises(UserError, match=r"Distiller.compile\(\) takes alpha, which cannot be read"):
        Job.from_model(model, (X, Y))
    assert named_arguments(model, "fit", X, Y, epochs=3)["epochs"] == 3


def test_losses_weights_and_metrics_of_two_outputs_carry_over():
    x = keras.Input((6,))
    h = keras.layers.Dense(4)(x)
    model = keras.Model(
        x, {"a": keras.layers.Dense(1, name="a")(h), "b": keras.layers.Dense(1, name="b")(h)}
    )
    model.compile(
        "sgd",
        loss={"a": "mse", "b": keras.losses.Huber(delta=0.3)},
        loss_weights={"a": 0.25, "b": 3.0},
        metrics={"b": [keras.metrics.MeanAbsoluteError(name="off")]},
    )
    targets = {"a": Y[:, None].astype("float32"), "b": Y[:, None].astype("float32")}
    outcome = run(Job.from_model(model, (X, targets), epochs=1))
    carried = outcome.model._compile_config.config
    assert carried["loss_weights"] == {"a": 0.25, "b": 3.0}
    assert carried["loss"]["b"]._fn_kwargs["delta"] == 0.3
    assert any("off" in name for name in outcome.history)


def test_what_cannot_be_rebuilt_unbuilt_uncompiled_and_keras_2_models_are_refused():
    model = NoConfig(2)
    model(X[:2])
    compiled(model)
    with pytest.raises(UserError, match=r"cannot be rebuilt.*\n[^$]*get_config"):
        Job.from_model(model, (X, Y))
    half_built = Subclassed()
    with warnings.catch_warnings(action="ignore"):  # Keras says so, and goes on
        half_built.build((None, X.shape[1]))
    compiled(half_built)
    with pytest.raises(UserError, match="has 0 weights and its copy 4; call it once on a batch"):
        Job.from_model(half_built, (X, Y))
    tokens, table = keras.Input((4,), dtype="int32"), keras.layers.Embedding(9, 3)
    parted = compiled(keras.Model(tokens, Parted(table)(table(tokens))))
    with (
        warnings.catch_warnings(action="ignore"),  # Keras says that the copy is not built
        pytest.raises(UserError, match="has 1 weights and its copy 2; a layer that is an attr"),
    ):
        Job.from_model(parted, (X, Y))
    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    unbuilt.compile("sgd", "mse")
    with pytest.raises(UserError, match="not built"):
        Job.from_model(unbuilt, (X, Y))
    with pytest.raises(UserError, match="needs a compiled model"):
        Job.from_model(sequential(), (X, Y))
    tf_keras = pytest.importorskip("tf_keras")

    model = tf_keras.Sequential([tf_keras.layers.Dense(2, input_shape=(6,))])
    with pytest.raises(UserError, match=r"from tf_keras(.|\n)*TFLiteConverter.from_keras_model"):
        Job.from_model(model, (X, Y))


def test_a_layer_that_another_one_holds_stays_one_layer():
    tokens, table = keras.Input((4,), dtype="int32"), keras.layers.Embedding(9, 3)
    tied = compiled(keras.Model(tokens, Tied(table)(table(tokens))))
    for copy in (rebuild(tied), mixed_precision(tied, "mixed_bfloat16")):
        assert len(copy.weights) == 1
        assert copy.layers[2].table is copy.layers[1]
        np.testing.assert_array_equal(copy.weights[0], tied.weights[0])


def test_objects_that_a_configuration_makes_and_drops_are_not_shared():
    """Keras marks objects by their address, which the next one may have again."""
    strengths = [n / 10 for n in range(50)]
    model = keras.Sequential([keras.Input((6,)), Weighted(strengths)])
    assert rebuild(model).layers[0].strengths == strengths


def test_adapted_preprocessing_layers_carry_their_state():
    words = np.array(["a b c", "c d", "e f", "a f"] * 8, dtype=object)
    vectorize = keras.layers.TextVectorization(20, output_sequence_length=4)
    vectorize.adapt(words)
    text = keras.Input((), dtype="string")
    hidden = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(20, 4)(vectorize(text)))
    normalize = keras.layers.Normalization()
    normalize.adapt(X * 3 + 1)
    numbers = keras.Input((6,))
    merged = keras.layers.Concatenate()([hidden, normalize(numbers)])
    model = keras.Model((text, numbers), keras.layers.Dense(2)(merged))
    copy = rebuild(model)
    data = (keras.ops.convert_to_tensor(words), keras.ops.convert_to_tensor(X[:32]))
    np.testing.assert_array_equal(copy(data), model(data))


def test_two_functions_of_one_name_are_refused():
    def scaled(factor):
        def act(x):
            return x * factor

        return act

    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(3, scaled(1)), keras.layers.Dense(2, scaled(100))]
    )
    with pytest.raises(UserError, match="two different objects named 'act'"):
        rebuild(model)


class Shifted(Scale):
    """With a method among its attributes, besides those that Keras puts there."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.chosen = self.moved

    def build(self, shape):
        super().build(shape)

    def moved(self, x):
        return x + 1.0

    def call(self, x):
        return super().call(self.chosen(x))


def test_lambdas_and_layers_with_methods_of_their_own_are_the_same_functions_with_all_that_they_refer_to():
    held = {"factor": 3.0}
    twice, more = (lambda x: keras.ops.tanh(x) * 2.0), (lambda x: x * held["factor"] + len(X))
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(3, twice), keras.layers.Lambda(more), Shifted()]
    )
    model.add(Shifted())
    copy = rebuild(model)
    np.testing.assert_array_equal(copy(X), model(X))
    assert copy.layers[0].activation is model.layers[0].activation is twice
    assert copy.layers[1].function is more
    assert twice.__name__ == more.__name__ == "<lambda>"


def test_a_new_rate_is_not_undone_by_the_carried_state():
    model = trained(keras.optimizers.Adam(0.001))
    outcome = run(Job.from_model(model, (X, Y)), LearningRate(0.05))
    assert float(outcome.model.optimizer.learning_rate) == pytest.approx(0.05)
    decaying = run(Job.from_model(model, (X, Y)), LearningRate(0.05, decay="cosine"))
    # Under a schedule of its own the optimizer begins anew.
    assert int(decaying.model.optimizer.iterations) == 3


class OwnWarmup(keras.optimizers.schedules.LearningRateSchedule):
    """A user's schedule, not registered anywhere, around another one."""

    def __init__(self, after):
        self.after = after

    def __call__(self, step):
        return keras.ops.minimum(0.01 * keras.ops.cast(step, "float32"), self.after(step))

    def get_config(self):
        return {"after": self.after}


def test_loss_scaling_decay_exclusions_and_a_schedule_of_the_users_own_carry_over():
    schedule = OwnWarmup(keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9))
    inner = keras.optimizers.AdamW(schedule, beta_1=0.7)
    inner.exclude_from_weight_decay(var_names=["bias"])
    model = trained(keras.optimizers.LossScaleOptimizer(inner, initial_scale=64.0))
    trained_on = run(Job.from_model(model, (X, Y))).model
    inner = trained_on.optimizer.inner_optimizer
    assert trained_on.optimizer.initial_scale == 64.0
    for variable in trained_on.trainable_variables:
        assert inner._use_weight_decay(variable) == (variable.name != "bias")
    assert inner._learning_rate is schedule
    assert (inner.beta_1, int(inner.iterations)) == (0.7, 6)


class TopK(keras.metrics.Metric):
    """Its configuration leaves out ``k``, as that of many a metric does."""

    def __init__(self, k=2, name="top"):
        super().__init__(name=name)
        self.k = k
        self.seen = self.add_variable((), "zeros", name="seen")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.seen.assign(float(self.k))

    def result(self):
        return self.seen


def test_a_metric_that_does_not_tell_a_setting_is_refused():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", metrics=[TopK(k=7)])
    with pytest.raises(UserError, match=r"TopK in compile.*incomplete get_config") as caught:
        Job.from_model(model, (np.zeros((4, 4)), np.zeros((4, 2))))
    assert "get_config() with k" in str(caught.value)


def test_loss_scaling_under_a_policy_that_was_global_then_carries_over():
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = compiled(keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)]))
    finally:
        keras.config.set_dtype_policy("float32")
    model.fit(X, Y, verbose=0)
    model.optimizer.dynamic_scale.assign(64.0)
    with prepared(Job.from_model(model, (X, Y))) as ready:
        assert float(ready.model.optimizer.dynamic_scale) == 64.0
        assert int(ready.model.optimizer.inner_optimizer.iterations) == 3
