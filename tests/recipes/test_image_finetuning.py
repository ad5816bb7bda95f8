"""Fine-tuning: what is frozen, which weights it starts from and where it says so, folders."""

import h5py
import keras
import numpy as np
import pytest
from keras.src.legacy.saving import legacy_h5_format

from tfopt import Execution, LearningRate, Pipeline, UserError, chain, run
from tfopt.recipes import image_finetuning
from tfopt.recipes.image_finetuning import fine_tuned, job, load_prepared

SMALL = "MobileNetV2:block_1_expand_relu"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """An empty cache of Keras, and a proxy that refuses: no network, whatever this machine has."""
    monkeypatch.setattr("keras.src.backend.config._KERAS_DIR", str(tmp_path / "keras"))
    (tmp_path / "keras").mkdir()
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    image_finetuning._why_no_imagenet.cache_clear()
    yield tmp_path / "keras"
    image_finetuning._why_no_imagenet.cache_clear()


@pytest.fixture
def cached(nowhere):
    """Weights where Keras keeps ImageNet's; of the right shapes, but drawn here."""
    keras.utils.set_random_seed(7)
    whole = keras.applications.MobileNetV2(include_top=False, weights=None, input_shape=(32, 32, 3))
    (nowhere / "models").mkdir()
    name = "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5"
    with h5py.File(nowhere / "models" / name, "w") as file:
        legacy_h5_format.save_weights_to_hdf5_group(file, whole)
    return whole


def test_it_learns_without_imagenet_and_says_what_it_started_from():
    described = job(data="synthetic", network=SMALL, examples=600, epochs=4)
    fast = chain(
        LearningRate(peak=0.01, warmup=0.1, decay="cosine"),
        Pipeline(batch_size=25),
        Execution(jit_compile=False, steps_per_execution=8),
    )
    outcome = run(described, fast)
    assert outcome.evaluation["accuracy"] > 0.4  # of ten classes
    assert "random weights, every layer trained (ImageNet's cannot be had: " in outcome.data.note
    assert all(layer.trainable for layer in outcome.model._flatten_layers())


def test_imagenet_insisted_on_is_one_error_with_the_way_out():
    with pytest.raises(UserError, match="cannot be had") as caught:
        load_prepared("synthetic", SMALL, "imagenet", 32, 10, 5, 0)
    assert 'weights="none"' in caught.value.fix


def test_weights_in_keras_cache_are_taken_and_frozen(cached):
    made = job(data="synthetic", network=SMALL, weights="auto", examples=10)
    assert f"{SMALL} with ImageNet's weights" in made.data().note
    model = made.build()
    base = next(layer for layer in model.layers if isinstance(layer, keras.Model))
    np.testing.assert_array_equal(base.get_weights()[0], cached.get_weights()[0])
    assert [weight.path for weight in model.trainable_weights] == ["head/kernel", "head/bias"]


def test_the_last_layers_train_as_well_where_that_is_asked_for(cached):
    def trainable(unfreeze):
        model = fine_tuned(SMALL, "imagenet", 32, 10, unfreeze)
        return len(model.trainable_weights), len(model.weights)

    # The last three are a convolution, its normalization with scale and offset, an activation.
    assert trainable(3)[0] == 2 + 3
    all_of_them, weights = trainable(1_000)
    moving_statistics = 2 * 4
    assert all_of_them == weights - moving_statistics


@pytest.mark.slow
def test_a_folder_of_images(image_folder):
    described = job(data=image_folder, network=SMALL, weights="none", batch_size=4, epochs=8)
    data = described.data()
    images, _ = next(iter(data.train))
    assert images.shape == (4, 32, 32, 3)
    assert -1 <= float(keras.ops.min(images)) < float(keras.ops.max(images)) <= 1
    assert (len(data.train), len(data.test)) == (4, 1)
    assert "2 classes" in data.note
    assert "random weights, every layer trained (asked for)" in data.note
    model = described.build()
    assert model.output_shape == (None, 2)
    outcome = run(described, chain(LearningRate(peak=0.01), Pipeline(cache="memory")))
    assert outcome.history["accuracy"][-1] > 0.8


@pytest.mark.parametrize(
    ("network", "what"),
    [
        ("MobileNetV9", "Invalid network of keras.applications"),
        ("MobileNetV2:block_99", "has no layer 'block_99'"),
        ("InceptionV3", "cannot build InceptionV3 for images of 32x32"),
    ],
)
def test_a_network_that_is_not_there_is_refused(network, what):
    with pytest.raises(UserError, match=what):
        job(data="synthetic", network=network).data()
