"""Distill as a transform: a teacher from a file, gone after the training."""

import keras
import numpy as np
import pytest
from dense_nets import a_job

from tfopt import Distill, Prune, Quantize, chain, run
from tfopt.errors import UserError


def net(width):
    layers = [keras.layers.Dense(width, "relu"), keras.layers.Dense(2, "softmax")]
    return keras.Sequential([keras.Input((12,)), *layers])


def small_job():
    return a_job().with_(build=lambda: net(8))


def test_the_model_learns_from_the_file_and_lets_it_go(tmp_path):
    path = tmp_path / "teacher.keras"
    net(32).save(path)
    plain = run(small_job())
    taught = run(Distill(str(path), weight=0.9).apply(small_job()))
    assert "compute_loss" not in vars(taught.model)
    assert not np.allclose(plain.model.get_weights()[0], taught.model.get_weights()[0])
    ((_, effect),) = taught.effects
    assert "0.9" in effect.note
    assert "gone" in effect.note


@pytest.mark.slow
def test_it_goes_with_pruning_and_quantization(tmp_path):
    path = tmp_path / "teacher.keras"
    net(32).save(path)
    steps = chain(Prune(0.5), Distill(str(path)), Quantize(mode="dynamic"))
    outcome = run(steps.apply(small_job()))
    assert np.mean(outcome.model.get_weights()[0] == 0) == pytest.approx(0.5, abs=0.02)
    assert outcome.artefacts


def test_a_teacher_that_is_not_there_or_other_is_refused_before_training(tmp_path):
    with pytest.raises(UserError, match="not a saved Keras 3 model"):
        run(Distill(str(tmp_path / "none.keras")).apply(small_job()))
    other = keras.Sequential([keras.Input((12,)), keras.layers.Dense(5)])
    other.save(tmp_path / "other.keras")
    with pytest.raises(UserError, match="other outputs"):
        run(Distill(str(tmp_path / "other.keras")).apply(small_job()))


@pytest.mark.parametrize(
    "settings", [{"teacher": "m.h5"}, {"teacher": 3}, {"teacher": "m.keras", "weight": 2}]
)
def test_settings_that_cannot_be_used_are_refused(settings):
    with pytest.raises(UserError):
        Distill(**settings)
