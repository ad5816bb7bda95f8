"""Fused attention on two replicas: each calls the kernels with its part of the batch."""

import keras
import numpy as np
import pytest
from attention_stand_in import on_a_stand_in

import tfopt


def losses():
    """Train a net of one attention on one device, and on two replicas with it fused."""
    tokens, labels = np.random.default_rng(0).normal(size=(32, 8, 16)), np.arange(32) % 3

    def trained(fuse):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((8, 16))
        attention = keras.layers.MultiHeadAttention(2, 8, dtype="mixed_float16")
        x = keras.layers.GlobalAveragePooling1D()(attention(inputs, inputs))
        model = keras.Model(inputs, keras.layers.Dense(3, "softmax", dtype="float32")(x))
        model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
        if fuse:
            tfopt.fused_attention(model)
        history = model.fit(tokens, labels, batch_size=16, epochs=2, shuffle=False, verbose=0)
        return history.history["loss"], fuse and tfopt.train.attention.FusedLayers.of(
            model
        ).summary()

    plain, _ = trained(False)
    with on_a_stand_in(), tfopt.distribute(logical_cpus=2, verify=False):
        return plain, *trained(True)


@pytest.mark.slow
def test_replicas_train_as_one_device_does(replicas):
    expected, fused, summary = replicas(losses)
    assert summary == (True, "attention fused in 1 layer")
    np.testing.assert_allclose(fused, expected, rtol=2e-3)
