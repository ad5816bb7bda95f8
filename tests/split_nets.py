"""Nets, data and looks at devices for the tests of ``split`` and ``remat``; import it once the devices are set."""

import collections

import keras
import numpy as np

import tfopt

L = keras.layers
RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 16)).astype("float32")
Y = RNG.integers(0, 4, 48)


def dense():
    return keras.Sequential(
        [keras.Input((16,)), *(L.Dense(32, "relu") for _ in range(7)), L.Dense(4)]
    )


def residual(blocks=3, activity="l2"):
    """Has losses of weights and of activations, random numbers, statistics, and models inside."""
    inputs = x = keras.Input((16,))
    for number in range(blocks):
        given = keras.Input((16,))
        y = L.Dense(16, "relu", kernel_regularizer="l2", activity_regularizer=activity)(given)
        y = L.Dropout(0.3)(L.BatchNormalization()(y))
        y = L.LayerNormalization()(L.Add()([given, y]))
        x = keras.Model(given, y, name=f"block_{number}")(x)
    return keras.Model(inputs, L.Dense(4, "softmax")(x))


def attentive():
    """Has masks, integers, a layer that is called twice, and logits kept beside probabilities."""
    inputs = keras.Input((16,))
    x = L.Embedding(20, 8, mask_zero=True)(keras.ops.cast(keras.ops.abs(inputs * 2), "int32"))
    shared = L.Dense(8, "gelu")
    for _ in range(2):
        seen = L.MultiHeadAttention(2, 4, dropout=0.2)(x, x, use_causal_mask=True)
        x = L.LayerNormalization()(x + seen)
        x = L.Add()([x, L.Dropout(0.2)(shared(x))])
    return keras.Model(inputs, L.Dense(4, "softmax")(L.GlobalAveragePooling1D()(x)))


def momentum():
    # Adam would turn the rounding of gradients that are zero, as those of keys' biases, into steps.
    return keras.optimizers.SGD(0.05, momentum=0.9)


def trained(build, *, on_devices, by=tfopt.split, optimizer=momentum, policy="float32", **settings):
    """Return the model and its losses after six steps, changed ``by`` what spreads or recomputes it."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(policy)
    model = build()
    keras.config.set_dtype_policy("float32")
    if on_devices:
        by(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=build is dense)
    model.compile(optimizer(), loss, **settings)
    losses = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0).history["loss"]
    return model, losses


def difference(build, **settings):
    """Return by how much losses and variables differ from those of one device."""
    plain, losses = trained(build, on_devices=False, **settings)
    model, others = trained(build, on_devices=True, **settings)
    pairs = zip(plain.variables, model.variables, strict=True)
    weights = [np.abs(one.numpy() - other.numpy()).max() for one, other in pairs]
    return float(max(np.abs(np.subtract(losses, others)).max(), *weights))


def device(variable):
    return variable.value.device.split("device:")[-1]


def ran(model):
    """Return how often each kind of operation of a training step runs on each device."""
    from tensorflow.python.eager import context

    model.train_function = None
    context.enable_run_metadata()
    model.fit(X[:16], Y[:16], batch_size=16, verbose=0)
    graphs = context.export_run_metadata().function_graphs
    context.disable_run_metadata()
    nodes = [node for graph in graphs for part in graph.partition_graphs for node in part.node]
    found = collections.defaultdict(dict)
    for (where, kind), times in collections.Counter(
        (node.device.split("device:")[-1], node.op) for node in nodes
    ).items():
        found[where][kind] = times
    return found
