"""``keras.backend.clear_session()`` inside the scope, as a loop of trials calls it."""

import keras
import numpy as np
import tensorflow as tf

import tfopt


def cleared():
    x, y = np.ones((16, 4), "float32"), np.zeros((16, 1), "float32")
    found, plain = {}, tf.compat.v1.reset_default_graph

    def model():
        net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        net.compile("sgd", "mse", jit_compile=False)
        return net

    def replicas_of(net):
        net.fit(x, y, batch_size=8, verbose=0)
        return net.distribute_strategy.num_replicas_in_sync

    with tfopt.distribute(logical_cpus=2, verify=False) as replicas:
        first = model()
        keras.backend.clear_session()
        second = model()
        found["trained"] = [replicas_of(first), replicas_of(second)]
        keras.utils.clear_session()
        found["inside"] = tf.distribute.get_strategy() is replicas.strategy
        with replicas.strategy.scope():
            keras.backend.clear_session()
        found["variable"] = type(model().weights[0].value).__name__
    found["patched"] = tf.compat.v1.reset_default_graph is not plain
    found["behind"] = tf.distribute.has_strategy()
    found["plain"] = type(tf.Variable(0.0)).__name__
    keras.backend.clear_session()
    with tfopt.distribute(logical_cpus=2, verify=False):
        keras.backend.clear_session()
        found["again"] = replicas_of(model())
    return found


def test_the_scope_is_still_there(replicas):
    found = replicas(cleared)
    assert found["trained"] == [2, 2]
    assert found["inside"] is True
    assert found["variable"] == "MirroredVariable"
    assert found["patched"] is False
    assert found["behind"] is False
    assert found["plain"] == "ResourceVariable"
    assert found["again"] == 2
