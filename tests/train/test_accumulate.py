"""Batches in micro-batches: what Keras's own accumulation gets wrong, and equal weights here."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt import Accumulate, Data, Job, Pipeline, UserError, chain, run
from tfopt.train.accumulate import accumulated

L, Opt = keras.layers, keras.optimizers
RNG = np.random.default_rng(0)
# Batches of 16, the last of 6: micro-batches of 4, and then of 2.
X = RNG.normal(size=(54, 6)).astype("float32")
Y = RNG.normal(size=(54, 3)).astype("float32")
IDS = RNG.integers(0, 6, (54, 7))
IDS[:20, 3:] = 0  # padding, more of it in some micro-batches
STEPS = RNG.normal(size=(54, 7, 2)).astype("float32")
WEIGHTS = RNG.random(54).astype("float32")
MOMENTUM = {"learning_rate": 0.1, "momentum": 0.9}


def dense():
    inputs = keras.Input((6,))
    hidden = L.Dense(8, "tanh", kernel_regularizer="l2", activity_regularizer="l2")(inputs)
    return keras.Model(inputs, L.Dense(3)(hidden))


def masked():
    inputs = keras.Input((7,), dtype="int32")
    hidden = L.Dense(4, "tanh")(L.Embedding(6, 4, mask_zero=True)(inputs))
    return keras.Model(inputs, L.Dense(2)(hidden))


def recurrent():
    inputs = keras.Input((7,), dtype="int32")
    hidden = L.LSTM(4, return_sequences=True)(L.Embedding(6, 4, mask_zero=True)(inputs))
    return keras.Model(inputs, L.Dense(2)(hidden))


def two_outputs():
    """One masked, one not: their means count differently in each micro-batch."""
    inputs = keras.Input((7,), dtype="int32")
    seen = L.Embedding(6, 4, mask_zero=True)(inputs)
    steps = L.Dense(2, name="steps")(seen)
    return keras.Model(inputs, [steps, L.Dense(3, name="one")(L.GlobalAveragePooling1D()(seen))])


DATA = {dense: (X, Y), masked: (IDS, STEPS), recurrent: (IDS, STEPS)}


def number(y, given):
    """A loss function that leaves Keras nothing to average."""
    return keras.ops.mean(keras.ops.abs(y - given))


def compiled(build, steps, optimizer=None, loss="mse", own_losses=None, **settings):
    keras.utils.set_random_seed(0)
    model = build()
    optimizer = optimizer() if optimizer else Opt.SGD(**MOMENTUM)
    model.compile(optimizer, loss, **{"jit_compile": False, **settings})
    assert tfopt.accumulate(model, steps, own_losses=own_losses) is model
    return model


def trained(build, data, *, steps=1, weights=None, batch=16, **settings):
    model = compiled(build, steps, **settings)
    history = model.fit(
        *data, sample_weight=weights, batch_size=batch, epochs=2, shuffle=False, verbose=0
    ).history
    return [variable.numpy() for variable in model.variables + model.optimizer.variables], history


whole_batches = {}


def trained_whole(build, data):
    """Train the defaults on whole batches once: several tests compare with them."""
    if build not in whole_batches:
        whole_batches[build] = trained(build, data)
    return whole_batches[build]


def assert_the_same(build, data=None, *, shown=("loss",), steps=4, **settings):
    data = data or DATA[build]
    if settings.keys() <= {"jit_compile", "run_eagerly", "steps_per_execution"}:
        plain, history = trained_whole(build, data)  # how a step runs changes only the rounding
    else:
        plain, history = trained(build, data, **settings)
    all_reduce_sum, same_history = trained(build, data, steps=steps, **settings)
    for name in shown:
        np.testing.assert_allclose(same_history[name], history[name], rtol=1e-5)
    for expected, got in zip(plain, all_reduce_sum, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def gap(one, other):
    return float(np.max([np.abs(a - b).max() for a, b in zip(one, other, strict=True)]))


def by_keras(build, data, optimizer):
    """Return how far Keras's own accumulation of four batches of 4 is from batches of 16."""
    found = []
    for batch, steps in ((4, 4), (16, None)):
        keras.utils.set_random_seed(0)
        model = build()
        model.compile(optimizer(gradient_accumulation_steps=steps), "mse", jit_compile=False)
        part = [each[:48] for each in data]
        model.fit(*part, batch_size=batch, epochs=2, shuffle=False, verbose=0)
        found.append([weight.numpy() for weight in model.trainable_variables])
    return gap(*found)


