"""Execution: what is compiled and how often Python is left, at equal weights."""

import keras
import numpy as np
import pytest

from tfopt import Execution, Job, UserError, execution, run

RNG = np.random.default_rng(0)
X = RNG.normal(size=(100, 6)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def compiled():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    return model


@pytest.mark.parametrize(
    "settings", [{"steps_per_execution": 4}, {"jit_compile": True, "steps_per_execution": 3}]
)
def test_execution_is_exact(settings):
    job = Job.from_model(compiled(), (X, Y), batch_size=16, epochs=2)
    plain, changed = run(job).model, run(job, Execution(**settings)).model
    assert changed.steps_per_execution == settings["steps_per_execution"]
    assert changed.jit_compile is settings.get("jit_compile", False)
    for expected, got in zip(plain.get_weights(), changed.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5)


def test_the_function_changes_a_live_model_and_keeps_its_optimizer_state():
    model = compiled()
    model.fit(X, Y, batch_size=16, verbose=0)
    assert execution(model, steps_per_execution=5) is model
    ends = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: ends.append(batch)
    )
    model.fit(X, Y, batch_size=10, verbose=0, callbacks=[count])
    assert len(ends) == 2
    assert int(model.optimizer.iterations) == 7 + 10


def test_an_uncompiled_model_and_a_number_for_a_switch_are_refused():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    with pytest.raises(UserError, match="compiled"):
        execution(model, steps_per_execution=2)
    for value in (1, 0, "yes"):
        with pytest.raises(UserError, match="jit_compile has an unknown value"):
            Execution(jit_compile=value)
