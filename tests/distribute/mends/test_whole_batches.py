"""On one machine, too, a global batch that does not divide is refused before it is trained."""

import keras
import tensorflow as tf

import tfopt

from .replicas import K, O, built, dense, x, y


def answer(model, *data, **fitted):
    try:
        model.fit(*data, verbose=0, **fitted)
    except tfopt.UserError as error:
        return str(error)
    return "trained"


def sizes():
    with tfopt.distribute(logical_cpus=2):
        model = built(dense, O.SGD)
    pairs = tf.data.Dataset.from_tensor_slices((x, y))
    refused = [
        answer(model, x, y, batch_size=7),
        answer(model, x=x, y=y, batch_size=7),
        answer(model, pairs.batch(7)),
        answer(model, pairs.batch(7, drop_remainder=True).shuffle(9).prefetch(2).repeat(2)),
        answer(model, pairs.batch(7, num_parallel_calls=2).map(lambda a, b: (a, b)).cache()),
        answer(model, pairs.padded_batch(7)),
    ]
    before = int(model.optimizer.iterations.numpy())
    uneven = {"validation_data": (x, y), "validation_batch_size": 7}
    trained = [
        answer(model, x[:7], y[:7], batch_size=8, **uneven),
        answer(model, pairs.batch(8)),
        answer(model, pairs.batch(7).unbatch().batch(4)),
    ]
    model.evaluate(pairs.batch(7), verbose=0)
    model.predict(x[:7], batch_size=7, verbose=0)
    built(dense, O.SGD).fit(x, y, batch_size=7, verbose=0)
    return refused, before, trained


def test_it_is_refused_by_size_and_what_need_not_divide_is_trained(replicas):
    refused, before, trained = replicas(sizes)
    assert all("The global batch of 7 does not divide over 2 replicas" in each for each in refused)
    assert before == 0
    assert trained == ["trained"] * 3


def singles_and_states():
    layers = [K.Reshape((3, 2)), K.Bidirectional(K.LSTM(3, stateful=True)), K.Dense(3)]
    with tfopt.distribute(logical_cpus=2):
        model = built(dense, O.SGD)
        keras.utils.set_random_seed(0)
        stateful = keras.Sequential([keras.Input(batch_shape=(8, 6)), *layers])
        stateful.compile("sgd", "mse", jit_compile=False)
    singles = tf.data.Dataset.from_tensor_slices((x, y[:, 0]))
    checked = answer(model, x, y, validation_data=singles, batch_size=8)
    return answer(model, singles), checked, answer(stateful, x[:64], y[:64], batch_size=8)


def test_single_examples_and_states_of_a_whole_batch_are_refused(replicas):
    single, checked, stateful = replicas(singles_and_states)
    assert single.startswith("x is a dataset of single examples")
    assert "dataset.batch(global_batch)" in single
    assert checked.startswith("validation_data is a dataset of single examples")
    assert "(LSTM)" in stateful
    assert "stateful=False" in stateful
