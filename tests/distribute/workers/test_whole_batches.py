"""On one machine, too, a global batch that does not divide is refused before it is trained."""

import json

from ..mends.replicas import COMMON


def test_it_is_refused_by_size_and_what_need_not_divide_is_trained(fresh_python):
    printed = fresh_python(
        COMMON
        + """
    with tfopt.distribute(logical_cpus=2):
        model = built(dense, O.SGD)

    def told(*data, **fitted):
        try:
            model.fit(*data, verbose=0, **fitted)
        except tfopt.UserError as error:
            return str(error)
        return "trained"

    pairs = tf.data.Dataset.from_tensor_slices((x, y))
    refused = [
        told(x, y, batch_size=7),
        told(x=x, y=y, batch_size=7),
        told(pairs.batch(7)),
        told(pairs.batch(7, drop_remainder=True).shuffle(9).prefetch(2).repeat(2)),
        told(pairs.batch(7, num_parallel_calls=2).map(lambda a, b: (a, b)).cache()),
        told(pairs.padded_batch(7)),
    ]
    before = int(model.optimizer.iterations.numpy())
    trained = [
        told(x[:7], y[:7], batch_size=8, validation_data=(x, y), validation_batch_size=7),
        told(pairs.batch(8)),
        told(pairs.batch(7).unbatch().batch(4)),
    ]
    model.evaluate(pairs.batch(7), verbose=0)
    model.predict(x[:7], batch_size=7, verbose=0)
    alone = built(dense, O.SGD)
    alone.fit(x, y, batch_size=7, verbose=0)
    print(json.dumps([refused, before, trained]))
    """
    )
    refused, before, trained = json.loads(printed)
    assert all("The global batch of 7 does not divide over 2 replicas" in each for each in refused)
    assert before == 0
    assert trained == ["trained"] * 3


def test_single_examples_and_states_of_a_whole_batch_are_refused(fresh_python):
    printed = fresh_python(
        COMMON
        + """
    def recurrent():
        return [K.Reshape((3, 2)), K.Bidirectional(K.LSTM(3, stateful=True)), K.Dense(3)]

    with tfopt.distribute(logical_cpus=2):
        model = built(dense, O.SGD)
        keras.utils.set_random_seed(0)
        stateful = keras.Sequential([keras.Input(batch_shape=(8, 6)), *recurrent()])
        stateful.compile("sgd", "mse", jit_compile=False)

    def told(model, *data, **fitted):
        try:
            model.fit(*data, verbose=0, **fitted)
        except tfopt.UserError as error:
            return str(error)
        return "trained"

    singles = tf.data.Dataset.from_tensor_slices((x, y[:, 0]))
    checked = told(model, x, y, validation_data=singles, batch_size=8)
    found = [told(model, singles), checked, told(stateful, x[:64], y[:64], batch_size=8)]
    print(json.dumps(found))
    """
    )
    single, checked, stateful = json.loads(printed)
    assert single.startswith("x is a dataset of single examples")
    assert "dataset.batch(global_batch)" in single
    assert checked.startswith("validation_data is a dataset of single examples")
    assert "(LSTM)" in stateful
    assert "stateful=False" in stateful
