"""Models for planted_faults.py: right ones, and those with a fault in the user's own code.

``RIGHT`` and ``FAULTS`` have functions by name, which return a compiled model and the arguments of
its ``fit``, and how the user's own losses are declared to add up. All are small: what takes the
time is tracing.
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


def table(declared: str | None, **models: Callable[[], Made]) -> dict[str, Any]:
    """Return the models by their names, each with how its own losses are declared to add up."""
    return {name: (make, declared) for name, make in models.items()}


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
    """A GAN with two optimizers."""

    def __init__(self) -> None:
        super().__init__()
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
            loss = ops.mean(self.each(ops.ones((size, 1)), d(real)))
            loss += ops.mean(self.each(ops.zeros((size, 1)), d(g(noise))))
        grads = tape.gradient(loss, d.trainable_weights)
        self.d_optimizer.apply(grads, d.trainable_weights)
        with tf.GradientTape() as tape:
            g_loss = ops.mean(self.each(ops.ones((size, 1)), d(g(noise))))
        grads = tape.gradient(g_loss, g.trainable_weights)
        self.g_optimizer.apply(grads, g.trainable_weights)
        return {"d": loss, "g": g_loss}


def gan() -> Made:
    model = Gan()
    model.compile(adam(), adam())
    return model, {"x": X, "batch_size": 32, "shuffle": False}


def contrast(y: Any, p: Any) -> Any:
    """A loss that compares the examples of a batch with each other."""
    p = ops.normalize(p, axis=-1)
    logits = ops.matmul(p, ops.transpose(p)) / 0.2
    same = ops.cast(ops.equal(ops.reshape(y, (-1, 1)), ops.reshape(y, (1, -1))), "float32")
    return -ops.sum(same * ops.log_softmax(logits, axis=-1), axis=-1) / ops.sum(same, axis=-1)


# Right models, whose parts do not fit into a line of the table


def masks_in_an_lstm() -> Made:
    layers = [L.Embedding(9, 5, mask_zero=True), L.LSTM(4, return_sequences=True), L.Dense(4)]
    model = keras.Sequential([keras.Input((7,), dtype="int32"), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return made(model, TAGS, loss, adam(), {"x": TOKENS}, metrics=["accuracy"])


def several_outputs() -> Made:
    inputs = keras.Input((D,))
    hidden = L.Dense(8, "tanh")(inputs)
    outputs = {"a": L.Dense(3, "softmax", name="a")(hidden), "b": L.Dense(1, name="b")(hidden)}
    y = {"a": CLASSES, "b": NUMBERS}
    how = {"loss_weights": {"a": 1.0, "b": 0.3}, "metrics": {"a": "accuracy", "b": "mae"}}
    return made(keras.Model(inputs, outputs), y, {"a": SCE, "b": "mse"}, **how)


def ctc() -> Made:
    model = keras.Sequential([keras.Input((9, 4)), L.Dense(8, "tanh"), L.Dense(5)])
    x = np.random.RandomState(3).randn(N, 9, 4).astype("float32")
    y = np.random.RandomState(4).randint(1, 5, (N, 3))
    return made(model, y, keras.losses.CTC(), adam(), {"x": x})


def scaled_loss_in_float16() -> Made:
    layers = [L.Dense(8, "tanh", dtype="mixed_float16"), L.Dense(3, dtype="mixed_float16")]
    inner = [keras.Input((D,)), *layers, L.Softmax(dtype="float32")]
    scaled = keras.optimizers.LossScaleOptimizer(sgd(), initial_scale=1024.0)
    return made(keras.Sequential(inner), optimizer=scaled)


def metrics_of_many_kinds() -> Made:
    k = keras.metrics
    metrics = [k.AUC(), k.F1Score(average="macro"), k.OneHotMeanIoU(3), k.TruePositives()]
    return made(net(), ONE_HOT, "categorical_crossentropy", metrics=metrics)


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


def of_images(*layers: Any, **how: Any) -> Made:
    inner = [keras.Input((8, 8, 3)), *layers, L.Dense(3, "softmax")]
    return made(keras.Sequential(inner), fit={"x": IMAGES}, **how)


class Positions(L.Layer):
    def build(self, shape: Any) -> None:
        self.table = L.Embedding(7, 5)
        self.table.build()

    def call(self, x: Any) -> Any:
        return x + self.table(ops.arange(7))


def tokens_and_positions_under_adam() -> Made:
    layers = [L.Embedding(9, 5), Positions(), L.GlobalAveragePooling1D(), L.Dense(3, "softmax")]
    model = keras.Sequential([keras.Input((7,), dtype="int32"), *layers])
    return made(model, optimizer=adam(), fit={"x": TOKENS})


class OwnComputeLoss(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):  # type: ignore[no-untyped-def]
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.1 * ops.std(ops.mean(x, -1) * y_pred[:, 0])


class Items(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> Any:
        rows = slice(16 * place, 16 * place + 16)
        return X[rows], CLASSES[rows]


def of_batches(batches: Any) -> Made:
    return made(net(), None, SCE, fit={"x": batches, "batch_size": None})


# Where faults of the user's go


def changed(function: Callable[[Any], Any]) -> Made:
    return made(net(3, "softmax", L.Lambda(function)))


def added_mean() -> Made:
    return made(net(3, "softmax", Adds(lambda x: ops.mean(ops.square(x)))))


def added_sum() -> Made:
    return made(net(3, "softmax", Adds(lambda x: ops.sum(ops.square(x)))))


def own_sum() -> Made:
    return own(lambda self, y, p, w: ops.sum(squares(y, p)) / 32)


class Normalizes(L.Layer):
    """A batch normalization of the user's own."""

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), trainable=False, name="mean")

    def call(self, x: Any, training: bool = False) -> Any:
        mean = ops.mean(x, axis=0) if training else self.mean
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * mean)
        return x - mean


