"""A model without channels equals the model that does not use them, for each way to connect layers.

Sums over fewer channels are taken in another order, so float32 agrees to rounding: the bound here
is a hundred times its epsilon, relative to the largest output.
"""

import keras
import numpy as np
import pytest
from dense_nets import assert_same, loaded
from keras import layers, ops
from masked_twin import difference, masked_twin

from tfopt.compress.remove_channels import channels_report, remove_channels

ROUNDING = 100 * np.finfo("float32").eps


def with_statistics(model):
    """BatchNorms as after a training: otherwise a mix-up of their weights would show nothing."""
    generator = np.random.default_rng(3)
    for variable in model.variables:
        if variable.name in ("gamma", "beta", "bias", "moving_mean", "alpha"):
            variable.assign(variable + 0.3 * generator.normal(size=variable.shape))
        elif variable.name == "moving_variance":
            variable.assign(0.5 + generator.random(size=variable.shape))
    return model


def conv_bn(x, filters, kernel=3, activation="relu", **settings):
    x = layers.Conv2D(filters, kernel, padding="same", **settings)(x)
    return layers.Activation(activation)(layers.BatchNormalization()(x))


def classified(inputs, x):
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(x)))


def residual():
    inputs = keras.Input((8, 8, 3))
    x = conv_bn(inputs, 32)
    for _ in range(2):
        y = conv_bn(conv_bn(x, 48), 32, activation="linear")
        x = layers.Add()([x, layers.Dropout(0.2, noise_shape=(None, 1, 1, 1))(y)])
    x = layers.Add()([conv_bn(x, 64, 1), conv_bn(layers.MaxPooling2D(1)(x), 64)])
    return classified(inputs, x)


def depthwise_with_squeeze_and_excite():
    inputs = keras.Input((8, 8, 3))
    x = conv_bn(inputs, 32)
    x = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(x)
    x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
    s = layers.GlobalAveragePooling2D(keepdims=True)(x)
    s = layers.Conv2D(64, 1)(layers.Conv2D(16, 1, activation="relu")(s))
    s = layers.ReLU(6.0)(s + 3.0) * (1.0 / 6.0)
    x = layers.Multiply()([x, s])
    return classified(inputs, conv_bn(x, 16, 1))


