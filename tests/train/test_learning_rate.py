"""LearningRate: the rule, the shape, and that nothing is overwritten silently."""

import keras
import numpy as np
import pytest
from one_transform import effect_of, run_of

from tfopt import Job, LearningRate, UserError, run, scaled_learning_rate

X = np.zeros((64, 2), "float32")
Y = np.zeros((64, 1), "float32")


KNOWN = {"batch_size": 128, "tuned_batch_size": 32, "steps_per_epoch": 50, "epochs": 2}


def rates(transform, **changes):
    arguments = {"optimizer": keras.optimizers.SGD(0.1)}
    run = run_of(transform, **{**KNOWN, **changes})
    arguments, effect = transform.compile(run, arguments), effect_of(run)
    schedule = arguments["optimizer"]._learning_rate
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        return [float(schedule(step)) for step in range(101)], effect
    return [float(arguments["optimizer"].learning_rate)], effect


def test_the_rules():
    assert scaled_learning_rate(0.1, tuned_batch=32, batch=128, rule="linear") == pytest.approx(0.4)
    assert scaled_learning_rate(0.1, tuned_batch=32, batch=128, rule="sqrt") == pytest.approx(0.2)
    assert rates(LearningRate("linear"))[0] == [pytest.approx(0.4)]
    assert rates(LearningRate("sqrt"))[0] == [pytest.approx(0.2)]
    assert rates(LearningRate(0.03))[0] == [pytest.approx(0.03)]
    for wrong in ({"rule": "Linear"}, {"tuned_batch": 0}):
        with pytest.raises(UserError, match=next(iter(wrong))):
            scaled_learning_rate(0.1, **{"tuned_batch": 32, "batch": 64, "rule": "linear", **wrong})


def test_warm_up_rises_to_the_peak_and_cosine_falls_to_zero():
    values, effect = rates(LearningRate("linear", warmup=0.2, decay="cosine"))
    assert values[0] == 0
    assert values[10] == pytest.approx(0.2)
    assert values[20] == pytest.approx(0.4)
    assert max(values) == pytest.approx(0.4)
    assert values[60] == pytest.approx(0.2)
    assert values[100] == pytest.approx(0, abs=1e-6)
    assert "peak 0.4 by the linear rule (the job's own is 0.1)" in effect.note


def test_warm_up_alone_holds_the_peak_and_the_same_rate_has_no_effect():
    values, _ = rates(LearningRate(0.5, warmup=0.1))
    assert values[5] == pytest.approx(0.25)
    assert values[10:] == [pytest.approx(0.5)] * 91
    _, effect = rates(LearningRate("linear"), batch_size=32)
    assert not effect.acted


def test_a_schedule_of_the_job_and_an_unknown_length_or_batch_are_refused():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    rate, arguments = LearningRate(0.3), {"optimizer": keras.optimizers.SGD(schedule)}
    with pytest.raises(UserError, match="ExponentialDecay"):
        rate.compile(run_of(rate), arguments)
    with pytest.raises(UserError, match=r"Job.steps_per_epoch.*\n?.*Pipeline\(examples="):
        rates(LearningRate(0.3, decay="cosine"), steps_per_epoch=None)
    with pytest.raises(UserError, match="batch_size"):
        rates(LearningRate("linear"), batch_size=None)


def test_a_trained_model_with_a_schedule_has_keras_own_class_in_its_file(tmp_path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rate = LearningRate(0.5, warmup=0.5, decay="cosine")
    run(Job.from_model(model, (X, Y)), rate).save(tmp_path)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer._learning_rate) is keras.optimizers.schedules.CosineDecay
