"""``keras.backend.clear_session()`` inside the scope, as a loop of trials calls it."""

import keras
import numpy as np
import tensorflow as tf

import tfopt


def cleared():
    x, y = np.ones((16, 4), "float32"), np.zeros((16, 1), "float32")

    def model():
        net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        net.compile("sgd", "mse", jit_compile=False)
        return net

    def replicas_of(net):
        net.fit(x, y, batch_size=8, verbose=0)
        return net.distribute_strategy.num_replicas_in_sync

    plain = tf.compat.v1.reset_default_graph
    with tfopt.distribute(logical_cpus=2, verify=False) as replicas:
        first = model()
        keras.backend.clear_session()
        trained = [replicas_of(first), replicas_of(model())]
        with replicas.strategy.scope():
            keras.backend.clear_session()
        variable = type(model().weights[0].value).__name__
    left = tf.distribute.has_strategy(), tf.compat.v1.reset_default_graph is not plain
    return trained, variable, left, type(tf.Variable(0.0)).__name__


def test_the_scope_is_still_there(replicas):
    trained, variable, left, plain = replicas(cleared)
    assert trained == [2, 2]
    assert variable == "MirroredVariable"
    assert left == (False, False)
    assert plain == "ResourceVariable"
