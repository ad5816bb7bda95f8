"""Models made inside the scope and outside it, the data that they see, and single batches."""

import warnings

import keras
import numpy as np
import tensorflow as tf
from keras import ops

import tfopt

from .training import K, O, error_of, largest, net, x, y


def scope(**how):
    return tfopt.distribute(logical_cpus=2, verify=False, **how)


def inside(make):
    with scope():
        return make()


def built(units=2):
    keras.utils.set_random_seed(units)
    return keras.Sequential([keras.Input((6,)), K.Dense(units)])


def compiled(model, optimizer="adam", metrics=("mae",)):
    model.compile(optimizer, "mse", metrics=list(metrics), jit_compile=False)
    return model


def trained(model):
    history = model.fit(x[:64], x[:64, :2], batch_size=16, shuffle=False, verbose=0).history
    return [*model.get_weights(), np.asarray([*history.values()])]


def on_top(part):
    inputs = keras.Input((6,))
    return keras.Model(inputs, K.Dense(2, kernel_initializer="ones")(part(inputs)))


def frozen(model):
    model.trainable = False
    return model


def on_both_sides():
    """Compile models of the scope behind it, and some that it cannot take."""
    outside, alone, metric = built(), built(), keras.metrics.MeanSquaredError()
    optimizer, part = O.Adam(), built(3)
    with scope():
        within, again = built(), built()
        inner = O.Adam(), keras.metrics.MeanSquaredError()
        fitted_inside = error_of(compiled, outside)
    trained_outside = compiled(built())
    on_part = inside(lambda: compiled(on_top(part)))
    with scope():
        evaluated = error_of(trained_outside.evaluate, x, x[:, :2], verbose=0)
    found = {
        "model": fitted_inside,
        "evaluated": evaluated,
        "optimizer": error_of(compiled, within, optimizer),
        "metric": error_of(compiled, within, metrics=["mae", metric]),
        "part": error_of(on_part.fit, x, x[:, :2], batch_size=16, verbose=0),
    }
    untouched = not within.compiled and not outside.compiled
    compiled(again, inner[0], metrics=[inner[1]])
    weights = [trained(each)[:2] for each in (compiled(within), again, compiled(alone))]
    gap = max(largest(weights[0], each) for each in weights[1:])
    outer = built(3)
    on_frozen = inside(lambda: compiled(on_top(frozen(outer))))
    gap = max(gap, largest(trained(on_frozen), trained(compiled(on_top(frozen(built(3)))))))
    return found, untouched, gap


def test_compile_enters_the_scope_of_its_model_and_refuses_what_was_made_elsewhere(replicas):
    found, untouched, gap = replicas(on_both_sides)
    assert untouched is True
    assert gap < 1e-5
    assert "built outside" in found["model"]
    assert "load_model" in found["model"]
    assert "built outside" in found["evaluated"]
    assert "optimizer=Adam(...)" in found["optimizer"]
    assert "metrics=MeanSquaredError(...)" in found["metric"]
    assert "created outside" in found["part"]
    assert "/dense" in found["part"]


def loaded(folder):
    with scope():
        model = net(metrics=["mae"])()
    model.fit(x, y, batch_size=16, verbose=0)
    path = f"{folder}/model.keras"
    model.save(path)
    plain = keras.models.load_model(path)
    with scope():
        again = keras.models.load_model(path)
    for each in (plain, again):
        each.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    return (
        "fit" in vars(plain),
        "fit" in vars(again),
        largest(plain.get_weights(), again.get_weights()),
    )


def test_a_saved_model_is_loaded_into_a_scope_or_out_of_it(replicas, tmp_path):
    plain, again, apart = replicas(loaded, str(tmp_path))
    assert (plain, again) == (False, True)
    assert apart < 1e-5


class Coder(keras.Model):
    """It has a part, a train_step and no call()."""

    def __init__(self):
        super().__init__()
        self.encoder = keras.Sequential([K.Dense(3, "tanh")])

    def train_step(self, data):
        return {"mean": ops.mean(self.encoder(data))}


def of_parts():
    with scope(own_losses="mean"):
        model = Coder()
        model.compile(O.Adam(0.1))
    return error_of(model.fit, x, verbose=0)


def test_models_without_a_call_need_built_parts(replicas):
    refused = replicas(of_parts)
    assert "Coder creates weights in its first step." in refused
    assert "Dense" in refused


def uneven():
    warnings.filterwarnings("ignore", "Your input ran out of data")
    several, alone = inside(net()), net()()
    for model in (several, alone):
        model.evaluate(x[:3], y[:3], verbose=0)
        model.fit(x[:7], y[:7], batch_size=8, epochs=2, verbose=0, validation_data=(x[:5], y[:5]))
        model.fit(((x[n : n + 7], y[n : n + 7]) for n in range(0, 60, 7)), verbose=0)
    return largest(several.get_weights(), alone.get_weights())


def test_an_uneven_first_batch_trains_as_on_one_device(replicas):
    assert replicas(uneven) < 1e-6


def paired():
    a, b = keras.Input((6,), name="a"), keras.Input((6,), name="b")
    return keras.Model({"a": a, "b": b}, [K.Dense(1, kernel_initializer="ones")(a + b), b])