class Statistic(keras.Sequential):
    """A loss with a statistic that ``call`` has kept on the model."""

    def call(self, x: Any, training: Any = None, mask: Any = None) -> Any:
        outputs = super().call(x, training=training, mask=mask)
        object.__setattr__(self, "spread", ops.std(outputs))
        return outputs

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):  # type: ignore[no-untyped-def]
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + self.spread


def updated_alone(self: Any, grads: Any) -> None:
    for grad, weight in zip(grads, self.trainable_variables, strict=True):
        weight.value._aggregation = tf.VariableAggregation.NONE
        weight.value.assign_sub(0.1 * grad)


def sum_with_decay(self: Any, y: Any, p: Any, w: Any) -> Any:
    decay = sum(ops.sum(ops.square(weight)) for weight in self.trainable_variables)
    return ops.sum(squares(y, p)) / 32 + 0.1 * decay


def with_a_count(self: Any, loss: Any, y: Any, p: Any) -> dict[str, Any]:
    return {"shown": loss, "close": ops.sum(ops.cast(ops.abs(y - p) < 1, "float32"))}


RIGHT = table(
    None,
    softmax_adam_accuracy=lambda: made(net(), optimizer=adam(), metrics=["accuracy"]),
    sample_weights=lambda: made(
        net(), fit={"sample_weight": WEIGHTS}, weighted_metrics=["accuracy"], metrics=["accuracy"]
    ),
    class_weights=lambda: made(net(), fit={"class_weight": {0: 1.0, 1: 5.0, 2: 0.3}}),
    masks_in_an_lstm=masks_in_an_lstm,
    several_outputs=several_outputs,
    a_sum_clipped=lambda: made(
        net(),
        loss=keras.losses.SparseCategoricalCrossentropy(reduction="sum"),
        optimizer=sgd(clipvalue=0.5),
    ),
    contrastive_loss=lambda: made(net(4, None), loss=contrast, optimizer=adam()),
    dice=lambda: made(net(1, "sigmoid"), BINARY, keras.losses.Dice(), adam()),
    ctc=ctc,
    regularizers_of_weights_and_outputs=lambda: made(
        net(kernel_regularizer="l2", activity_regularizer=keras.regularizers.L2(0.5))
    ),
    averages_of_weights=lambda: made(
        net(), optimizer=sgd(use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2)
    ),
    gradients_accumulated_over_four_steps=lambda: made(
        net(), optimizer=adam(gradient_accumulation_steps=4)
    ),
    a_scaled_loss_in_float16=scaled_loss_in_float16,
    metrics_of_many_kinds=metrics_of_many_kinds,
    metrics_of_regression=metrics_of_regression,
    a_metric_of_its_own=lambda: made(net(1, None), NUMBERS, "mse", metrics=[Spread()]),
    batch_normalization_of_the_whole_batch=lambda: of_images(
        L.Conv2D(4, 3),
        L.BatchNormalization(synchronized=True),
        L.ReLU(),
        L.GlobalAveragePooling2D(),
        optimizer=adam(),
    ),
    dropout=lambda: made(net(3, "softmax", L.Dropout(0.5), L.GaussianNoise(0.1)), optimizer=adam()),
    augmentation=lambda: of_images(L.RandomFlip(), L.RandomRotation(0.1), L.Flatten()),
    tokens_and_positions_under_adam=tokens_and_positions_under_adam,
    own_compute_loss_with_a_deviation=lambda: made(
        OwnComputeLoss([keras.Input((D,)), L.Dense(8, "tanh"), L.Dense(3, "softmax")])
    ),
    a_dataset_of_fixed_batches=lambda: of_batches(
        tf.data.Dataset.from_tensor_slices((X, CLASSES)).batch(16, drop_remainder=True)
    ),
    a_pydataset=lambda: of_batches(Items()),
    a_generator=lambda: of_batches(Items()[n] for n in range(4)),
    run_eagerly=lambda: made(net(), run_eagerly=True),
)
RIGHT |= table(
    "mean",
    add_loss_of_a_mean=added_mean,
    own_step_of_a_mean=lambda: own(
        lambda self, y, p, w: ops.mean(squares(y, p)), optimizer=adam(clipnorm=0.1)
    ),
    a_vae=lambda: vae(ops.mean),
    a_gan=gan,
)
RIGHT |= table("sum", add_loss_of_a_sum=added_sum, own_step_of_a_sum=own_sum)