def plain_net():
    return keras.Sequential([keras.Input((6,)), L.Dense(8, "tanh"), L.Dense(3)])


def decaying(**settings):
    return Opt.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5), **settings)


@pytest.mark.slow
def test_keras_accumulates_other_weights_than_those_of_the_batch():
    """What ``tfopt.accumulate`` is for; where this fails, Keras has mended one."""
    sgd = lambda **settings: Opt.SGD(0.1, **settings)  # noqa: E731
    assert by_keras(plain_net, (X, Y), sgd) < 1e-6
    assert by_keras(masked, (IDS, STEPS), sgd) > 1e-4, "a mean of means"
    assert by_keras(plain_net, (X, Y), decaying) > 1e-3, "a schedule by micro-batches"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
        {"run_eagerly": True},
        {"steps_per_execution": 2},
        {"weights": WEIGHTS},
        {
            "loss": keras.losses.MeanSquaredError(reduction="sum"),
            "optimizer": lambda: Opt.SGD(1e-3),
        },
        {
            "loss": lambda y, given: 0.1 * keras.ops.sum(keras.ops.abs(y - given)),
            "own_losses": "sum",
        },
        pytest.param(
            {"steps": 5, "metrics": ["mae"], "shown": ("loss", "mae")}, marks=pytest.mark.slow
        ),
        {"steps": 100},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_it_trains_the_weights_of_the_whole_batch(settings):
    assert_the_same(dense, **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"weights": WEIGHTS[:, None] * np.ones((1, 7), "float32")},
        {
            "weights": WEIGHTS[:, None] * np.ones((1, 7), "float32"),
            "loss": keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
        },
        pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
    ],
    ids=["masked", "weighted", "by weight", "jit"],
)
def test_so_it_does_where_masks_and_weights_decide_what_counts(settings):
    assert_the_same(masked, **settings)


@pytest.mark.slow
def test_so_it_does_where_masks_pass_recurrent_layers():
    assert_the_same(recurrent)


def test_so_it_does_where_outputs_count_differently():
    # Of batches that all have one size, Keras shows each loss right too.
    data = (IDS[:48], [STEPS[:48], Y[:48]])
    shown = ("loss", "steps_loss", "one_loss")
    assert_the_same(two_outputs, data, loss=["mse", "mae"], shown=shown)


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: Opt.AdamW(0.01, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=3),
        lambda: Opt.SGD(0.1, global_clipnorm=0.1),
        decaying,
        lambda: Opt.LossScaleOptimizer(Opt.Adam(0.01, clipnorm=0.1), dynamic_growth_steps=3),
    ],
    ids=["adamw", "global", "schedule", "scaled"],
)
def test_the_optimizer_and_all_it_keeps_are_those_of_the_whole_batch(optimizer):
    assert_the_same(plain_net, (X, Y), optimizer=optimizer)


def test_an_overflow_in_one_micro_batch_leaves_the_whole_batch_out():
    def scaled():
        return Opt.LossScaleOptimizer(Opt.SGD(0.1), initial_scale=1024.0)

    x = X[:16].copy()
    x[5] = np.inf
    model = compiled(plain_net, 4, optimizer=scaled)
    before = model.get_weights()
    model.fit(x, Y[:16], batch_size=16, verbose=0)
    assert gap(before, model.get_weights()) == 0
    assert float(model.optimizer.dynamic_scale.numpy()) == 512.0
    assert int(model.optimizer.iterations.numpy()) == 0


def test_constraints_and_schedules_count_batches():
    def pruned():
        schedule = tfopt.compress.PolynomialSparsity(0.5, begin_step=0, end_step=5, frequency=1)
        return tfopt.prune(plain_net(), schedule)

    assert_the_same(pruned, (X, Y))


def test_it_goes_with_remat():
    def both():
        inner = keras.Sequential([keras.Input((6,)), *(L.Dense(8, "tanh") for _ in range(6))])
        model = keras.Sequential([keras.Input((6,)), inner, L.Dense(3)])
        return tfopt.remat(model)

    assert_the_same(both, (X, Y), weights=WEIGHTS)


