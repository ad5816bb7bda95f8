"""The text recipe: it learns, takes a folder, and refuses what it cannot read."""

import keras
import numpy as np
import pytest

from tfopt import Execution, LearningRate, Pipeline, chain, run
from tfopt.recipes.text_transformer import job, load_tokens

FAST = chain(
    LearningRate(peak=0.005, decay="cosine"),
    Pipeline(batch_size=50),
    Execution(jit_compile=False, steps_per_execution=10),
)


@pytest.mark.slow
def test_it_learns_what_no_guess_knows(tmp_path):
    described = job(data="synthetic", vocabulary=300, length=32, examples=1_000)
    outcome = run(described, FAST)
    assert outcome.evaluation["accuracy"] > 0.75  # of two classes
    assert "not real text" in outcome.data.note
    outcome.model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    tokens = outcome.data.test[0][:8]
    np.testing.assert_allclose(again(tokens), outcome.model(tokens), atol=1e-6)


def test_the_vocabulary_is_that_of_the_training_part():
    data = load_tokens("synthetic", 300, 32, 500)
    (x, y), (x_test, _) = data.train, data.test
    assert (x.shape, x.dtype, len(y)) == ((500, 32), np.int32, 500)
    assert 1 < x.max() < 300
    assert (x[:, 30:] == 0).all()  # texts of thirty words, padded
    np.testing.assert_array_equal(load_tokens("synthetic", 300, 32, 500).test[0], x_test)
    assert "500 and 500 of them, 32 words of each" in data.note


def test_places_matter():
    model = job(data="synthetic", length=4).build()
    one, two = np.array([[2, 3, 4, 5]], "int32"), np.array([[3, 2, 4, 5]], "int32")
    assert not np.allclose(model(one), model(two), atol=1e-7)