def decoder():
    inputs = keras.Input((7,))
    x = layers.Reshape((4, 4, 16))(layers.Dense(256, "relu")(inputs))
    x = layers.Conv2DTranspose(24, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Cropping2D(1)(layers.UpSampling2D()(layers.ZeroPadding2D()(x)))
    return keras.Model(inputs, layers.Conv2D(3, 3)(x))


def grouped(groups):
    inputs = keras.Input((8, 8, 3))
    x = conv_bn(inputs, 64)
    x = conv_bn(x, 128, groups=groups)
    return classified(inputs, conv_bn(x, 16, 1))


def separable():
    inputs = keras.Input((8, 8, 3))
    x = layers.SeparableConv2D(32, 3, activation="relu", depth_multiplier=2)(inputs)
    x = layers.PReLU(shared_axes=[1, 2])(layers.SeparableConv2D(32, 3, depth_multiplier=2)(x))
    x = layers.PReLU()(conv_bn(x, 16))
    return classified(inputs, conv_bn(x, 16))


def shared_layers():
    one, two = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    first, second = layers.Conv2D(16, 3, activation="relu"), layers.Conv2D(24, 3)
    pool, reduce = layers.GlobalAveragePooling2D(), layers.Dense(16, "relu")
    left, right = (reduce(pool(second(first(x)))) for x in (one, two))
    out = [layers.Dense(4)(layers.Concatenate()([left, right])), layers.Dense(2)(left - right)]
    return keras.Model([one, two], out)


def nested_models():
    inner_in = keras.Input((8, 8, 32))
    inner = keras.Model(inner_in, layers.Add()([inner_in, conv_bn(inner_in, 32)]), name="inner")
    tail = keras.Sequential([layers.Conv2D(16, 3), layers.BatchNormalization()], name="tail")
    inputs = keras.Input((8, 8, 3))
    return classified(inputs, tail(inner(inner(conv_bn(inputs, 32)))))


def by_operations():
    inputs = keras.Input((8, 8, 3))
    x = ops.transpose(ops.relu(conv_bn(inputs, 16) ** 2.0), (0, 3, 1, 2))
    x = ops.reshape(x, (-1, 16, 64))
    x = layers.Permute((2, 1))(x)[:, 2:10]
    x = layers.Permute((2, 1))(ops.mean(x, axis=1, keepdims=True))
    return keras.Model(inputs, layers.Dense(5)(layers.Flatten()(x)))


def vision_transformer():
    inputs = keras.Input((16, 16, 3))
    x = layers.Conv2D(32, 4, strides=4)(inputs)
    x = layers.Reshape((16, 32))(x)
    for _ in range(2):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([layers.MultiHeadAttention(4, 8, dropout=0.1)(y, y), x])
        y = layers.Dense(64, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([layers.Dropout(0.1)(layers.Dense(32)(y)), x])
    x = layers.Dense(48, "gelu")(layers.Flatten()(layers.LayerNormalization()(x)))
    return keras.Model(inputs, layers.Dense(5)(x))


def attention_without_norms():
    """Nothing keeps the stream whole here, so attention's inputs and output lose channels too."""
    words, image = keras.Input((5,), dtype="int32"), keras.Input((6, 8))
    x = layers.Embedding(11, 32)(words)
    y = layers.Dense(24)(image)
    x = x + layers.MultiHeadAttention(4, 8, value_dim=6)(query=x, key=y, value=y)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model([words, image], layers.Dense(5)(x))


def masked_words():
    """Masks go along with the sequences, also into a model inside."""
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Dense(24, "relu")(layers.Embedding(9, 16, mask_zero=True)(inputs))
    inner = keras.Sequential([keras.Input((None, 24)), layers.Dense(16, "relu")])
    x = [layers.GlobalAveragePooling1D()(each) for each in (x, inner(x))]
    return keras.Model(inputs, layers.Dense(5)(layers.Concatenate()(x)))


def shuffled_and_gated():
    """ShuffleNet's order of channels, a gate, and a squeeze whose axes come back by indexing."""
    inputs = keras.Input((8, 8, 3))
    x = conv_bn(inputs, 32)
    x = layers.Concatenate()([conv_bn(x, 16), conv_bn(x, 16)])
    x = ops.reshape(x, (-1, 8, 8, 2, 16))
    x = ops.reshape(ops.transpose(x, (0, 1, 2, 4, 3)), (-1, 8, 8, 32))
    gate, value = conv_bn(x, 24, 1), conv_bn(x, 24, 1)
    x = ops.where(value > 0, value, 0.1 * value) * ops.sigmoid(gate)
    x = ops.max_pool(x, 2)
    squeezed = layers.Dense(24, "sigmoid")(layers.GlobalAveragePooling2D()(x))
    return classified(inputs, x * squeezed[:, None, None, :])


ARCHITECTURES = [
    residual,
    depthwise_with_squeeze_and_excite,
    decoder,
    pytest.param(lambda: grouped(2), id="few wide groups"),
    pytest.param(lambda: grouped(32), id="many narrow groups"),
    separable,
    shared_layers,
    nested_models,
    by_operations,
    vision_transformer,
    attention_without_norms,
    # Keras itself warns that it forgets the mask behind a model inside a model.
    pytest.param(
        masked_words, marks=pytest.mark.filterwarnings("ignore:Layer 'sequential:UserWarning")
    ),
    shuffled_and_gated,
]


@pytest.mark.parametrize("make", ARCHITECTURES)
def test_it_equals_the_model_that_does_not_use_the_channels(make, tmp_path):
    model = with_statistics(make())
    before = model.get_weights()
    small, report = remove_channels(model, 0.5), channels_report(model, 0.5)
    for group in report.groups:
        halved = group.remark is None and 0 < group.after <= 0.5 * group.before + 4
        assert halved or (group.after == group.before and group.remark), group
    # Only what gives an output, meets an input or is normalised as a whole may have to stay.
    outputs = len(model.outputs) + ("transformer" in getattr(make, "__name__", ""))
    assert sum(group.remark is not None for group in report.groups) <= outputs
    assert report.parameters_before == model.count_params()
    assert report.parameters_after == small.count_params() < model.count_params()
    assert difference(small, masked_twin(model)) <= ROUNDING
    assert difference(small, model) > 1000 * ROUNDING, "nothing of weight was removed"
    assert_same(before, model)
    assert difference(loaded(small, tmp_path), small) <= ROUNDING


def image_model(shape, axis, data_format):
    """TensorFlow runs channels_first on a GPU only; the layers can be made and read anywhere."""
    of = {"data_format": data_format}
    inputs = keras.Input(shape)
    x = layers.BatchNormalization(axis)(layers.Conv2D(16, 3, activation="relu", **of)(inputs))
    x = layers.UpSampling2D(**of)(layers.ZeroPadding2D(**of)(x))
    x = layers.DepthwiseConv2D(3, **of)(layers.SpatialDropout2D(0.1, **of)(x))
    x = layers.Flatten(**of)(layers.MaxPooling2D(**of)(layers.SeparableConv2D(16, 3, **of)(x)))
    return keras.Model(inputs, layers.Dense(5)(layers.Dense(16, "relu")(x)))


def test_channels_first_loses_the_same_weights_as_channels_last():
    last = with_statistics(image_model((8, 8, 3), -1, "channels_last"))
    first = image_model((3, 8, 8), 1, "channels_first")
    first.set_weights(last.get_weights())
    small = remove_channels(first, 0.5)
    assert_same(remove_channels(last, 0.5), small)
    assert small.count_params() < first.count_params()
