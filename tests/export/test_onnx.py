"""Keras models in ONNX files: how tf2onnx converts them, and what ONNX Runtime quantizes."""

import keras
import numpy as np
import pytest
from keras import layers

import tfopt

RNG = np.random.default_rng(0)


def test_onnx_quantizes_products_alone_where_nothing_is_convolved(tmp_path):
    import onnx

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((5, 4)), layers.LSTM(6), layers.Dense(3)])
    x = RNG.normal(size=(20, 5, 4)).astype("float32")
    exported = tfopt.export(model, tmp_path, formats="onnx", precision="int8", calibration=x)
    nodes = onnx.load(exported.files[0].path).graph.node
    gives = {name: node.op_type for node in nodes for name in node.output}
    scaled = {
        node.op_type for node in nodes for n in node.input if gives.get(n) == "DequantizeLinear"
    }
    assert "larger than in float32: scales and operators take more" in str(exported)
    assert "MatMul" in scaled
    assert not scaled & {"Mul", "Sigmoid", "Tanh"}


# Keras 3.16 says of every recurrent layer that it passes no mask on.
@pytest.mark.filterwarnings("ignore:Layer 'gru:UserWarning")
def test_a_masked_text_of_any_length_goes_into_onnx_int8(tmp_path):
    keras.utils.set_random_seed(3)
    text = [layers.Embedding(20, 4, mask_zero=True), layers.GRU(6), layers.Dense(3)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *text])
    x = RNG.integers(0, 20, (20, 7)) * (np.arange(7) < 5)
    settings = {"formats": "onnx", "precision": ["int8", "dynamic"]}
    exported = tfopt.export(model, tmp_path, calibration=x, examples=x, **settings)
    assert not exported.refused, exported
    assert exported["onnx_int8"].parity.relative_error < 0.05
    assert "convolutions" not in str(exported)


def test_blocks_of_convnext_go_into_onnx(tmp_path):
    """Grouped convolutions, and a norm beside the sum that it reads."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(4, 4, 4)(inputs)
    for _ in range(3):
        y = layers.LayerNormalization()(layers.Conv2D(4, 3, padding="same", groups=4)(x))
        x = layers.Add()([x, layers.Dense(4, activation="gelu")(y)])
        x = layers.Conv2D(4, 2, 2, padding="same")(layers.LayerNormalization()(x))
    model = keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling2D()(x)))
    x = RNG.normal(size=(20, 16, 16, 3)).astype("float32")
    settings = {"formats": "onnx", "precision": ["float32", "int8"], "max_drop": 30}
    exported = tfopt.export(model, tmp_path, calibration=x, **settings)
    assert not exported.refused, exported
    assert exported["onnx_float32"].parity.relative_error < 1e-5
