"""Several steps for an update: the weights of the whole batch, and what is told or refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt import Accumulate, Data, Job, LearningRate, Pipeline, UserError, chain, run

L, Opt = keras.layers, keras.optimizers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 6)).astype("float32")
Y = RNG.normal(size=(48, 3)).astype("float32")


def losses_of(examples):
    layer = L.Activation("linear", activity_regularizer="l2")
    layer(np.ones((examples, 1)))
    return float(layer.losses[0])


# Keras 3.8 adds the activities of examples up, with which no loss is a mean over them.
ACTIVITY = "l2" if losses_of(1) == losses_of(2) else None


def net():
    hidden = L.Dense(8, "tanh", kernel_regularizer="l2", activity_regularizer=ACTIVITY)
    return keras.Sequential([keras.Input((6,)), hidden, L.Dense(3)])


def decaying():
    return Opt.SGD(keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.5), momentum=0.9)


def compiled(build=net, optimizer=lambda: Opt.SGD(0.1, momentum=0.9), **settings):
    keras.utils.set_random_seed(0)
    model = build()
    model.compile(optimizer(), "mse", **{"jit_compile": False, **settings})
    return model


def trained(model, batch_size):
    model.fit(X, Y, batch_size=batch_size, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


def gap(one, other):
    return float(np.max([np.abs(a - b).max() for a, b in zip(one, other, strict=True)]))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"run_eagerly": True},
        {"steps_per_execution": 4},
        {"optimizer": lambda: Opt.AdamW(0.01, weight_decay=0.1, clipnorm=0.1)},
        {"optimizer": decaying},
        {"optimizer": lambda: Opt.LossScaleOptimizer(Opt.Adam(0.01, global_clipnorm=0.1))},
        pytest.param({"jit_compile": True}, marks=pytest.mark.slow),
    ],
    ids=["plain", "eager", "together", "adamw", "schedule", "scaled", "jit"],
)
def test_it_trains_the_weights_of_the_whole_batch(settings):
    model = compiled(**settings)
    assert tfopt.accumulate(model, 4) is model
    assert gap(trained(compiled(**settings), 16), trained(model, 4)) < 1e-6
    assert int(getattr(model.optimizer, "inner_optimizer", model.optimizer).iterations) == 6


def test_a_model_that_has_trained_goes_on_and_so_does_its_file(tmp_path):
    plain, model = compiled(optimizer=decaying), compiled(optimizer=decaying)
    trained(plain, 16)
    trained(model, 16)
    tfopt.accumulate(model, 4)
    assert gap(trained(plain, 16), trained(model, 4)) < 1e-6
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert gap(trained(model, 4), trained(loaded, 4)) < 1e-6


def with_optimizers_of_its_own():
    model = compiled()
    model.d_optimizer = Opt.Adam()
    return model


def test_the_compiled_optimizer_may_be_an_attribute_too_also_under_a_loss_scale():
    model = net()
    model.own = Opt.Adam()
    model.compile(Opt.LossScaleOptimizer(model.own), "mse")
    assert tfopt.accumulate(model, 4).optimizer.inner_optimizer.gradient_accumulation_steps == 4


@pytest.mark.parametrize(
    ("model", "word"),
    [
        (lambda: Opt.SGD(), "Keras 3 model"),
        (lambda: "model.keras", r"load it: tfopt.load\(path\)"),
        (net, "needs a compiled model"),
        (lambda: compiled(optimizer=lambda: Opt.SGD(use_ema=True)), "use_ema would average"),
        (
            lambda: compiled(optimizer=lambda: Opt.SGD(gradient_accumulation_steps=2)),
            "accumulates gradients already",
        ),
        (with_optimizers_of_its_own, "optimizers of its own"),
    ],
)
def test_what_cannot_accumulate_is_refused(model, word):
    with pytest.raises(UserError, match=word) as caught:
        tfopt.accumulate(model(), 4)
    assert "fix:" in str(caught.value)
    with pytest.raises(UserError, match="not a count"):
        tfopt.accumulate(compiled(), 1)


IN_ORDER = Pipeline(shuffle=False)


def job(**changes):
    fields = {
        "build": net,
        "data": lambda: Data(train=(X, Y)),
        "compile": lambda: {"optimizer": Opt.Adam(0.01), "loss": "mse", "jit_compile": False},
        "batch_size": 16,
        "epochs": 2,
    }
    return Job(**{**fields, **changes})


@pytest.mark.parametrize(
    ("given", "others"),
    [
        (job, [LearningRate("sqrt", warmup=0.5, decay="cosine")]),
        (lambda: job(tuned_batch_size=8), [LearningRate("linear")]),
        (lambda: job(steps_per_epoch=3), []),
        (lambda: Job.from_model(continued(), (X, Y), batch_size=16, epochs=2), []),
        (
            lambda: Job.from_model(continued(), (X, Y), batch_size=16),
            [LearningRate(warmup=0.5, decay="cosine")],
        ),
    ],
    ids=["schedule", "rule", "steps", "state", "schedule after a state"],
)
def test_a_job_trains_the_weights_of_its_own_batches(given, others):
    plain = run(given(), chain(*others, IN_ORDER)).model
    for transforms in ([*others, Accumulate(4)], [Accumulate(4), *others]):
        model = run(given(), chain(*transforms, IN_ORDER)).model
        assert gap(plain.get_weights(), model.get_weights()) < 1e-6


def continued():
    model = compiled(optimizer=lambda: Opt.Adam(0.01))
    trained(model, 16)
    return model


def test_the_transform_describes_its_micro_batches():
    note = run(job(), chain(Accumulate(2), IN_ORDER)).effects[0][1].note
    assert note == "batches of 16 in 2 micro-batches of 8"
    note = run(job(batch_size=10), chain(Accumulate(5), IN_ORDER)).effects[0][1].note
    assert note.endswith("; the last 4 of an epoch go into the first update of the next one")


def test_batches_that_cannot_be_cut_are_refused():
    with pytest.raises(UserError, match="into 3 micro-batches of one size"):
        run(job(), Accumulate(3))
    batches = lambda: Data(train=tf.data.Dataset.from_tensor_slices((X, Y)).batch(16))  # noqa: E731
    with pytest.raises(UserError, match="the job asks for batches of 4") as caught:
        run(job(data=batches), Accumulate(4))
    assert "Pipeline(batch_size=16)" in caught.value.fix