REPLICAS = """
    import json, keras, numpy as np, tensorflow as tf, tfopt
    from tfopt.distribute.models import Declared, models_attached
    from tfopt.distribute.whole_batch import seen_as_one
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    L, O = keras.layers, keras.optimizers
    rng = np.random.default_rng(0)
    # Batches of 16, and a last one that leaves a replica without examples.
    x = rng.normal(size=(33, 6)).astype("float32")
    y = rng.normal(size=(33, 3)).astype("float32")
    ids = rng.integers(0, 6, (33, 7)); ids[:20, 3:] = 0
    steps = rng.normal(size=(33, 7, 2)).astype("float32")

    def dense():
        hidden = L.Dense(8, "tanh", kernel_regularizer="l2", activity_regularizer="l2")
        return keras.Sequential([keras.Input((6,)), hidden, L.Dense(3)])
    def masked():
        inputs = keras.Input((7,), dtype="int32")
        return keras.Model(inputs, L.Dense(2)(L.Embedding(6, 4, mask_zero=True)(inputs)))
    def normalized(**settings):
        normalization = L.BatchNormalization(**settings)
        return keras.Sequential([keras.Input((6,)), L.Dense(8), normalization, L.Dense(3)])
    def number(y, given):
        return keras.ops.mean(keras.ops.abs(y - given))

    CASES = {
        "clipped": (dense, (x, y), lambda: O.AdamW(0.01, global_clipnorm=0.1, use_ema=True), "mse"),
        "masked": (masked, (ids, steps), lambda: O.SGD(0.1, momentum=0.9), "mse"),
        "own": (dense, (x, y), lambda: O.SGD(0.1), number),
    }
    def built(build, data, optimizer, loss, many=1, **settings):
        keras.utils.set_random_seed(0)
        model = build()
        model.compile(optimizer(), loss, jit_compile=False, **settings)
        return tfopt.accumulate(model, many, own_losses="mean")
    def trained(model, data):
        history = model.fit(*data, batch_size=16, epochs=2, shuffle=False, verbose=0).history
        return [*model.get_weights(), *history["loss"]]
    def gap(one, other):
        return float(np.max([np.abs(a - b).max() for a, b in zip(one, other)]))
    def refusal(**given):
        try:
            trained(built(**{**default, **given}), (x, y))
        except tfopt.UserError as error:
            return error.what

    one = {name: trained(built(*case), case[1]) for name, case in CASES.items()}
    default = dict(build=dense, data=(x, y), optimizer=lambda: O.SGD(0.1), loss="mse", many=2)
    class Own(keras.metrics.Mean):
        def update_state(self, y, given, sample_weight=None):
            return super().update_state(keras.ops.abs(y - given))
    mirrored = seen_as_one(tf.distribute.MirroredStrategy)
    strategy = mirrored(["CPU:0", "CPU:1"], tf.distribute.ReductionToOneDevice())
    with strategy.scope(), models_attached(strategy, Declared()):
        gaps = {name: gap(one[name], trained(built(*case, many=2), case[1]))
                for name, case in CASES.items()}
        model = built(**{**default, "build": normalized})
        trained(model, (x, y))
        refusals = [refusal(build=lambda: normalized(synchronized=True, name="bn")),
                    refusal(metrics=[Own(name="own")])]
    own = strategy.experimental_local_results(model.layers[1].moving_mean.value)
    gaps["statistics"] = gap([own[0]], [own[1]])
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        refusals.append(refusal())
    print(json.dumps([gaps, refusals]))
"""


@pytest.mark.slow
def test_on_two_replicas_it_trains_the_weights_of_one_device(fresh_python):
    gaps, refusals = json.loads(fresh_python(REPLICAS).splitlines()[-1])
    assert all(each < 2e-6 for each in gaps.values()), gaps
    assert refusals == [
        "'bn' cannot be synchronized inside a micro-batch.",
        "'own' cannot be synchronized inside a micro-batch.",
        "Replicas of a plain strategy do not exchange what micro-batches need.",
    ]


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)


class OwnLoss(keras.Sequential):
    def compute_loss(self, *args, **kwargs):
        return super().compute_loss(*args, **kwargs)


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (lambda: Opt.SGD(), "needs the model"),
        (lambda: OwnStep([keras.Input((6,)), L.Dense(3)]), "train_step"),
        (lambda: OwnLoss([keras.Input((6,)), L.Dense(3)]), "compute_loss"),
        (lambda: keras.Sequential([L.Dense(3)]), "not built"),
        (lambda: "model", "Keras 3 model"),
    ],
)
def test_what_cannot_be_cut_is_refused(model, word):
    with pytest.raises(UserError, match=word) as caught:
        tfopt.accumulate(model(), 4)
    assert "fix:" in str(caught.value)


