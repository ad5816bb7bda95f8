"""Mistakes are one error in every task, within a bounded time."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfopt
from tfopt.distribute.asynchronous.building import (
    build_variables,
    check_callbacks,
    check_model,
    shares_of,
)
from tfopt.distribute.asynchronous.worker_step import Arrivals
from tfopt.distribute.roll_call import connection_error
from tfopt.errors import UserError


def test_who_does_not_answer_is_named_and_an_uncompiled_model_is_an_error_in_every_task(cluster_of):
    cluster = cluster_of("until_stopped.py", workers=1, UNCOMPILED="1")
    cluster.start("ps 0")
    (ps,) = cluster.addresses["ps"]
    cluster.until(lambda: connection_error(ps) is None, "the ps to listen")
    cluster.environment["PATIENCE_S"] = "1"
    cluster.start("chief 0")
    assert cluster.status("chief 0") == 1
    assert f"worker 0 at {cluster.addresses['worker'][0]} did not start" in cluster.text("chief 0")
    cluster.environment["PATIENCE_S"] = "60"
    cluster.start("worker 0", "chief 0")
    for task in ("chief 0", "ps 0", "worker 0"):
        assert cluster.status(task) == 1
        assert "build() returned no compiled Keras 3 model" in cluster.text(task)


def test_a_cluster_of_another_kind(monkeypatch):
    place = {"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}
    place["task"] = {"type": "chief", "index": 0}
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    with pytest.raises(UserError, match="chief 0 of chief, worker") as caught:
        tfopt.train_asynchronously(lambda: None, lambda share: None, epochs=1)
    assert "tfopt launch --workers 2 --ps 1 -- python train.py" in caught.value.fix
    place["cluster"]["ps"] = ["c:1"]
    monkeypatch.setenv("TF_CONFIG", json.dumps(place))
    with pytest.raises(UserError, match="trains synchronously") as caught, tfopt.distribute():
        pass
    assert "tfopt.train_asynchronously()" in caught.value.fix


def test_wrong_numbers_are_refused_before_the_cluster_is_looked_at():
    given = {"build": lambda: None, "data": lambda share: None, "epochs": 1}
    for wrong, message in (
        ({"epochs": 0}, "epochs is not a count"),
        ({"staleness": -1}, "staleness is not a count"),
        ({"patience_s": 0}, "Invalid `patience_s`"),
        ({"build": 3}, "build is not a function"),
        ({"data": [1.0]}, r"data is not a function(.|\n)*dataset\.shard\("),
    ):
        with pytest.raises(UserError, match=message):
            tfopt.train_asynchronously(**given | wrong)


def test_shares_that_cannot_be_trained_on():
    of_arrays = tf.data.Dataset.from_tensor_slices
    ten = np.arange(10.0)

    def python(share):
        made = of_arrays(ten).map(lambda x: tf.py_function(float, [x], tf.float64))
        return made.batch(2)

    for data, message in (
        (lambda share: ten, "no tf.data.Dataset for worker 0"),
        (lambda share: of_arrays(ten).repeat(), "of unknown length"),
        (lambda share: of_arrays(ten[: share.index]).batch(2), "worker 0 is empty"),
        (
            lambda share: of_arrays(ten).batch(2 + share.index, True),
            "worker 1 has other shapes or types",
        ),
        (python, "calls Python"),
    ):
        with pytest.raises(UserError, match=re.escape(message)):
            shares_of(data, 2)
    assert shares_of(lambda share: of_arrays(ten[share.index :: 2]).batch(2), 2)[-1] == 6


def test_models_and_callbacks_that_cannot_be_trained_with(tmp_path):
    def compiled(optimizer="sgd", **settings):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse", **settings)
        return model

    averaged = keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=2)
    for model, message in (
        (3, "no compiled Keras 3 model"),
        (compiled(run_eagerly=True), "run_eagerly=True"),
        (compiled(steps_per_execution=2), "steps_per_execution=2"),
        (compiled(keras.optimizers.SGD(gradient_accumulation_steps=2)), "the gradients of others"),
        (compiled(averaged), "ema_overwrite_frequency"),
        (compiled(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())), "mixed_bfloat16"),
    ):
        with pytest.raises(UserError, match=message):
            check_model(model)
    check_model(compiled())
    check_callbacks(
        [
            keras.callbacks.EarlyStopping("loss"),
            keras.callbacks.ModelCheckpoint(tmp_path / "best.keras"),
            keras.callbacks.LearningRateScheduler(lambda epoch: 0.1),
            keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None),
        ]
    )
    each_batch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    with pytest.raises(UserError, match="on every batch"):
        check_callbacks([each_batch])


def test_a_model_that_makes_weights_in_its_first_step_is_refused():
    class Parts(keras.Model):
        """Without a call, and with a part whose shape nobody has said."""

        def __init__(self):
            super().__init__()
            self.part = keras.layers.Dense(1)

        def train_step(self, data):
            loss = keras.ops.mean(self.part(data[0]))
            return {"loss": loss}

    def made():
        model = Parts()
        model.compile("adam")
        return model

    spec = (tf.TensorSpec((None, 2)),)
    with pytest.raises(UserError, match="Parts creates weights in its first step") as caught:
        build_variables(made(), spec)
    assert "not built: dense" in str(caught.value)
    two = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    two.compile("adam", "mse")
    two.second = keras.optimizers.SGD()
    with pytest.raises(UserError, match="The optimizer second of Sequential is not built"):
        build_variables(two, (*spec, tf.TensorSpec((None, 1))))


def test_a_step_that_applies_no_optimizer_of_the_model_is_refused():
    def step():
        return Arrivals(counted).staleness()

    counted = tf.Variable(0)
    with pytest.raises(UserError, match="The train_step applies none of the model's optimizers"):
        tf.function(step, autograph=False).get_concrete_function()
