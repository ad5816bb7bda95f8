"""Prune as a transform: scheduled by the run, verified after it."""

import keras
import numpy as np
import pytest
from dense_nets import CLASSES, ROWS, FirstWeightsAgain, StopAtOnce, a_job
from one_transform import run_of

from tfopt import Cluster, run
from tfopt.compress.prune import Prune, pruning_report
from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity
from tfopt.errors import UserError


@pytest.mark.parametrize(
    "prune",
    [
        Prune(sparsity=0.8, schedule="constant", frequency=3),
        Prune(sparsity=0.8, initial_sparsity=0.3, frequency=5),
    ],
    ids=repr,
)
def test_the_run_reaches_the_target_and_says_so(prune):
    outcome = run(a_job(), prune)
    hidden = outcome.model.get_layer("hidden").kernel
    assert np.mean(hidden.numpy() == 0) > 0.7
    outcome.model.fit(ROWS, CLASSES, batch_size=8, verbose=0)  # all weights of a plain model
    assert np.mean(hidden.numpy() == 0) < 0.5
    ((transform, effect),) = outcome.effects
    assert transform is prune
    assert effect.acted
    end = round(prune.end * 24)
    assert f"80% of 224 weights in 2 kernels masked by step {end} of 24" in effect.note
    assert "left alone: norm (BatchNormalization has no kernel" in effect.note
    assert "80.4% zeros after training" in effect.note


def test_a_training_cut_short_is_a_target_missed():
    outcome = run(a_job(), Prune(sparsity=0.8), callbacks=[StopAtOnce()])
    effect = outcome.effects[0][1]
    assert effect.acted
    assert effect.note.endswith(" zeros after training; the target of 80% was missed")


def test_weights_put_back_at_the_end_are_masked_before_they_are_evaluated(tmp_path):
    outcome = run(a_job(callbacks=(FirstWeightsAgain,), epochs=4), Prune(sparsity=0.8))
    for row in pruning_report(outcome.model):
        if row.path.endswith("kernel"):
            assert abs(row.zeros - 0.8 * row.weights) <= 1
    effect = outcome.effects[0][1]
    assert effect.acted
    assert "80.4% zeros after training" in effect.note
    assert "the masks were applied again in hidden/kernel, out/kernel" in effect.note
    outcome.save(tmp_path)
    saved = keras.models.load_model(tmp_path / "model.keras")
    assert outcome.evaluation["loss"] == pytest.approx(
        saved.evaluate(ROWS, CLASSES, verbose=0), rel=1e-5
    )


@pytest.mark.parametrize(
    ("prune", "steps", "expected"),
    [
        (Prune(0.8), 400, PolynomialSparsity(0.8, 0, 300, 15)),
        (Prune(0.8, begin=0.25, end=1.0), 400, PolynomialSparsity(0.8, 100, 400, 15)),
        (Prune(0.8, "constant", begin=0.1), 400, ConstantSparsity(0.8, 40, 300, 13)),
        (Prune(0.8, begin=0.9, end=1.0), 1, PolynomialSparsity(0.8, 0, 1, 1)),
    ],
)
def test_fractions_become_steps_of_the_run(prune, steps, expected):
    assert prune._schedule(steps) == expected


@pytest.mark.parametrize("transform", [Prune(0.5), Cluster()], ids=repr)
def test_a_training_of_unknown_length_is_refused(transform):
    with pytest.raises(UserError, match="the length of the training"):
        transform.attach(run_of(transform), keras.Sequential())


@pytest.mark.parametrize(
    "settings",
    [{"across": "model", "criterion": "lamp"}, {"pattern": "1x2"}],
)
def test_criterion_pattern_and_what_is_ranked_together_reach_the_model(settings):
    outcome = run(a_job(epochs=3), Prune(0.75, **settings))
    kernels = [layer.kernel.numpy() for layer in outcome.model.layers if hasattr(layer, "kernel")]
    zeros = sum(np.count_nonzero(kernel == 0) for kernel in kernels)
    assert abs(zeros - 0.75 * sum(kernel.size for kernel in kernels)) <= 2
    assert not any("missed" in note for note in map(str, outcome.effects))