def test_an_optimizer_that_accumulates_is_refused_before_and_after():
    model = plain_net()
    model.compile(Opt.SGD(gradient_accumulation_steps=2), "mse", jit_compile=False)
    with pytest.raises(UserError, match="accumulates gradients itself"):
        tfopt.accumulate(model, 2)
    model = tfopt.accumulate(plain_net(), 2)
    model.compile(Opt.SGD(gradient_accumulation_steps=2), "mse", jit_compile=False)
    with pytest.raises(UserError, match="accumulates gradients itself"):
        model.fit(X, Y, verbose=0)


def test_files_and_one_micro_batch_have_no_trace(tmp_path):
    model = compiled(plain_net, 4)
    model.fit(X[:16], Y[:16], verbose=0)
    model.save(tmp_path / "model.keras")
    assert accumulated(keras.saving.load_model(tmp_path / "model.keras")) is None
    tfopt.accumulate(model, 1)
    assert "train_step" not in vars(model)
    assert accumulated(model) is None
    tfopt.accumulate(tfopt.accumulate(model, 4), 2)
    assert accumulated(model).steps == 2


def test_sparse_batches_are_refused_by_name():
    model = keras.Sequential([keras.Input((3,), sparse=True), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    batch = tf.sparse.from_dense(np.eye(4, 3, dtype="float32")), np.zeros((4, 1), "float32")
    with pytest.raises(UserError, match="sparse tensors"):
        tfopt.accumulate(model, 2).train_on_batch(*batch)


def test_a_dataset_of_unknown_batches_is_cut_too():
    found = []
    for steps in (1, 4):
        model = compiled(plain_net, steps)
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
        model.fit(batches, epochs=2, verbose=0, shuffle=False)
        found.append(model.get_weights())
    assert gap(*found) < 1e-6


def test_the_transform_describes_its_micro_batches():
    job = Job(
        build=plain_net,
        data=lambda: Data(train=(X, Y)),
        compile=lambda: {"optimizer": "sgd", "loss": "mse"},
        batch_size=18,
    )
    order = Pipeline(shuffle=False)
    note = run(chain(Accumulate(4), order).apply(job)).effects[0][1].note
    assert note == "batches of 18 in 4 micro-batches of 5 at most"
    assert not run(chain(Accumulate(1), order).apply(job)).effects[0][1].acted
    with pytest.raises(UserError, match="1000 micro-batches") as caught:
        run(Accumulate(1000).apply(job))
    assert "at most 18" in caught.value.expected


class Adds(L.Layer):
    def call(self, x):
        self.add_loss(0.01 * keras.ops.sum(keras.ops.square(x)))
        return x


def adding():
    inputs = keras.Input((6,))
    return keras.Model(inputs, L.Dense(3)(Adds(name="adds")(L.Dense(8, "tanh")(inputs))))


def test_what_a_layer_adds_counts_as_declared():
    assert_the_same(adding, (X, Y), own_losses="sum")


class OwnCall(keras.losses.Loss):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return keras.ops.mean(keras.ops.square(y_true - y_pred))


def contrastive(y, given):
    return keras.ops.mean(keras.ops.abs(given @ keras.ops.transpose(y)))


@pytest.mark.parametrize(
    ("build", "loss", "words"),
    [
        (dense, OwnCall(), "OwnCall"),
        (dense, contrastive, "contrastive"),
        (dense, keras.losses.Dice(), "dice"),
        (adding, "mse", "add_loss.. of 'adds'"),
        (dense, keras.losses.MeanSquaredError(reduction="none"), "not reduced"),
    ],
)
def test_losses_that_may_not_add_up_are_refused_by_name(build, loss, words):
    with pytest.raises(UserError, match=words) as caught:
        trained(build, (X, Y), steps=4, loss=loss)
    assert "fix:" in str(caught.value)


def test_several_undeclared_losses_are_named_together_and_trained_once_declared():
    data, losses = (IDS[:48], [STEPS[:48], Y[:48]]), [OwnCall(), contrastive]
    with pytest.raises(UserError, match="OwnCall, contrastive"):
        trained(two_outputs, data, steps=4, loss=losses)
    assert_the_same(two_outputs, data, loss=[OwnCall(), number], own_losses="mean")


def test_what_is_no_count_or_no_kind_of_loss_is_refused():
    for accumulate in (
        lambda *given: tfopt.accumulate(plain_net(), given[0], own_losses=given[1]),
        Accumulate,
    ):
        with pytest.raises(UserError, match="not a count"):
            accumulate(0, None)
        with pytest.raises(UserError, match="own_losses"):
            accumulate(2, "max")
