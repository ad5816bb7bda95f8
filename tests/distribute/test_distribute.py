"""Distribution over logical CPU devices: equal to one device, explicit batches, clear refusals."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import Accumulate, Data, Distribute, Job, Pipeline, UserError, chain, distribute, run
from tfopt.errors import CannotCombine

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


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

    # Without GPUs there is one replica.
    one = run(job(optimizer), chain(Distribute(), Pipeline(shuffle=False)))
    two = run(job(optimizer), chain(Distribute(logical_cpus=2), Pipeline(shuffle=False)))
    losses = one.evaluation["loss"], two.evaluation["loss"]
    (_, alone), (_, together) = one.effects[0], two.effects[0]
    return gap(one, two), losses, alone.acted, alone.note, together.note


def test_two_replicas_train_the_weights_of_one_device(replicas):
    difference, (one, two), acted, alone, together = replicas(on_one_device_and_on_two)
    assert difference < 2e-6
    assert two == pytest.approx(one, rel=1e-4)
    assert not acted
    assert "nothing to distribute over" in alone
    assert "2 replicas" in together
    assert "global batch 16, 8 per replica" in together
    assert "equal: 2 steps on 2 replicas" in together


def too_late():
    with distribute(logical_cpus=2, verify=False):
        build()
    with distribute(logical_cpus=3, verify=False):
        pass


def test_a_scope_that_comes_too_late_is_refused_without_waiting_for_the_others(monkeypatch):
    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    tf.zeros(1) + 1.0
    with (
        pytest.raises(UserError, match="was called too late to join the other workers"),
        distribute(),
    ):
        pass


def of_datasets(size):
    def data():
        return Data(train=tf.data.Dataset.from_tensor_slices((X, Y)).batch(size))

    return job(data=data, batch_size=None, epochs=1)


REFUSED = {
    "too late": (too_late, ("called too late", "build or load the model inside", "new process")),
    "batch": (
        lambda: run(job(), Distribute(logical_cpus=2, global_batch=15)),
        ("does not divide over 2 replicas", "use 14 or 16"),
    ),
    # Without GPUs there is one replica.
    "two batches": (
        lambda: run(job(), chain(Pipeline(batch_size=6), Distribute(per_replica_batch=4))),
        ("CannotCombine", "6 by Pipeline", "4 by Distribute"),
    ),
    "dataset of another batch": (
        lambda: run(of_datasets(24), Distribute(logical_cpus=2, global_batch=16)),
        ("yields batches of 24, and the job asks for batches of 16",),
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


def test_a_model_is_refused_at_the_call_and_a_scope_without_with_warns():
    with pytest.raises(UserError, match=r"takes GPU indices, not a model"):
        distribute(build())
    with pytest.warns(RuntimeWarning, match=r"without `with`, and nothing is distributed"):
        distribute()


def test_two_batch_sizes_are_refused_by_both_names_in_either_order():
    for how in ({"logical_cpus": 2, "global_batch": 8}, {"gpus": (0, 1), "per_replica_batch": 4}):
        link, other = Distribute(**how), Pipeline(batch_size=6)
        for both in ([link, other], [other, link]):
            with pytest.raises(CannotCombine, match="different batch sizes") as caught:
                chain(*both)
            for word in ("Pipeline", "Distribute", "6 by", "8 by"):
                assert word in str(caught.value)
        assert chain(link, Pipeline(batch_size=8)).batch_asked == 8


def fit_with_another_batch():
    with distribute(logical_cpus=2, global_batch=8):
        model = build()
        model.compile("sgd", "mse")
    try:
        model.fit(X, Y, batch_size=4, verbose=0)
    except UserError as error:
        return error.fix


def test_fit_with_another_batch_than_the_scope_is_refused(replicas):
    assert replicas(fit_with_another_batch).startswith("leave batch_size out of fit")


def update_of_several_batches():
    """The global batch is that of an update, of which a step of fit takes a part."""
    link = Distribute(logical_cpus=2, global_batch=16, verify=False)
    chain_of_both = chain(link, Accumulate(2))
    outcome = run(job(optimizer=loss_scaled), chain_of_both)
    return int(outcome.model.optimizer.inner_optimizer.iterations), outcome.history["loss"]


def loss_scaled():
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())


def test_a_global_batch_may_be_accumulated(replicas):
    updates, losses = replicas(update_of_several_batches)
    assert updates == 12  # of 16 examples, in steps of 8; two epochs of 96
    assert losses[1] < losses[0]
