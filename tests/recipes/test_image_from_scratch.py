"""Images from scratch: new ones in every epoch, as they are in the test, and folders."""

import numpy as np
import pytest

from tfopt import Execution, LearningRate, Pipeline, UserError, chain, run
from tfopt.data.stages import draws_random
from tfopt.measure.job_facts import facts_of
from tfopt.recipes.image_from_scratch import job, load_images
from tfopt.run import prepared


@pytest.mark.slow
def test_it_learns_from_augmented_images():
    fast = chain(
        LearningRate(peak=0.005, decay="cosine"),
        Pipeline(batch_size=50),
        Execution(steps_per_execution=5),
    )
    outcome = run(job(data="synthetic", examples=1_000), fast)
    assert outcome.evaluation["accuracy"] > 0.8  # of ten classes
    assert "32x32 in three channels, augmented in every epoch" in outcome.data.note


def test_the_training_part_alone_is_augmented_anew_in_every_epoch():
    data = job(data="synthetic", examples=70).data()
    epochs = [np.concatenate([x for x, _ in data.train]) for _ in range(2)]
    plain = load_images("synthetic", 32, 70, 32, 0).train[0]
    assert epochs[0].shape == (64, 32, 32, 3)  # whole batches
    assert 0 <= epochs[0].min() < 50 < 200 < epochs[0].max() <= 255
    first, again, never = ({image.tobytes() for image in part} for part in (*epochs, plain))
    assert not first & (again | never)
    with prepared(job(data="synthetic", examples=70)) as ready:
        assert facts_of(ready).augmented  # so no cache is tried behind it
    images, labels = data.test
    assert (images.shape, len(labels)) == ((70, 32, 32, 3), 70)


def test_a_folder_of_images(image_folder):
    described = job(data=image_folder, batch_size=4)
    data = described.data()
    assert (len(data.train), len(data.test)) == (4, 1)
    assert next(iter(data.train))[0].shape == (4, 32, 32, 3)
    assert described.build().output_shape == (None, 2)
    rate = LearningRate(decay="cosine")  # it needs to know the length of the training
    outcome = run(described.with_(epochs=1), chain(rate, Pipeline(batch_size=8)))
    assert "cosine decay" in dict(outcome.effects)[rate].note
    tested = [next(iter(job(data=image_folder, batch_size=4, seed=n).data().test)) for n in (0, 1)]
    np.testing.assert_array_equal(tested[0][0], tested[1][0])
    assert not draws_random(load_images(image_folder, 32, None, 4, 0).train)
    for few in ({"data": image_folder}, {"data": "synthetic", "examples": 10}):
        with pytest.raises(UserError, match="fewer training images") as refused:
            job(**few).data()
        assert "batch_size" in refused.value.fix
