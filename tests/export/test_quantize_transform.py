"""The transform: a small model beside the trained one, measured on the test part."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from digits import digit_net, small_digits
from one_transform import effect_of, run_of

from tfopt import Data, Job, chain, run
from tfopt.errors import CannotCombine
from tfopt.export.litert_file import LitertPredictor
from tfopt.export.quantize import Quantize

X, Y = small_digits(1800)
TRAIN, TEST = (X[:1200], Y[:1200]), (X[1200:], Y[1200:])
L = keras.layers


def dataset(part):
    return tf.data.Dataset.from_tensor_slices(part).batch(64)


@pytest.fixture(scope="module")
def trained():
    keras.utils.set_random_seed(0)
    model = digit_net(L.Conv2D(8, 3, activation="relu"), L.Flatten(), L.Dense(32, "relu"))
    model.fit(*TRAIN, epochs=3, verbose=0)
    return model


@pytest.mark.parametrize(("precision", "wrap"), [("int8", tuple), ("dynamic", dataset)])
def test_every_precision_gives_a_file_measured_on_every_kind_of_data(precision, wrap, trained):
    transform = Quantize(precision, 150)
    run = run_of(transform, Data(wrap(TRAIN), wrap(TEST)))
    transform.finish(run, trained)
    (artefact,), effect = run.files, effect_of(run)
    assert artefact.filename == f"model_{precision}.tflite"
    assert artefact.metrics["kib"] == len(artefact.content) / 1024
    assert artefact.metrics["argmax_agreement"] > 0.97
    (scores,) = LitertPredictor(artefact.content)([TEST[0]])
    accuracy = artefact.metrics["test_accuracy"]
    assert accuracy == np.mean(scores.argmax(-1) == TEST[1])
    assert abs(accuracy - trained.evaluate(*TEST, verbose=0)[1]) < 0.01
    assert effect.acted
    assert "on 150 examples" in effect.note


@pytest.mark.parametrize(
    ("test", "reason"),
    [(None, "the job has no test part"), (dataset(TEST).repeat(), "is endless")],
)
def test_what_cannot_be_measured_is_absent_with_its_reason(test, reason, trained):
    run = run_of(Quantize("dynamic"), Data(TRAIN, test))
    Quantize("dynamic").finish(run, trained)
    assert "test_accuracy" not in run.files[0].metrics
    assert f"{reason})" in effect_of(run).note


def test_two_precisions_stand_side_by_side_and_one_twice_is_refused(trained):
    job = Job.from_model(trained, Data(train=TRAIN), batch_size=100)
    outcome = run(job, chain(Quantize("float16"), Quantize("int8")))
    assert [a.filename for a in outcome.artefacts] == ["model_float16.tflite", "model_int8.tflite"]
    details = Interpreter(model_content=outcome.artefacts[1].content).get_tensor_details()
    assert [d["dtype"] for d in details].count(np.float32) == 2
    assert "every operator computes with integers" in outcome.effects[-1][1].note
    with pytest.raises(CannotCombine, match="samples=9") as refused:
        chain(Quantize("int8"), Quantize("float16"), Quantize("int8", samples=9))
    assert "model_int8.tflite" in str(refused.value)


def test_a_model_that_loses_too_much_costs_the_file_and_not_the_run():
    """Of a net that predicts a number: no answer of it is right or wrong."""
    numbers = X.mean((1, 2)) * 10
    model = keras.Sequential([keras.Input((8, 8, 1)), L.Flatten(), L.Dense(1)])
    model.compile("adam", "mse")
    data = Data(train=(X[:200], numbers[:200]), test=(X[200:300], numbers[200:300]))
    job = Job.from_model(model, data, batch_size=50)
    outcome = run(job, Quantize(max_drop=0.0))
    assert outcome.artefacts == ()
    ((_, effect),) = outcome.effects
    assert not effect.acted
    assert "loses more than 0 points" in effect.note
    assert outcome.evaluation["loss"] > 0
    outcome = run(job, Quantize(samples=50))
    assert "test_accuracy" not in outcome.artefacts[0].metrics
    assert "The labels do not fit" in outcome.effects[0][1].note
