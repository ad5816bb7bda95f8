"""KerasHub's BERT, ViT and GPT-2, small and with random weights, through what compresses a model."""

import keras
import numpy as np
import pytest

import tfopt
from tfopt.keras_internals import layers_of

hub = pytest.importorskip("keras_hub", reason="keras-hub is not installed")
pytestmark = pytest.mark.slow

TOKENS = {
    "token_ids": np.random.default_rng(0).integers(1, 50, (32, 8)).astype("int32"),
    "padding_mask": np.ones((32, 8), "int32"),
}
SMALL = {
    "vocabulary_size": 50,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 32,
    "max_sequence_length": 8,
}
IMAGES = np.random.default_rng(0).random((32, 16, 16, 3), "float32")
LABELS = np.arange(32) % 2


def bert():
    own = hub.models.BertBackbone(**SMALL, num_segments=2)
    return own, {**TOKENS, "segment_ids": np.zeros((32, 8), "int32")}


def gpt2():
    return hub.models.GPT2Backbone(**SMALL), TOKENS


def vit():
    own = hub.models.ViTBackbone(
        image_shape=(16, 16, 3),
        patch_size=4,
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        mlp_dim=32,
    )
    return own, IMAGES


def classifier(make):
    keras.utils.set_random_seed(0)
    backbone, x = make()
    features = backbone(backbone.input)
    if isinstance(features, dict):
        pooled = features["pooled_output"]
    else:
        pooled = keras.layers.GlobalAveragePooling1D()(features)
    model = keras.Model(backbone.input, keras.layers.Dense(2, "softmax")(pooled))
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return model, x


@pytest.mark.parametrize("make", [bert, gpt2, vit])
def test_it_is_pruned_clustered_and_made_for_integers(make, tmp_path):
    model, x = classifier(make)
    tfopt.prune(model, 0.5)
    model.fit(x, LABELS, verbose=0)
    tfopt.strip(model)
    rows = [row for row in tfopt.compress.pruning_report(model) if row.weights > 500]
    assert min(row.zeros / row.weights for row in rows if "kernel" in row.path) == pytest.approx(
        0.5, abs=0.01
    )
    tfopt.cluster(model, 8)
    tfopt.quantize_aware(model)
    model.fit(x, LABELS, verbose=0)
    tfopt.strip(model)
    clusters = tfopt.compress.clustering_report(model)
    assert max(row.values for row in clusters if "query" in row.path) <= 8
    formats = ("saved_model", "litert", "onnx", "openvino")
    made = tfopt.export(
        model, tmp_path, formats=formats, calibration=x, precision=("float32", "int8")
    )
    assert {file.format for file in made.files} == {*formats}


@pytest.mark.parametrize("make", [bert, gpt2, vit])
def test_half_precision_computes_the_same(make):
    model, x = classifier(make)
    expected = model.predict(x, verbose=0)
    half = tfopt.mixed_precision(model, "mixed_bfloat16")
    assert sum(layer.compute_dtype == "bfloat16" for layer in layers_of(half)) > 20
    np.testing.assert_allclose(half.predict(x, verbose=0), expected, atol=0.02)