def single_batches():
    found = []
    for several in (True, False):
        model, pairs = [
            inside(make) if several else make() for make in (net(metrics=["mae"]), paired)
        ]
        numbers = [model.predict_on_batch(x[:1])]
        numbers += pairs.predict_on_batch({"a": x[:3], "b": tf.constant(x[3:6])})
        numbers += [model.train_on_batch(x[:5], y[:5]), model.test_on_batch(x[:5], y[:5])]
        numbers.append(model.train_on_batch(x[:8], y[:8], sample_weight=np.arange(8.0)))
        found.append([np.asarray(each) for each in (*numbers, *model.get_weights())])
    return [each.shape for each in found[0]], [each.shape for each in found[1]], largest(*found)


def test_a_single_batch_is_shared_out_and_has_one_output_an_example(replicas):
    ours, plain, gap = replicas(single_batches)
    assert ours == plain
    assert gap < 1e-5


def sizes():
    model = inside(net())
    pairs = tf.data.Dataset.from_tensor_slices((x, y))

    def answer(*data, **fitted):
        return error_of(model.fit, *data, verbose=0, **fitted)

    singles = tf.data.Dataset.from_tensor_slices((x, y[:, 0]))
    refused = [
        answer(x, y, batch_size=7),
        answer(pairs.batch(7, drop_remainder=True).shuffle(9).prefetch(2).repeat(2)),
        answer(pairs.padded_batch(7)),
    ]
    others = [
        answer(singles),
        answer(x, y, validation_data=singles, batch_size=8),
    ]
    before = int(model.optimizer.iterations.numpy()) if model.optimizer.built else 0
    even = [
        answer(x[:7], y[:7], batch_size=8, validation_data=(x, y), validation_batch_size=7),
        answer(pairs.batch(8)),
        answer(pairs.batch(7).unbatch().batch(4)),
    ]
    model.evaluate(pairs.batch(7), verbose=0)
    model.predict(x[:7], batch_size=7, verbose=0)
    return refused, others, before, even


def test_batches_that_do_not_divide_are_refused_before_a_step(replicas):
    refused, (single, validation), before, even = replicas(sizes)
    assert all("The global batch of 7 does not divide over 2 replicas" in each for each in refused)
    assert single.startswith("x is a dataset of single examples")
    assert validation.startswith("validation_data is a dataset of single examples")
    assert before == 0
    assert even == [None] * 3


def cleared():
    """Clear the session inside the scope, as a loop of trials does."""
    plain = tf.compat.v1.reset_default_graph
    with scope() as replicas:
        first = net()()
        keras.backend.clear_session()
        models = first, net()()
        for model in models:
            model.fit(x[:32], y[:32], batch_size=16, verbose=0)
        with replicas.strategy.scope():
            keras.backend.clear_session()
        variable = type(net()().weights[0].value).__name__
    left = tf.distribute.has_strategy(), tf.compat.v1.reset_default_graph is not plain
    counts = [model.distribute_strategy.num_replicas_in_sync for model in models]
    return counts, variable, left, type(tf.Variable(0.0)).__name__


def test_the_scope_outlasts_a_cleared_session_and_nothing_outlasts_the_scope(replicas):
    assert replicas(cleared) == ([2, 2], "MirroredVariable", (False, False), "ResourceVariable")


class Rates(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.read = []

    def on_train_batch_end(self, batch, logs=None):
        rate, step = self.model.optimizer.learning_rate, self.model.optimizer.iterations
        written = "%.3f" % rate  # noqa: UP031 -- as callbacks write it
        self.read += [float(rate), written, float(rate.value), int(step), int(step.value)]


def read_as_numbers():
    rates = Rates()
    with scope(per_replica_batch=8) as replicas:
        model = net(optimizer=lambda: O.SGD(0.25))()
        total = keras.metrics.Sum()
        replicas.strategy.run(lambda: total.update_state(1.5))
        found = [float(model.optimizer.learning_rate), float(total.total)]
    # Two steps of the scope's own batches.
    model.fit(x[:32], y[:32], verbose=0, callbacks=[rates])
    counts = replicas.count, replicas.global_batch, replicas.per_replica_batch
    return counts, type(model.distribute_strategy).__name__, found, rates.read


def test_a_scope_has_batches_and_callbacks_read_variables_as_on_one_device(replicas):
    counts, strategy, found, read = replicas(read_as_numbers)
    assert (counts, strategy) == ((2, 16, 8), "MirroredStrategy")
    assert found == [0.25, 3.0]
    assert read == [0.25, "0.250", 0.25, 1, 1, 0.25, "0.250", 0.25, 2, 2]


def aligned(count):
    there = np.zeros(count + 16, "float32")
    begin = -there.ctypes.data % 64 // 4
    return there[begin : begin + count, None]


def overwritten():
    """Count what a training changes of arrays that Python code yields."""
    warnings.filterwarnings("ignore", "Your input ran out of data")
    inputs, targets, plain = aligned(256), aligned(256), np.arange(256)[:, None] / 256
    inputs[:], targets[:] = plain, plain

    class Slices(keras.utils.PyDataset):
        def __len__(self):
            return 8

        def __getitem__(self, n):
            return inputs[32 * n :][:32], targets[32 * n :][:32]

    model = inside(net(lambda: [K.Dense(1)], inputs=(1,)))
    for source in (Slices(), (Slices()[n] for n in range(8))):
        model.fit(source, shuffle=False, verbose=0)
    return int((inputs != plain).sum() + (targets != plain).sum())


def test_arrays_that_python_code_yields_hold_the_same_numbers_afterwards(replicas):
    assert replicas(overwritten) == 0
