"""Models for planted_faults.py: right ones, and those with a fault in the user's own code.

Each function returns a compiled model and the arguments of its ``fit``; its declaration, of how the
user's own losses add up, stands in front of it. All are small: what takes the time is tracing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers as L  # noqa: N812
from keras import ops

Made = tuple[Any, dict[str, Any]]
RIGHT: dict[str, tuple[Callable[[], Made], str | None]] = {}
FAULTS: dict[str, tuple[Callable[[], Made], str | None]] = {}

_draw = np.random.RandomState(0)
N, D = 64, 6
X = _draw.randn(N, D).astype("float32")
CLASSES = _draw.randint(0, 3, N)
ONE_HOT = np.eye(3, dtype="float32")[CLASSES]
NUMBERS = _draw.randn(N, 1).astype("float32")
BINARY = _draw.randint(0, 2, (N, 1)).astype("float32")
WEIGHTS = 3 * _draw.rand(N).astype("float32")
TOKENS = _draw.randint(1, 9, (N, 7))
TOKENS[np.arange(7) > _draw.randint(1, 7, (N, 1))] = 0
TAGS = _draw.randint(0, 4, (N, 7))
IMAGES = _draw.randn(N, 8, 8, 3).astype("float32")
SCE = "sparse_categorical_crossentropy"


def right(declared: str | None = None) -> Callable[[Any], Any]:
    return _kept(RIGHT, declared)


def fault(declared: str | None = None) -> Callable[[Any], Any]:
    return _kept(FAULTS, declared)


def _kept(table: dict[str, Any], declared: str | None) -> Callable[[Any], Any]:
    def keep(made: Any) -> Any:
        table[made.__name__] = (made, declared)
        return made

    return keep


def net(out: int = 3, last: str | None = "softmax", *between: Any, **dense: Any) -> Any:
    return keras.Sequential(
        [keras.Input((D,)), L.Dense(8, "tanh", **dense), *between, L.Dense(out, last)]
    )


def sgd(**how: Any) -> Any:
    return keras.optimizers.SGD(0.1, momentum=0.9, **how)


def adam(**how: Any) -> Any:
    return keras.optimizers.Adam(0.02, **how)


def made(
    model: Any,
    y: Any = CLASSES,
    loss: Any = SCE,
    optimizer: Any = None,
    fit: Any = None,
    **how: Any,
) -> Made:
    model.compile(optimizer or sgd(), loss, **how)
    return model, {"x": X, "y": y, "batch_size": 32, "shuffle": False} | (fit or {})


def data(*arrays: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(arrays)


# Steps of the user's own, with the places where faults go


class OwnStep(keras.Sequential):
    """The custom step of Keras's guides."""

    def own_loss(self, y: Any, p: Any, weights: Any) -> Any:
        return ops.mean(ops.square(y - p))

    def changed(self, grads: Any, loss: Any) -> Any:
        return grads

    def update(self, grads: Any) -> None:
        self.optimizer.apply(grads, self.trainable_variables)

    def shown(self, loss: Any, y: Any, p: Any) -> dict[str, Any]:
        return {"shown": loss}

    def train_step(self, data: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            p = self(x, training=True)
            loss = self.own_loss(y, p, weights)
        grads = tape.gradient(loss, self.trainable_variables)
        self.update(self.changed(grads, loss))
        return self.shown(loss, y, p)


def own(
    loss: Any = None, changed: Any = None, update: Any = None, shown: Any = None, **how: Any
) -> Made:
    """Return a model with a step of its own, of which parts are given as functions."""
    given = {"own_loss": loss, "changed": changed, "update": update, "shown": shown}
    kind = type("Own", (OwnStep,), {name: each for name, each in given.items() if each})
    model = kind([keras.Input((D,)), L.Dense(8, "tanh"), L.Dense(1)])
    return made(model, NUMBERS, None, **how)


def squares(y: Any, p: Any) -> Any:
    return ops.sum(ops.square(y - p), axis=-1)


class Adds(L.Layer):
    """A layer that adds a loss of its inputs."""

    def __init__(self, loss: Callable[[Any], Any]) -> None:
        super().__init__()
        self.of = loss

    def call(self, x: Any) -> Any:
        self.add_loss(0.3 * self.of(x))
        return x


class Changes(L.Layer):
    """A layer that is a function of its inputs."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)


class Sampling(L.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1)

    def call(self, x: Any) -> Any:
        mean, log_var = ops.split(x, 2, axis=-1)
        noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * noise


class Vae(keras.Model):
    """The VAE of Keras's examples; ``of_kl`` is how it reduces one of its two losses."""

    def __init__(self, of_kl: Callable[[Any], Any]) -> None:
        super().__init__()
        self.of_kl = of_kl
        self.encoder = keras.Sequential([keras.Input((D,)), L.Dense(4)])
        self.sampling = Sampling()
        self.decoder = keras.Sequential([keras.Input((2,)), L.Dense(8, "tanh"), L.Dense(D)])
        self.total = keras.metrics.Mean(name="total")

    def train_step(self, data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            z = self.encoder(x)
            mean, log_var = ops.split(z, 2, axis=-1)
            loss = ops.mean(squares(x, self.decoder(self.sampling(z))))
            kl = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
            loss += self.of_kl(ops.sum(kl, axis=-1))
        self.optimizer.apply(tape.gradient(loss, self.trainable_weights), self.trainable_weights)
        self.total.update_state(loss)
        return {"total": self.total.result()}


def vae(of_kl: Callable[[Any], Any]) -> Made:
    model = Vae(of_kl)
    model.compile(adam())
    return model, {"x": X, "batch_size": 32, "shuffle": False}


class Gan(keras.Model):
    """A GAN with two optimizers; ``of_d`` is how the discriminator's loss is reduced."""

    def __init__(self, of_d: Callable[[Any], Any], penalty: Any = None) -> None:
        super().__init__()
        self.of_d, self.penalty = of_d, penalty
        self.generator = keras.Sequential([keras.Input((4,)), L.Dense(8, "tanh"), L.Dense(D)])
        self.discriminator = keras.Sequential([keras.Input((D,)), L.Dense(8, "tanh"), L.Dense(1)])
        self.seed_generator = keras.random.SeedGenerator(2)
        self.each = keras.losses.BinaryCrossentropy(from_logits=True, reduction=None)

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    def train_step(self, real: Any) -> Any:
        real = real[0] if isinstance(real, tuple) else real
        size = ops.shape(real)[0]
        noise = keras.random.normal((size, 4), seed=self.seed_generator)
        d, g = self.discriminator, self.generator
        with tf.GradientTape() as tape:
            loss = self.of_d(self.each(ops.ones((size, 1)), d(real)))
            loss += self.of_d(self.each(ops.zeros((size, 1)), d(g(noise))))
            if self.penalty:
                loss += self.penalty(d, real)
        grads = tape.gradient(loss, d.trainable_weights)
        self.d_optimizer.apply(grads, d.trainable_weights)
        with tf.GradientTape() as tape:
            g_loss = ops.mean(self.each(ops.ones((size, 1)), d(g(noise))))
        grads = tape.gradient(g_loss, g.trainable_weights)
        self.g_optimizer.apply(grads, g.trainable_weights)
        return {"d": loss, "g": g_loss}


def gan(of_d: Callable[[Any], Any], penalty: Any = None) -> Made:
    model = Gan(of_d, penalty)
    model.compile(adam(), adam())
    return model, {"x": X, "batch_size": 32, "shuffle": False}


def contrast(y: Any, p: Any) -> Any:
    """A loss that compares the examples of a batch with each other."""
    p = ops.normalize(p, axis=-1)
    logits = ops.matmul(p, ops.transpose(p)) / 0.2
    same = ops.cast(ops.equal(ops.reshape(y, (-1, 1)), ops.reshape(y, (1, -1))), "float32")
    return -ops.sum(same * ops.log_softmax(logits, axis=-1), axis=-1) / ops.sum(same, axis=-1)


# Right models: losses and metrics of Keras


@right()
def softmax_adam_accuracy() -> Made:
    return made(net(), optimizer=adam(), metrics=["accuracy"])


@right()
def sample_weights() -> Made:
    fit = {"sample_weight": WEIGHTS}
    return made(net(), fit=fit, weighted_metrics=["accuracy"], metrics=["accuracy"])


@right()
def class_weights() -> Made:
    return made(net(), fit={"class_weight": {0: 1.0, 1: 5.0, 2: 0.3}})


@right()
def masks_in_an_lstm() -> Made:
    layers = [L.Embedding(9, 5, mask_zero=True), L.LSTM(4, return_sequences=True), L.Dense(4)]
    model = keras.Sequential([keras.Input((7,), dtype="int32"), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return made(model, TAGS, loss, adam(), {"x": TOKENS}, metrics=["accuracy"])


@right()
def several_outputs() -> Made:
    inputs = keras.Input((D,))
    hidden = L.Dense(8, "tanh")(inputs)
    outputs = {"a": L.Dense(3, "softmax", name="a")(hidden), "b": L.Dense(1, name="b")(hidden)}
    y = {"a": CLASSES, "b": NUMBERS}
    how = {"loss_weights": {"a": 1.0, "b": 0.3}, "metrics": {"a": "accuracy", "b": "mae"}}
    return made(keras.Model(inputs, outputs), y, {"a": SCE, "b": "mse"}, **how)


@right()
def a_sum_clipped() -> Made:
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
    return made(net(), loss=loss, optimizer=sgd(clipvalue=0.5))


@right()
def contrastive_loss() -> Made:
    return made(net(4, None), loss=contrast, optimizer=adam())


@right()
def dice() -> Made:
    return made(net(1, "sigmoid"), BINARY, keras.losses.Dice(), adam())


@right()
def ctc() -> Made:
    model = keras.Sequential([keras.Input((9, 4)), L.Dense(8, "tanh"), L.Dense(5)])
    x = np.random.RandomState(3).randn(N, 9, 4).astype("float32")
    y = np.random.RandomState(4).randint(1, 5, (N, 3))
    return made(model, y, keras.losses.CTC(), adam(), {"x": x})


@right()
def regularizers_of_weights_and_outputs() -> Made:
    return made(net(kernel_regularizer="l2", activity_regularizer=keras.regularizers.L2(0.5)))


@right()
def adamw_clipped_by_the_global_norm() -> Made:
    how = {"weight_decay": 0.1, "global_clipnorm": 0.05}
    return made(net(), optimizer=keras.optimizers.AdamW(0.02, **how))


@right()
def lamb_clipped_by_norm() -> Made:
    return made(net(), optimizer=keras.optimizers.Lamb(0.02, clipnorm=0.05))


@right()
def averages_of_weights() -> Made:
    how = {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 2}
    return made(net(), optimizer=sgd(**how))


@right()
def gradients_accumulated_over_four_steps() -> Made:
    return made(net(), optimizer=adam(gradient_accumulation_steps=4))


@right()
def a_scaled_loss_in_float16() -> Made:
    policy = keras.mixed_precision.DTypePolicy("mixed_float16")
    layers = [
        L.Dense(8, "tanh", dtype=policy),
        L.Dense(3, dtype=policy),
        L.Softmax(dtype="float32"),
    ]
    optimizer = keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=1024.0)
    return made(keras.Sequential([keras.Input((D,)), *layers]), optimizer=optimizer)


@right()
def bfloat16() -> Made:
    policy = keras.mixed_precision.DTypePolicy("mixed_bfloat16")
    layers = [L.Dense(8, "tanh", dtype=policy), L.Dense(3, "softmax", dtype="float32")]
    return made(keras.Sequential([keras.Input((D,)), *layers]), optimizer=adam())


@right()
def metrics_of_many_kinds() -> Made:
    k = keras.metrics
    metrics = [k.AUC(), k.F1Score(average="macro"), k.OneHotMeanIoU(3), k.TruePositives()]
    return made(net(), ONE_HOT, "categorical_crossentropy", metrics=metrics)


@right()
def metrics_of_regression() -> Made:
    metrics = [keras.metrics.R2Score(), keras.metrics.RootMeanSquaredError()]
    return made(net(1, None), NUMBERS, "huber", keras.optimizers.RMSprop(0.01), metrics=metrics)


class Spread(keras.metrics.Metric):
    """How far the errors of each batch lie apart."""

    def __init__(self) -> None:
        super().__init__(name="spread")
        self.spread = self.add_variable((), "zeros", name="spread")

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        self.spread.assign_add(ops.std(y - p))

    def result(self) -> Any:
        return self.spread


@right()
def a_metric_of_its_own() -> Made:
    return made(net(1, None), NUMBERS, "mse", metrics=[Spread()])


@right()
def batch_normalization_of_the_whole_batch() -> Made:
    layers = [L.Conv2D(4, 3), L.BatchNormalization(synchronized=True), L.ReLU()]
    layers += [L.GlobalAveragePooling2D(), L.Dense(3, "softmax")]
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers])
    return made(model, optimizer=adam(), fit={"x": IMAGES})


@right()
def dropout() -> Made:
    return made(net(3, "softmax", L.Dropout(0.5), L.GaussianNoise(0.1)), optimizer=adam())


@right()
def augmentation() -> Made:
    layers = [L.RandomFlip(), L.RandomRotation(0.1), L.Flatten(), L.Dense(3, "softmax")]
    return made(keras.Sequential([keras.Input((8, 8, 3)), *layers]), fit={"x": IMAGES})


class Positions(L.Layer):
    def build(self, shape: Any) -> None:
        self.table = L.Embedding(7, 5)
        self.table.build()

    def call(self, x: Any) -> Any:
        return x + self.table(ops.arange(7))


@right()
def tokens_and_positions_under_adam() -> Made:
    layers = [L.Embedding(9, 5), Positions(), L.GlobalAveragePooling1D(), L.Dense(3, "softmax")]
    model = keras.Sequential([keras.Input((7,), dtype="int32"), *layers])
    return made(model, optimizer=adam(), fit={"x": TOKENS})


class OwnComputeLoss(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):  # type: ignore[no-untyped-def]
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.1 * ops.std(ops.mean(x, -1) * y_pred[:, 0])


@right()
def own_compute_loss_with_a_deviation() -> Made:
    return made(OwnComputeLoss([keras.Input((D,)), L.Dense(8, "tanh"), L.Dense(3, "softmax")]))


@right()
def a_dataset_of_fixed_batches() -> Made:
    batches = data(X, CLASSES).batch(16, drop_remainder=True)
    return made(net(), None, SCE, fit={"x": batches, "batch_size": None})


class Items(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> Any:
        rows = slice(16 * place, 16 * place + 16)
        return X[rows], CLASSES[rows]


@right()
def a_pydataset() -> Made:
    return made(net(), None, SCE, fit={"x": Items(), "batch_size": None})


@right()
def a_generator() -> Made:
    items = Items()
    batches = (items[n] for n in range(4))
    return made(net(), None, SCE, fit={"x": batches, "batch_size": None})


@right()
def run_eagerly() -> Made:
    return made(net(), run_eagerly=True)


# Right models: the user's own, declared as they are


@right("mean")
def add_loss_of_a_mean() -> Made:
    return made(net(3, "softmax", Adds(lambda x: ops.mean(ops.square(x)))))


@right("sum")
def add_loss_of_a_sum() -> Made:
    return made(net(3, "softmax", Adds(lambda x: ops.sum(ops.square(x)))))


@right("mean")
def own_step_of_a_mean() -> Made:
    return own(lambda self, y, p, w: ops.mean(squares(y, p)), optimizer=adam(clipnorm=0.1))


@right("sum")
def own_step_of_a_sum() -> Made:
    return own(lambda self, y, p, w: ops.sum(squares(y, p)) / 32)


@right("mean")
def a_vae() -> Made:
    return vae(ops.mean)


@right("mean")
def a_gan() -> Made:
    return gan(ops.mean)


# Faults: wrong declarations


@fault("mean")
def add_loss_of_a_sum_declared_a_mean() -> Made:
    return add_loss_of_a_sum()


@fault("sum")
def add_loss_of_a_mean_declared_a_sum() -> Made:
    return add_loss_of_a_mean()


@fault("sum")
def add_loss_of_a_mean_declared_a_sum_under_adam() -> Made:
    added = Adds(lambda x: ops.mean(ops.square(x)))
    return made(net(3, "softmax", added), optimizer=adam(clipnorm=0.1))


@fault("sum")
def own_step_of_a_mean_declared_a_sum() -> Made:
    return own()


@fault("sum")
def own_step_of_a_mean_declared_a_sum_under_adam() -> Made:
    return own(optimizer=adam())


@fault("mean")
def own_step_of_a_sum_declared_a_mean() -> Made:
    return own_step_of_a_sum()


@fault("sum")
def a_vae_declared_a_sum() -> Made:
    return vae(ops.mean)


@fault("mean")
def a_vae_with_a_sum_and_a_mean() -> Made:
    return vae(ops.sum)


@fault("sum")
def a_gan_declared_a_sum() -> Made:
    return gan(ops.mean)


@fault("mean")
def a_gan_with_a_sum_and_a_mean() -> Made:
    return gan(ops.sum)


# Faults: losses of the local batch


@fault("sum")
def a_sum_divided_by_the_local_batch() -> Made:
    return own(lambda self, y, p, w: ops.sum(squares(y, p)) / ops.cast(ops.shape(y)[0], p.dtype))


@fault("mean")
def a_sum_divided_by_the_global_batch_declared_a_mean() -> Made:
    return own(lambda self, y, p, w: ops.sum(squares(y, p)) / 32)


@fault("mean")
def weights_divided_by_their_local_sum() -> Made:
    def loss(self: Any, y: Any, p: Any, w: Any) -> Any:
        return ops.sum(w * squares(y, p)) / ops.sum(w)

    return own(loss, fit={"sample_weight": WEIGHTS})


@fault("mean")
def a_contrastive_loss_in_a_step_of_its_own() -> Made:
    return own(lambda self, y, p, w: ops.mean(contrast(ops.cast(y > 0, "int32"), p + p * p)))


@fault("mean")
def the_hardest_half_of_the_local_batch() -> Made:
    return own(lambda self, y, p, w: ops.mean(ops.top_k(squares(y, p), 4)[0]))


@fault("mean")
def the_root_of_a_mean() -> Made:
    return own(lambda self, y, p, w: ops.sqrt(ops.mean(squares(y, p))))


@fault("mean")
def a_loss_weighed_by_its_own_size() -> Made:
    def loss(self: Any, y: Any, p: Any, w: Any) -> Any:
        mean = ops.mean(squares(y, p))
        return mean * ops.stop_gradient(mean)

    return own(loss)


@fault("mean")
def a_mean_and_a_sum_in_one_loss() -> Made:
    return own(lambda self, y, p, w: ops.mean(squares(y, p)) + 0.1 * ops.sum(ops.square(p)))


@fault("mean")
def a_decorrelation_of_the_local_batch() -> Made:
    def loss(x: Any) -> Any:
        x = x - ops.mean(x, axis=0)
        return ops.mean(
            ops.square(ops.matmul(ops.transpose(x), x) / ops.cast(ops.shape(x)[0], x.dtype))
        )

    return made(net(3, "softmax", Adds(lambda x: 30 * loss(x))))


@fault("mean")
def a_penalty_of_the_whole_local_gradient() -> Made:
    def penalty(discriminator: Any, real: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(real)
            score = ops.sum(discriminator(real))
        return ops.square(ops.norm(tape.gradient(score, real)) - 1.0)

    return gan(ops.mean, penalty)


# Faults: layers that compare examples


@fault()
def a_layer_that_subtracts_the_mean_of_the_batch() -> Made:
    return made(net(3, "softmax", Changes(lambda x: x - ops.mean(x, axis=0, keepdims=True))))


@fault()
def attention_over_the_examples() -> Made:
    def attend(x: Any) -> Any:
        return ops.matmul(ops.softmax(ops.matmul(x, ops.transpose(x))), x)

    return made(net(3, "softmax", Changes(attend)))


@fault()
def the_deviation_of_a_minibatch() -> Made:
    return made(net(3, "softmax", Changes(lambda x: x * ops.mean(ops.std(x, axis=0)))))


class Normalizes(L.Layer):
    """A batch normalization of the user's own."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        mean = ops.mean(x, axis=0) if training else self.mean
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * mean)
        return x - mean


@fault()
def a_batch_normalization_of_its_own() -> Made:
    return made(net(3, "softmax", Normalizes()))


class Statistic(keras.Sequential):
    """A loss with a statistic that ``call`` has kept on the model."""

    def call(self, x: Any, training: Any = None, mask: Any = None) -> Any:
        outputs = super().call(x, training=training, mask=mask)
        object.__setattr__(self, "spread", ops.std(outputs))
        return outputs

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):  # type: ignore[no-untyped-def]
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + self.spread


@fault()
def a_loss_with_a_local_statistic_kept_on_the_model() -> Made:
    return made(Statistic([keras.Input((D,)), L.Dense(8, "tanh"), L.Dense(3, "softmax")]))


# Faults: gradients and updates


@fault("mean")
def gradients_clipped_by_hand() -> Made:
    return own(changed=lambda self, grads, loss: tf.clip_by_global_norm(grads, 0.05)[0])


@fault("mean")
def signs_of_local_gradients() -> Made:
    return own(changed=lambda self, grads, loss: [ops.sign(g) for g in grads])


@fault("mean")
def gradients_scaled_by_the_local_loss() -> Made:
    return own(changed=lambda self, grads, loss: [g * loss for g in grads])


@fault("mean")
def weights_updated_without_the_optimizer() -> Made:
    def update(self: Any, grads: Any) -> None:
        for grad, weight in zip(grads, self.trainable_variables, strict=True):
            for variable in [weight.value]:
                variable._aggregation = tf.VariableAggregation.NONE
                variable.assign_sub(0.1 * grad)

    return own(update=update)


@fault("mean")
def weights_updated_by_hand_with_the_mean() -> Made:
    def update(self: Any, grads: Any) -> None:
        for grad, weight in zip(grads, self.trainable_variables, strict=True):
            grad = tf.distribute.get_replica_context().all_reduce("mean", grad)
            weight.value._aggregation = tf.VariableAggregation.NONE
            weight.value.assign_sub(0.1 * grad)

    return own(update=update)


@fault("mean")
def weights_decayed_in_the_step() -> Made:
    def changed(self: Any, grads: Any, loss: Any) -> Any:
        weights = self.trainable_variables
        return [ops.clip(g, -0.01, 0.01) + w for g, w in zip(grads, weights, strict=True)]

    return own(changed=changed)


@fault("sum")
def a_regularizer_in_a_sum() -> Made:
    def loss(self: Any, y: Any, p: Any, w: Any) -> Any:
        decay = sum(ops.sum(ops.square(each)) for each in self.trainable_variables)
        return ops.sum(squares(y, p)) / 32 + 0.1 * decay

    return own(loss)


# Faults: what is shown


@fault("mean")
def a_log_of_the_largest_error() -> Made:
    return own(shown=lambda self, loss, y, p: {"shown": loss, "worst": ops.max(ops.abs(y - p))})


@fault("mean")
def a_log_of_a_root() -> Made:
    return own(shown=lambda self, loss, y, p: {"rmse": ops.sqrt(loss)})


@fault("mean")
def a_log_of_a_count() -> Made:
    def shown(self: Any, loss: Any, y: Any, p: Any) -> dict[str, Any]:
        return {"shown": loss, "close": ops.sum(ops.cast(ops.abs(y - p) < 1, "float32"))}

    return own(shown=shown)


@fault("mean")
def a_log_of_precision() -> Made:
    def shown(self: Any, loss: Any, y: Any, p: Any) -> dict[str, Any]:
        found = ops.cast((p > 0) & (y > 0), "float32")
        return {"precision": ops.sum(found) / (1 + ops.sum(ops.cast(p > 0, "float32")))}

    return own(shown=shown)
