"""Cluster as a transform: scheduled by the run, verified after it."""

import keras
import numpy as np
import pytest
from dense_nets import (
    CLASSES,
    ROWS,
    FirstWeightsAgain,
    StopAtOnce,
    a_job,
    assert_same,
    kernel_layers,
    set_zeros,
    zeros_of,
)

from tfopt import Cluster, Data, Job, run


def values(outcome):
    return [len(np.unique(layer.kernel)) for layer in kernel_layers(outcome.model)]


@pytest.mark.parametrize(
    ("transform", "first"),
    [(Cluster(6), 13), (Cluster(6, begin=0.99), 24)],
    ids=repr,
)
def test_the_run_ends_with_few_values_and_says_so(tmp_path, transform, first):
    outcome = run(a_job(), transform)
    assert values(outcome) == [6, 6]
    ((applied, effect),) = outcome.effects
    assert applied is transform
    assert effect.acted
    assert f"at most 6 values in each of 2 kernels from step {first} of 24" in effect.note
    assert "left alone: norm (BatchNormalization has no kernel" in effect.note
    assert "at most 6 values after training" in effect.note
    outcome.save(tmp_path)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert all(v.constraint is None for v in loaded.variables)


def test_a_job_that_begins_with_a_pruned_model_ends_with_its_zeros():
    pruned = a_job().build()
    zeros = set_zeros(pruned, 0.8)
    pruned.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    job = Job.from_model(pruned, Data(train=(ROWS, CLASSES)), batch_size=8, epochs=2)
    outcome = run(job, Cluster(6, begin=0.5))
    assert_same(zeros_of(outcome.model), zeros)


def test_weights_put_back_at_the_end_are_clustered_before_they_are_evaluated():
    outcome = run(a_job(callbacks=(FirstWeightsAgain,)), Cluster(6))
    assert values(outcome) == [6, 6]
    assert "at most 6 values after training" in outcome.effects[0][1].note
    loss = outcome.model.evaluate(ROWS, CLASSES, verbose=0)
    assert outcome.evaluation["loss"] == pytest.approx(loss, rel=1e-5)


def test_a_training_cut_short_says_so():
    outcome = run(a_job(), Cluster(6), callbacks=[StopAtOnce()])
    assert "ended before its clusters were formed" in outcome.effects[0][1].note
    assert min(values(outcome)) > 6
