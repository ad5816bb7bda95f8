"""Mixed precision: policies, outputs in float32, weights kept, loss scaling kept on saving."""

from contextlib import nullcontext

import keras
import numpy as np
import pytest
import tensorflow as tf
from one_transform import effect_of, run_of

from tfopt import Job, MixedPrecision, UserError, mixed_precision, run
from tfopt.train import precision

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 8, 6)).astype("float32")
Y = (X.mean(axis=(1, 2)) > 0).astype("int64")


def rebuilt(transform, model):
    """What the transform makes of a model, and what it says."""
    run = run_of(transform)
    return transform.rebuild(run, model), effect_of(run)


@pytest.fixture(autouse=True)
def same_weights_every_time():
    keras.utils.set_random_seed(0)


def attention_model():
    x = keras.Input((8, 6))
    h = keras.layers.MultiHeadAttention(2, 4)(x, x)
    h = keras.layers.LayerNormalization()(h + x)
    h = keras.layers.Bidirectional(keras.layers.LSTM(4))(h)
    return keras.Model(x, keras.layers.Dense(2, "softmax")(h))


def nested_model():
    inner = keras.Sequential([keras.Input((8, 6)), keras.layers.Dense(5, "relu")])
    head = keras.Sequential([keras.Input((40,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    x = keras.Input((8, 6))
    return keras.Model(x, head(keras.layers.Flatten()(inner(x))))


@pytest.mark.parametrize(
    ("make", "policy"), [(attention_model, "mixed_float16"), (nested_model, "mixed_bfloat16")]
)
def test_a_built_model_comes_back_in_half_precision_with_the_same_weights(make, policy):
    model = make()
    mixed = mixed_precision(model, policy)

    for old, now in zip(model.get_weights(), mixed.get_weights(), strict=True):
        np.testing.assert_array_equal(old, now)
    assert {str(v.dtype) for v in mixed.trainable_variables} == {"float32"}
    half = [layer for layer in mixed._flatten_layers() if layer.compute_dtype == policy[6:]]
    assert len(half) > 3
    expected = model.predict(X, verbose=0)
    got = mixed.predict(X, verbose=0)
    assert got.dtype == "float32"
    np.testing.assert_allclose(got, expected, rtol=0.02, atol=0.03)
    assert not np.array_equal(got, expected), "nothing was computed in half precision"
    assert {layer.compute_dtype for layer in model._flatten_layers()} == {"float32"}


def test_two_outputs_of_different_kinds_both_stay_float32():
    x = keras.Input((6,))
    h = keras.layers.Dense(4)(x)
    logits = keras.layers.Dense(3, name="logits")(h)
    model = keras.Model(
        x, {"p": keras.layers.Softmax(name="p")(logits), "h": keras.layers.Dense(1, name="h")(h)}
    )
    by_name = {
        layer.name: layer.compute_dtype for layer in mixed_precision(model, "mixed_float16").layers
    }
    assert (by_name["p"], by_name["h"], by_name["logits"]) == ("float32", "float32", "float16")
    note = rebuilt(MixedPrecision("mixed_float16"), model)[1].note
    assert note.endswith("output h, p in float32")

    # Where an operation gives the output, the layers before it.
    h = keras.layers.Dense(4, name="left")(x)
    total = h + keras.layers.Dense(4, name="right")(keras.layers.Dense(4)(h))
    model = keras.Model(x, keras.ops.softmax(total)[:, :2])
    mixed = mixed_precision(model, "mixed_bfloat16")
    assert mixed(X[:, 0]).dtype == "float32"
    policies = {layer.name: layer.compute_dtype for layer in mixed._flatten_layers()}
    assert (policies["left"], policies["right"]) == ("float32", "float32")
    assert "bfloat16" in policies.values()


class Block(keras.layers.Layer):
    """Layers made in the constructor, as people write them: without a dtype."""

    def __init__(self, follow=False, **kwargs):
        super().__init__(**kwargs)
        self.follow = follow
        dtype = {"dtype": self.dtype_policy} if follow else {}
        self.attention = keras.layers.MultiHeadAttention(2, 4, **dtype)
        self.norm = keras.layers.LayerNormalization(**dtype)

    def build(self, shape):
        self.attention.build(shape, shape)
        self.norm.build(shape)

    def call(self, x):
        return self.norm(x + self.attention(x, x))

    def get_config(self):
        return {**super().get_config(), "follow": self.follow}


def block_model(follow):
    stack = [keras.layers.Dense(6), Block(follow, name="block"), keras.layers.Flatten()]
    return keras.Sequential([keras.Input((8, 6)), *stack, keras.layers.Dense(2)])


@pytest.mark.parametrize("follow", [False, True])
def test_a_class_that_keeps_its_layers_in_float32_is_left_whole_and_named(tmp_path, follow):
    model = block_model(follow)
    mixed, effect = rebuilt(MixedPrecision("mixed_bfloat16"), model)
    block = mixed.get_layer("block")
    expected = {"bfloat16"} if follow else {"float32"}
    assert {layer.compute_dtype for layer in block._flatten_layers()} == expected
    obstacle = (
        "Block creates MultiHeadAttention, LayerNormalization without dtype=self.dtype_policy"
    )
    assert (obstacle in effect.note) != follow
    assert effect.acted
    warned = pytest.warns(RuntimeWarning, match=obstacle)
    with nullcontext() if follow else warned:
        mixed = mixed_precision(model, "mixed_bfloat16")
    np.testing.assert_allclose(mixed(X), model(X), atol=0.1)
    mixed.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras", custom_objects={"Block": Block})
    np.testing.assert_array_equal(loaded(X), mixed(X))


class Spectrum(keras.layers.Layer):
    """Calls an operation that takes no half precision; Keras does not trace it when it is built."""

    def call(self, x):
        real, imaginary = keras.ops.stft(x, 8, 4, 8)
        return keras.ops.sqrt(real**2 + imaginary**2 + 1e-6)

    def compute_output_shape(self, shape):
        return (shape[0], shape[1] // 4 + 1, 5)


@pytest.mark.parametrize(
    "layer", [Spectrum(), keras.layers.STFTSpectrogram("log", 8, 4, 8, expand_dims=False)]
)
def test_a_layer_that_does_not_compute_in_half_precision_stays_float32_and_is_named(layer):
    wave = keras.Input((64, 1))
    signal = wave[..., 0] if isinstance(layer, Spectrum) else wave
    h = keras.layers.Dense(4, name="hidden")(layer(signal))
    model = keras.Model(wave, keras.layers.Dense(2)(h))
    with pytest.warns(RuntimeWarning, match=f"{layer.name} .* does not compute in mixed_bfloat16"):
        mixed = mixed_precision(model, "mixed_bfloat16")
    assert mixed.get_layer(layer.name).compute_dtype == "float32"
    assert mixed.get_layer("hidden").compute_dtype == "bfloat16"
    x = RNG.normal(size=(2, 64, 1))
    np.testing.assert_allclose(mixed(x), model(x), atol=0.2)


class Penalty(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.mean(x**2))
        return x


def test_what_adds_a_penalty_to_the_loss_stays_float32_and_is_named():
    penalised = keras.layers.Dense(4, activity_regularizer="l2", name="penalised")
    layers = [penalised, Penalty(name="own"), keras.layers.Dense(4, name="hidden")]
    model = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.warns(
        RuntimeWarning, match="penalised \\(float32, for its activity regularizer\\), own"
    ):
        mixed = mixed_precision(model, "mixed_bfloat16")
    assert [layer.compute_dtype for layer in mixed.layers[:3]] == ["float32", "float32", "bfloat16"]
    x, y = X[:, 0], np.zeros((len(X), 1))
    plain, half = (each.fit(x, y, verbose=0).history["loss"] for each in (model, mixed))
    assert half == pytest.approx(plain, rel=0.05)


class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden, self.out = keras.layers.Dense(4), keras.layers.Dense(2)

    def call(self, x):
        return self.out(self.hidden(x))

    def get_config(self):
        return super().get_config()


def subclassed():
    model = Subclassed(name="own")
    model(X[:, 0])
    return model


def one_layer():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, name="only")])


@keras.saving.register_keras_serializable("test_precision")
class Task(keras.Model):
    """A class that makes its head for a model that is given, as KerasHub's tasks do."""

    def __init__(self, backbone, **kwargs):
        inputs = keras.Input((6,))
        super().__init__(inputs, keras.layers.Dense(2, name="head")(backbone(inputs)), **kwargs)
        self.backbone = backbone

    def get_config(self):
        backbone = keras.saving.serialize_keras_object(self.backbone)
        return {"name": self.name, "backbone": backbone}

    @classmethod
    def from_config(cls, config):
        backbone = keras.saving.deserialize_keras_object(config["backbone"])
        return cls(**{**config, "backbone": backbone})


def test_a_model_that_a_class_is_given_follows_and_the_rest_is_as_the_class_makes_it():
    inputs = keras.Input((6,))
    task = Task(keras.Model(inputs, keras.layers.Dense(4, "relu")(inputs)))
    half, effect = rebuilt(MixedPrecision("mixed_bfloat16"), task)
    assert half.backbone.layers[1].compute_dtype == "bfloat16"
    assert half.layers[-1].compute_dtype == "float32"
    np.testing.assert_allclose(half(X[:, 0]), task(X[:, 0]), atol=0.05)
    assert effect.note == "1 layer in mixed_bfloat16; the other layers as Task makes them"


class OwnStep(keras.Model):
    """The step of Keras's guide, which does not scale its loss."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.scaled(self.compute_loss(y=y, y_pred=self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}

    def scaled(self, loss):
        return loss


class ScaledStep(OwnStep):
    def train_step(self, data):
        self.scaled = self.optimizer.scale_loss
        return super().train_step(data)


@pytest.mark.parametrize(("kind", "scales"), [(OwnStep, False), (ScaledStep, True)])
def test_a_step_that_does_not_scale_its_loss_is_warned_of_in_float16(kind, scales):
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4, "tanh")(inputs)
    model = kind(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", "mse")
    words = "OwnStep.train_step must scale its loss in mixed_float16"
    with nullcontext() if scales else pytest.warns(RuntimeWarning, match=words):
        half = mixed_precision(model, "mixed_float16")
    before = half.get_weights()
    half.fit(X[:, 0], X[:, 0, :1], epochs=2, verbose=0)
    moved = max(abs(a - b).max() for a, b in zip(half.get_weights(), before, strict=True))
    assert (moved > 1e-3) == scales
    _, effect = rebuilt(MixedPrecision("mixed_float16"), model)
    assert (words in effect.note) != scales
    assert mixed_precision(model, "mixed_bfloat16").compute_dtype == "bfloat16"  # unwarned


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (subclassed, "Subclassed creates its layers itself"),
        (one_layer, "nothing was changed: output only in float32"),
    ],
)
def test_a_model_in_which_nothing_can_be_retyped_stays_itself(make, reason):
    model = make()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    warned = pytest.warns(RuntimeWarning, match="'own' is not all in mixed_float16: Subclassed")
    with warned if make is subclassed else nullcontext():
        assert mixed_precision(model, "mixed_float16") is model
    job = Job.from_model(model, (X[:, 0], Y))
    ((_, effect),) = run(job, MixedPrecision("mixed_float16")).effects
    assert not effect.acted
    assert reason in effect.note


def test_a_compiled_model_keeps_its_optimizer_state_and_a_saved_one_its_loss_scaling(tmp_path):
    model = nested_model()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(X, Y, verbose=0)
    mixed = mixed_precision(model, "mixed_float16")
    assert isinstance(mixed.optimizer, keras.optimizers.LossScaleOptimizer)
    inner = mixed.optimizer.inner_optimizer
    for old, now in zip(model.optimizer.variables, inner.variables, strict=True):
        np.testing.assert_array_equal(old.numpy(), now.numpy())
    # Of two models inside each other, the output layer alone stays float32.
    dense = [each for each in mixed._flatten_layers() if hasattr(each, "units")]
    assert [each.units for each in dense if each.compute_dtype == "float32"] == [2]
    mixed.fit(X, Y, verbose=0)
    mixed.save(tmp_path / "m.keras")
    loaded = keras.models.load_model(tmp_path / "m.keras")
    assert isinstance(loaded.optimizer, keras.optimizers.LossScaleOptimizer)
    assert int(loaded.optimizer.inner_optimizer.iterations) == 4


@pytest.mark.parametrize(
    ("flag", "half"),
    [("avx2", None), ("avx512_bf16", "mixed_bfloat16"), ("amx_bf16", "mixed_bfloat16")],
)
def test_auto_leaves_float32_on_a_cpu_and_what_may_be_tried_is_said_apart(monkeypatch, flag, half):
    monkeypatch.setattr(precision, "cpu_flags", lambda: flag)
    model = nested_model()
    assert mixed_precision(model) is model
    same, effect = rebuilt(MixedPrecision(), model)
    assert same is model
    assert not effect.acted
    assert "tried by `tfopt tune`, not assumed" in effect.note
    assert precision.half_precision() == half
    # With GPUs it goes by the capability of the least.
    for least, policy in (((7, 0), "mixed_float16"), ((6, 1), "float32")):
        monkeypatch.setattr(precision, "gpu_capabilities", lambda least=least: [(9, 0), least])
        chosen, reason = precision.choose_policy()
        assert chosen == policy
        assert f"capability {least[0]}.{least[1]}" in reason
        assert precision.half_precision() == (policy if policy != "float32" else None)


def test_the_tf32_switch_is_back_afterwards():
    enabled = tf.config.experimental.tensor_float_32_execution_enabled
    before = enabled()
    switch = MixedPrecision("float32", tf32=not before)
    run = run_of(switch)
    with switch.scope(run):
        assert enabled() is not before
    assert enabled() is before
    assert "no visible GPU has TF32" in effect_of(run).note


class Forgetful(keras.layers.Layer):
    """A layer whose configuration leaves out what its class takes."""

    def __init__(self, factor, **settings):
        super().__init__(**settings)
        self.factor = factor

    def get_config(self):
        return super().get_config()

    def call(self, x):
        return x * self.factor


def test_a_layer_that_cannot_be_made_again_is_named_with_the_way_out():
    layers = [keras.layers.Dense(4), Forgetful(2.0, name="own"), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((6,)), *layers])
    with pytest.raises(UserError, match="cannot be rebuilt under") as caught:
        mixed_precision(model, "mixed_bfloat16")
    assert "Forgetful" in caught.value.received
    assert "set_dtype_policy('mixed_bfloat16')" in caught.value.fix
    assert {layer.compute_dtype for layer in model._flatten_layers()} == {"float32"}
