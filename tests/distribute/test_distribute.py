"""Distribution over logical CPU devices: equal to one device, explicit batches, clear refusals."""

import json
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from one_transform import effect_of, run_of

from tfopt import (
    Data,
    Distribute,
    Job,
    Pipeline,
    UserError,
    chain,
    distribute,
    run,
)
from tfopt.errors import CannotCombine

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
WEIGHTS = RNG.random(93).astype("float32")


def build():
    layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)]
    return keras.Sequential([keras.Input((6,)), *layers])


def job(optimizer=lambda: "adam", **settings):
    given = {
        "build": build,
        "data": lambda: Data(train=(X, Y), test=(X, Y)),
        "compile": lambda: {"optimizer": optimizer(), "loss": "mse"},
        "batch_size": 16,
        "epochs": 2,
    }
    return Job(**given | settings)


def gap(one, two):
    pairs = zip(one.model.get_weights(), two.model.get_weights(), strict=True)
    return float(np.max([np.abs(a - b).max() for a, b in pairs]))


def on_one_device_and_on_two():
    def optimizer():
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(clipnorm=0.1))

    one = run(job(optimizer), Pipeline(shuffle=False))
    two = run(job(optimizer), chain(Distribute(logical_cpus=2), Pipeline(shuffle=False)))
    losses = one.evaluation["loss"], two.evaluation["loss"]
    return gap(one, two), losses, two.effects[0][1].note


def test_two_replicas_train_the_weights_of_one_device(replicas):
    difference, (one, two), note = replicas(on_one_device_and_on_two)
    assert difference < 2e-6
    assert two == pytest.approx(one, rel=1e-4)
    assert "2 replicas" in note
    assert "global batch 16, 8 per replica" in note


def fitted_in_the_scope():
    with distribute(logical_cpus=2, verify=False, per_replica_batch=12) as scope:
        model = build()
        model.compile("sgd", "mse")
    model.fit(X, Y, verbose=0)
    counts = scope.count, scope.global_batch, scope.per_replica_batch
    return (
        *counts,
        int(model.optimizer.iterations.numpy()),
        isinstance(model.distribute_strategy, tf.distribute.MirroredStrategy),
    )


def test_the_function_is_a_scope_with_explicit_batches(replicas):
    *counts, is_mirrored = replicas(fitted_in_the_scope)
    assert counts == [2, 24, 12, 4]
    assert is_mirrored


def effect_on_one_device():
    outcome = run(job(epochs=1), Distribute())
    return outcome.effects[0][1].acted, outcome.effects[0][1].note


def test_without_gpus_there_is_nothing_to_distribute_over(replicas):
    acted, note = replicas(effect_on_one_device)
    assert not acted
    assert "nothing to distribute over" in note


def too_late():
    with distribute(logical_cpus=2, verify=False):
        build()
    with distribute(logical_cpus=3, verify=False):
        pass


def too_late_among_workers():
    tf.zeros(1) + 1.0
    try:
        with distribute():
            pass
    except UserError as error:
        return str(error)


def test_a_scope_that_comes_too_late_is_refused_without_waiting_for_the_others(alone):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    said = alone(too_late_among_workers, environment={"TF_CONFIG": json.dumps(cluster)})
    assert "came too late to join the other workers" in said


def of_datasets(size):
    def data():
        return Data(train=tf.data.Dataset.from_tensor_slices((X, Y)).batch(size))

    return job(data=data, batch_size=None, epochs=1)


REFUSED = {
    "too late": (too_late, ("came too late", "build or load the model inside", "new process")),
    "batch": (
        lambda: run(job(), Distribute(logical_cpus=2, global_batch=15)),
        ("does not divide over 2 replicas", "use 14 or 16"),
    ),
    # Without GPUs there is one replica.
    "two batches": (
        lambda: run(job(), chain(Pipeline(batch_size=6), Distribute(per_replica_batch=4))),
        ("CannotCombine", "6 by Pipeline", "4 by Distribute"),
    ),
    "dataset": (
        lambda: run(of_datasets(15), Distribute(logical_cpus=2)),
        ("batch of 15 does not divide over 2 replicas",),
    ),
    "dataset of another batch": (
        lambda: run(of_datasets(24), Distribute(logical_cpus=2, global_batch=16)),
        ("yields batches of 24, and nothing makes batches of 16",),
    ),
}


def refusal(name):
    try:
        REFUSED[name][0]()
    except UserError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_distributed_is_refused(replicas, name):
    message = replicas(refusal, name)
    for words in REFUSED[name][1]:
        assert words in message


@pytest.mark.parametrize(
    "bad",
    [
        {"gpus": (0, 0)},
        {"gpus": ()},
        {"logical_cpus": 0},
        {"gpus": (0,), "logical_cpus": 2},
        {"global_batch": 8, "per_replica_batch": 4},
    ],
)
def test_nonsense_is_refused(bad):
    with pytest.raises(UserError):
        Distribute(**bad)


def test_a_model_is_refused_at_the_call():
    with pytest.raises(UserError, match=r"takes GPU indices, and no model"):
        distribute(build())


def test_a_scope_without_with_warns():
    with pytest.warns(RuntimeWarning, match=r"without `with`, and nothing is distributed"):
        distribute()


@pytest.mark.parametrize(
    "link",
    [
        Distribute(logical_cpus=2, global_batch=8),
        Distribute(logical_cpus=2, per_replica_batch=4),
        Distribute(gpus=(0, 1), per_replica_batch=4),
    ],
)
def test_two_batch_sizes_are_refused_by_both_names_in_either_order(link):
    for both in ([link, Pipeline(batch_size=6)], [Pipeline(batch_size=6), link]):
        with pytest.raises(CannotCombine, match="different batches") as caught:
            chain(*both)
        for word in ("Pipeline", "Distribute", "6 by", "8 by"):
            assert word in str(caught.value)
    assert chain(link, Pipeline(batch_size=8)).batch_asked == 8


@pytest.mark.parametrize(("device", "jit"), [("GPU", False), ("GPU", True), ("CPU", False)])
def test_several_gpus_without_xla_are_told_so(device, jit):
    # Keras takes XLA on one GPU and leaves it off under a strategy.
    extended = SimpleNamespace(worker_devices=(f"/device:{device}:0", f"/device:{device}:1"))
    strategy = SimpleNamespace(extended=extended)
    model = SimpleNamespace(distribute_strategy=strategy, jit_compile=jit)
    run = run_of(Distribute(), replicas=2)
    Distribute().attach(run, model)
    told = effect_of(run).note
    assert told.startswith("global batch 16, 8 per replica")
    assert ("without XLA" in told) == (device == "GPU" and not jit)