FAULTS = table(
    "sum",
    # Wrong declarations
    add_loss_of_a_mean_declared_a_sum=added_mean,
    own_step_of_a_mean_declared_a_sum=own,
    own_step_of_a_mean_declared_a_sum_under_adam=lambda: own(optimizer=adam()),
    a_vae_declared_a_sum=lambda: vae(ops.mean),
    # A loss of the local batch, and a regularizer that each replica adds
    a_sum_divided_by_the_local_batch=lambda: own(
        lambda self, y, p, w: ops.sum(squares(y, p)) / ops.cast(ops.shape(y)[0], p.dtype)
    ),
    a_regularizer_in_a_sum=lambda: own(sum_with_decay),
)
FAULTS |= table(
    "mean",
    # Wrong declarations
    add_loss_of_a_sum_declared_a_mean=added_sum,
    own_step_of_a_sum_declared_a_mean=own_sum,
    a_vae_with_a_sum_and_a_mean=lambda: vae(ops.sum),
    # Losses of the local batch
    weights_divided_by_their_local_sum=lambda: own(
        lambda self, y, p, w: ops.sum(w * squares(y, p)) / ops.sum(w),
        fit={"sample_weight": WEIGHTS},
    ),
    a_contrastive_loss_in_a_step_of_its_own=lambda: own(
        lambda self, y, p, w: ops.mean(contrast(ops.cast(y > 0, "int32"), p + p * p))
    ),
    the_hardest_half_of_the_local_batch=lambda: own(
        lambda self, y, p, w: ops.mean(ops.top_k(squares(y, p), 4)[0])
    ),
    the_root_of_a_mean=lambda: own(lambda self, y, p, w: ops.sqrt(ops.mean(squares(y, p)))),
    # Gradients and updates
    gradients_clipped_by_hand=lambda: own(
        changed=lambda self, grads, loss: tf.clip_by_global_norm(grads, 0.05)[0]
    ),
    signs_of_local_gradients=lambda: own(
        changed=lambda self, grads, loss: [ops.sign(g) for g in grads]
    ),
    weights_updated_without_the_optimizer=lambda: own(update=updated_alone),
    # What is shown
    a_log_of_the_largest_error=lambda: own(
        shown=lambda self, loss, y, p: {"shown": loss, "worst": ops.max(ops.abs(y - p))}
    ),
    a_log_of_a_root=lambda: own(shown=lambda self, loss, y, p: {"rmse": ops.sqrt(loss)}),
    a_log_of_a_count=lambda: own(shown=with_a_count),
)
FAULTS |= table(
    None,
    # Layers that compare examples
    a_layer_that_subtracts_the_mean_of_the_batch=lambda: changed(
        lambda x: x - ops.mean(x, axis=0, keepdims=True)
    ),
    attention_over_the_examples=lambda: changed(
        lambda x: ops.matmul(ops.softmax(ops.matmul(x, ops.transpose(x))), x)
    ),
    a_batch_normalization_of_its_own=lambda: made(net(3, "softmax", Normalizes())),
    a_loss_with_a_local_statistic_kept_on_the_model=lambda: made(
        Statistic([keras.Input((D,)), L.Dense(8, "tanh"), L.Dense(3, "softmax")])
    ),
)
