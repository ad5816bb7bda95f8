"""Compare int8 files of six small nets, and the accuracy of compressed digits, with goldens.

The nets keep the weights that their seeds draw, which are the same on every machine, so a size moves
only when the conversion does. The names of tensors do not count: the converter of TensorFlow 2.23 names
a fused operator by all its parts. ``python tests/guards/test_compression_goldens.py`` writes the file.
"""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import keras
import numpy as np
import pytest
from ai_edge_litert.tools import flatbuffer_utils

import tfopt
from tfopt.data.mnist import load_mnist

FILE = Path(__file__).with_name("compression_goldens.json")
L = keras.layers


def cnn():
    x = keras.Input((16, 16, 3))
    h = L.MaxPooling2D()(L.Conv2D(16, 3, activation="relu", padding="same")(x))
    h = L.BatchNormalization()(L.Conv2D(32, 3, padding="same")(h))
    return keras.Model(
        x, L.Dense(10, activation="softmax")(L.GlobalAveragePooling2D()(L.ReLU()(h)))
    )


def depthwise():
    x = keras.Input((16, 16, 3))
    h = L.ReLU(6.0)(L.BatchNormalization()(L.Conv2D(16, 3, strides=2, padding="same")(x)))
    h = L.ReLU(6.0)(L.BatchNormalization()(L.DepthwiseConv2D(3, padding="same")(h)))
    h = L.Add()([h, L.Conv2D(16, 1)(h)])
    return keras.Model(x, L.Dense(10, activation="softmax")(L.GlobalAveragePooling2D()(h)))


def transformer():
    x = keras.Input((12, 16))
    h = L.Add()([x, L.MultiHeadAttention(2, 8)(x, x)])
    h = L.LayerNormalization()(h)
    h = L.Add()([h, L.Dense(16)(L.Dense(32, activation="gelu")(h))])
    return keras.Model(x, L.Dense(10, activation="softmax")(L.GlobalAveragePooling1D()(h)))


def lstm():
    x = keras.Input((6, 8))
    return keras.Model(x, L.Dense(10, activation="softmax")(L.LSTM(16)(x)))


def two_inputs():
    image, numbers = keras.Input((8, 8, 1), name="image"), keras.Input((5,), name="numbers")
    h = L.Flatten()(L.Conv2D(8, 3, activation="relu")(image))
    h = L.Concatenate()([h, L.Dense(8, activation="tanh")(numbers)])
    return keras.Model([image, numbers], L.Dense(10, activation="softmax")(h))


def u_net():
    x = keras.Input((16, 16, 1))
    down = L.Conv2D(8, 3, padding="same", activation="relu")(x)
    deep = L.Conv2D(16, 3, padding="same", activation="relu")(L.MaxPooling2D()(down))
    up = L.Conv2DTranspose(8, 2, strides=2)(deep)
    return keras.Model(x, L.Conv2D(3, 1, activation="softmax")(L.Concatenate()([down, up])))


NETS = (cnn, depthwise, transformer, lstm, two_inputs, u_net)


def examples(model):
    rng = np.random.default_rng(1)
    made = [rng.normal(size=(200, *each.shape[1:])).astype("float32") for each in model.inputs]
    return made if len(made) > 1 else made[0]


def int8_of(net, folder):
    """Return the size of a net's int8 file without names, and the share of classes that it keeps."""
    keras.utils.set_random_seed(0)
    model = net()
    x = examples(model)
    data = (tuple(x),) if isinstance(x, list) else (x,)
    made = tfopt.quantize(model, folder / "made.tflite", calibration=data, max_drop=100)
    parity = made.parity
    (graph,) = flatbuffer_utils.read_model_from_bytearray(bytearray(made.content)).subgraphs
    return {
        "bytes": len(made.content) - sum(len(tensor.name) for tensor in graph.tensors),
        "operators": len(graph.operators),
        "agreement": parity.argmax_agreement,
        "relative_error": parity.relative_error,
    }


def int8_files():
    with TemporaryDirectory() as folder:
        return {net.__name__: int8_of(net, Path(folder)) for net in NETS}


def accuracies():
    """Return the accuracy of a small net of digits, plain and compressed, on 2,000 of them."""
    digits = load_mnist("embedded")
    x, y = digits.train[0][:4000], digits.train[1][:4000]
    test = digits.test[0][:2000], digits.test[1][:2000]

    def net():
        keras.utils.set_random_seed(0)
        layers = [keras.Input((28, 28, 1)), L.Conv2D(8, 3, strides=2, activation="relu")]
        model = keras.Sequential([*layers, L.Flatten(), L.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"], jit_compile=False)
        model.fit(x, y, batch_size=64, epochs=3, verbose=0)
        return model

    def accuracy(model):
        return model.evaluate(*test, verbose=0, return_dict=True)["accuracy"]

    plain = net()
    start = plain.get_weights()
    found = {"plain": accuracy(plain)}
    for name, compress in (
        ("pruned", lambda model: tfopt.prune(model, 0.8)),
        ("clustered", lambda model: tfopt.cluster(model, 16)),
        ("quantize_aware", tfopt.quantize_aware),
    ):
        plain.set_weights(start)
        compress(plain)
        plain.fit(x, y, batch_size=64, epochs=1, verbose=0)
        tfopt.strip(plain)
        found[name] = accuracy(plain)
    return found


@pytest.fixture(scope="module")
def goldens():
    return json.loads(FILE.read_text())


def test_int8_files_are_as_small_and_agree_as_much(goldens, fresh_python):
    # The names of tensors are in a file, and in them what a process has counted until then.
    code = f"""
        import tensorflow
        import json, runpy
        print(json.dumps(runpy.run_path({__file__!r})["int8_files"]()))
    """
    files = json.loads(fresh_python(code).splitlines()[-1])
    assert files.keys() == {net.__name__ for net in NETS}
    for name, found in files.items():
        golden = goldens[name]
        assert found["bytes"] <= 1.01 * golden["bytes"], name
        assert found["operators"] <= golden["operators"], name
        # Four of 200 examples: drawn weights leave classes close together.
        assert found["agreement"] >= golden["agreement"] - 0.02, name
        assert found["relative_error"] <= 1.25 * golden["relative_error"], name


def test_what_compression_costs_in_accuracy_stays(goldens):
    golden, now = goldens["accuracy"], accuracies()
    # How well Keras trains the plain net is not ours: another Keras trains it to another accuracy.
    for name in golden.keys() - {"plain"}:
        # Over three seeds the accuracy of one way spans 0.5 to 1.5 points on these 2,000 digits.
        points = golden[name] - golden["plain"]
        assert now[name] - now["plain"] == pytest.approx(points, abs=0.015), name


if __name__ == "__main__":
    FILE.write_text(json.dumps({**int8_files(), "accuracy": accuracies()}, indent=1) + "\n")
