"""Data that somebody has shared out already are refused on all workers, untrained."""

import keras

from tfopt.distribute.same_call import facts_of

CODE = """
    import keras, numpy as np, tensorflow as tf, tfopt, warnings
    warnings.filterwarnings("ignore", "`shuffle=True` was passed|Your input ran out of data")
    Dataset, rng = tf.data.Dataset, np.random.default_rng(0)
    x = rng.normal(size=(64, 4)).astype("float32")
    y = rng.integers(0, 9, size=(64, 1))

    with tfopt.distribute(logical_cpus=1, verify=False, peer_timeout_s=60) as place:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
        by_names = keras.Sequential([keras.Input((), dtype="string"), keras.layers.Lambda(
            lambda names: tf.cast(tf.strings.length(names), "float32")[:, None])])
        by_names.compile("sgd", "mse", jit_compile=False)

    def own(values):
        return values[rank::2]

    def attempt(name, call):
        try:
            call()
            say(**{name: "went"})
        except tfopt.UserError as error:
            say(**{name: str(error)})

    def fit(*data, **settings):
        return lambda: model.fit(*data, verbose=0, **settings)

    def pairs(x, y):
        return Dataset.from_tensor_slices((x, y))

    def batches(x, y):
        for n in range(0, len(x), 8):
            yield x[n : n + 8], y[n : n + 8]

    class Batches(keras.utils.PyDataset):
        def __init__(self, x, y):
            super().__init__()
            self.batches = list(batches(x, y))
        def __len__(self):
            return len(self.batches)
        def __getitem__(self, n):
            return self.batches[n]

    def of_names(folder, names):
        names = Dataset.from_tensor_slices([f"{folder}/{n}" for n in names])
        return names.map(lambda name: (name, 0.0)).batch(2)

    shard = lambda data: data.shard(2, rank)
    attempt("arrays", fit(own(x), own(y), batch_size=8))
    attempt("validation", fit(x, y, batch_size=8, validation_data=(own(x), own(y))))
    attempt("labels", fit(np.zeros_like(own(x)), own(y), batch_size=8))
    attempt("shard", fit(shard(pairs(x, y)).shuffle(32).batch(8)))
    attempt("generator", fit(batches(own(x), own(y))))
    attempt("PyDataset", fit(Batches(own(x), own(y)), shuffle=False))
    attempt("files", lambda: by_names.evaluate(of_names("/a", own(range(10, 18))), verbose=0))
    attempt("predict", lambda: model.predict(own(x), verbose=0))
    say(before=int(model.optimizer.iterations.numpy()))

    last_digits = np.nextafter(x, np.inf) if rank else x
    state = np.random.get_state()[1].tolist(), np.random.get_state()[2]
    attempt("whole", fit(x, y, batch_size=8))
    attempt("last digits", fit(last_digits, y, batch_size=8))
    attempt("noisy", fit(batches(x + rank, y)))
    attempt("elsewhere", lambda: by_names.evaluate(of_names(f"/{rank}", range(10, 18)), verbose=0))
    said["same random"] = state == (np.random.get_state()[1].tolist(), np.random.get_state()[2])

    def off(dataset):
        options = tf.data.Options()
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        return dataset.with_options(options)

    attempt("own", fit(off(shard(pairs(x, y)).batch(8))))
"""


REFUSED = "arrays", "validation", "labels", "shard", "generator", "PyDataset", "files", "predict"
TRAINED = "whole", "last digits", "noisy", "elsewhere", "own"


def test_only_data_that_are_whole_or_of_ones_own_by_policy_are_trained_on(workers):
    for said in workers.all_well(CODE):
        for name in REFUSED:
            assert "worker 1 has another " in said[name], name
            assert "on all of the data in the same order" in said[name]
            assert "AutoShardPolicy.OFF" in said[name]
        assert said["before"] == 0
        assert [said[name] for name in TRAINED] == ["went"] * len(TRAINED)
        assert said["same random"]


def test_layers_are_alike_but_for_the_seeds_that_each_process_draws():
    def facts():
        layers = [keras.layers.RandomCrop(4, 4), keras.layers.Dense(3, kernel_initializer="zeros")]
        model = keras.Sequential([keras.Input((8, 8, 1)), *layers])
        model.compile("sgd", "mse")
        return facts_of("fit", model, {})

    assert facts() == facts()
