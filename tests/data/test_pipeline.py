"""The input pipeline: every source, every example once an epoch, caches, refusals, and fit."""

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf
from allpairspy import AllPairs
from one_transform import run_of

import tfopt
from tfopt import Data, Job, Pipeline, UserError, run
from tfopt.data import PipelineOptions

N = 100
X = np.arange(N, dtype="float32")[:, None] * np.ones((1, 3), "float32")
Y = np.arange(N)


class Batches(keras.utils.PyDataset):
    """Shuffles its own arrays in place after every epoch, as many do."""

    def __init__(self, size=15, **settings):
        super().__init__(**settings)
        self.size, self.rows, self.began, self.ended = size, Y.copy(), 0, 0

    def __len__(self):
        return -(-N // self.size)

    def __getitem__(self, i):
        rows = self.rows[i * self.size : (i + 1) * self.size]
        return X[rows], rows

    def on_epoch_begin(self):
        self.began += 1

    def on_epoch_end(self):
        self.ended += 1
        self.rows[:] = np.random.default_rng(self.ended).permutation(N)


def batches():
    for start in range(0, N, 15):
        yield X[start : start + 15], Y[start : start + 15]


def dataset(size=20, drop_remainder=False):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(size, drop_remainder=drop_remainder)


def doubled(x, y):
    return 2 * x, y


def epoch(made):
    """The labels of one epoch, batch by batch; checks that inputs belong to them."""
    read = [tuple(part.numpy() for part in batch[:2]) for batch in made]
    for x, y in read:
        # Example i holds i, or 2 i where it went through the map.
        assert any(np.array_equal(x, factor * X[y]) for factor in (1, 2))
    return [y.tolist() for _, y in read]


def flat(read):
    return [label for batch in read for label in batch]


SOURCES = {
    "arrays": lambda: (X, Y),
    "tensors": lambda: (tf.constant(X), tf.constant(Y)),
    "dataset": dataset,
    "pydataset": Batches,
    "pydataset with workers": lambda: Batches(workers=3),
    "generator": lambda: batches,
}
SETTINGS = {
    "as it is": {},
    "rebatched": {"batch_size": 30},
    "ordered": {"shuffle": False},
    "shuffled": {"shuffle": True, "batch_size": 7},
    "mapped": {"map": doubled, "batch_size": 30},
    "cached": {"cache": "memory", "examples": N},
    "cached and mapped": {"cache": "memory", "map": doubled, "examples": N, "shuffle": False},
    "cached and shuffled": {"cache": "memory", "shuffle": True, "examples": N},
}


# Tensors are read as arrays are, and more workers change nothing else.
ALIKE = ("tensors", "pydataset with workers")
CASES = [(source, setting) for source in SOURCES for setting in SETTINGS if source not in ALIKE]


@pytest.mark.parametrize(
    ("source", "setting"), [*CASES, *((source, "cached and mapped") for source in ALIKE)]
)
def test_every_example_comes_once_an_epoch(source, setting):
    made = tfopt.pipeline(SOURCES[source](), **SETTINGS[setting])
    epochs = [epoch(made) for _ in range(3)]
    streams = source == "generator" or (source == "pydataset" and "batch_size" in SETTINGS[setting])
    known = not streams or "examples" in SETTINGS[setting]
    for read in epochs:
        assert sorted(flat(read)) == Y.tolist()
        # By which fit knows its steps.
        assert int(made.cardinality()) == (len(read) if known else tf.data.UNKNOWN_CARDINALITY)
    size = SETTINGS[setting].get("batch_size")
    if size:
        assert [len(batch) for batch in epochs[0][:-1]] == [size] * (-(-N // size) - 1)
        assert len(epochs[0][-1]) == N % size or size


@pytest.mark.parametrize(
    ("source", "setting", "reordered"),
    [
        ("arrays", {}, True),
        ("arrays", {"shuffle": False}, False),
        ("arrays", {"map": doubled, "cache": "memory"}, True),
        ("dataset", {}, False),
        ("dataset", {"cache": "memory", "shuffle": True}, True),
        ("generator", {"shuffle": True}, True),
    ],
)
def test_the_order_changes_with_the_epoch_where_it_is_shuffled(source, setting, reordered):
    made = tfopt.pipeline(SOURCES[source](), **setting)
    first, second = epoch(made), epoch(made)
    assert (first != second) == reordered
    assert (flat(first) != Y.tolist()) == reordered


def test_a_pydataset_visits_its_batches_in_new_orders_and_is_told_of_its_epochs():
    class Fixed(Batches):
        def on_epoch_end(self):
            pass

    firsts = [[batch[0] for batch in epoch(tfopt.pipeline(Fixed(), seed=seed))] for seed in (1, 2)]
    assert firsts[0] != firsts[1]
    assert sorted(firsts[0]) == sorted(firsts[1]) == list(range(0, N, 15))
    source = Batches()
    linear().fit(tfopt.pipeline(source), epochs=3, shuffle=False, verbose=0)
    assert source.ended == 3
    assert source.began >= 3


def test_a_generator_keeps_its_dtypes_and_may_fill_one_buffer_and_end_raggedly():
    def ragged():
        for rows, width in ((4, 2), (4, 5), (3, 7)):
            yield {"a": np.ones((rows, width), "float64")}, np.ones(rows, "int8")

    made = tfopt.pipeline(ragged)
    assert made.element_spec[0]["a"] == tf.TensorSpec((None, None), tf.float64)
    assert [tuple(x["a"].shape) for x, _ in made] == [(4, 2), (4, 5), (3, 7)]

    def reusing():
        x, y = np.empty((10, 3), "float32"), np.empty(10, "int64")
        for start in range(0, N, 10):
            x[:], y[:] = X[start : start + 10], Y[start : start + 10]
            yield x, y

    # All batches are made before the first is looked at.
    held = list(tfopt.pipeline(reusing, prefetch=10))
    assert flat(epoch(held)) == Y.tolist()


def test_structures_and_dtypes_stay():
    x = {"a": X.astype("float16"), "b": [X.astype("int32"), np.array(["t"] * N)]}
    weights = np.linspace(0, 1, N)
    made = tfopt.pipeline((x, Y, weights), batch_size=30)
    inputs, y, w = next(iter(made))
    assert inputs["b"][0].dtype == tf.int32
    assert inputs["b"][1].dtype == tf.string
    # As in fit, the floats of arrays become Keras's float type.
    assert (inputs["a"].dtype, w.dtype, y.dtype) == (tf.float32, tf.float32, tf.int64)
    np.testing.assert_allclose(w, weights[y.numpy()], rtol=1e-6)
    np.testing.assert_array_equal(inputs["b"][0], X.astype("int32")[y.numpy()])
    np.testing.assert_array_equal(x["b"][0], X)  # what was given is left as it was


def linear(rate=1e-6):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    return model


def test_fit_gives_the_weights_of_plain_fit():
    data = (X, Y.astype("float32"), np.linspace(0, 2, N))
    plain, piped = linear(), linear()
    plain.fit(*data[:2], sample_weight=data[2], shuffle=False, verbose=0)
    piped.fit(tfopt.pipeline(data, shuffle=False), shuffle=False, verbose=0)
    for one, other in zip(plain.get_weights(), piped.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    whole = tfopt.pipeline((X, Y), batch_size=16, options=PipelineOptions(drop_remainder=True))
    assert int(whole.cardinality()) == 6


def counting():
    calls = tf.Variable(0, dtype=tf.int64)

    def count(x, y):
        calls.assign_add(1)
        return 2 * x, y

    return calls, count


CACHES = AllPairs([[10, 30], ["memory", "file:{}/cache"], [True, False], ["auto", 0]])


@pytest.mark.parametrize(("batch", "cache", "shuffle", "prefetch"), [*map(tuple, CACHES)])
def test_a_cached_map_is_called_once_an_example(tmp_path, batch, cache, shuffle, prefetch):
    calls, count = counting()
    made = tfopt.pipeline(
        (X, Y), batch_size=batch, map=count, cache=cache.format(tmp_path), shuffle=shuffle,
        prefetch=prefetch,
    )  # fmt: skip
    # fit stops at the known number of steps and never meets the end of the data.
    linear().fit(made, epochs=3, shuffle=False, verbose=0)
    assert int(calls) == N


def test_options_reach_tf_data_and_the_autotuner_is_off():
    tuned = tf.data.Dataset.range(8).batch(4).prefetch(tf.data.AUTOTUNE)
    made = tfopt.pipeline(tuned, options=PipelineOptions(autoshard="off")).options()
    policies = tf.data.experimental.AutoShardPolicy
    assert made.experimental_distribute.auto_shard_policy == policies.OFF
    assert made.autotune.enabled is False
    assert made.deterministic is True
    assert tfopt.pipeline((X, Y), deterministic=False).options().deterministic is False


def test_map_batch_sees_whole_batches():
    sizes = []

    def seen(x, y):
        tf.py_function(lambda n: sizes.append(int(n)), [tf.shape(x)[0]], [])
        return x, y

    epoch(tfopt.pipeline((X, Y), batch_size=40, map_batch=seen, deterministic=True))
    assert sorted(sizes) == [20, 40, 40]


def test_a_cache_that_does_not_fit_is_refused_with_the_figures(tmp_path):
    big = tf.data.Dataset.from_tensors(np.zeros((1000, 1000), "float32")).repeat(10**9)
    with pytest.raises(UserError, match="does not fit") as caught:
        tfopt.pipeline(big, cache="memory")
    assert "MiB" in caught.value.expected
    assert "1,000,000,000,000 examples" in caught.value.received
    assert "file:" in caught.value.fix
    with pytest.raises(UserError, match="does not fit on the disk"):
        tfopt.pipeline(big, cache=f"file:{tmp_path}/cache")
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match="shuffle buffer"):
        tfopt.pipeline(big, shuffle=True, options=PipelineOptions(buffer=10**12))


def test_a_cache_of_unknown_or_endless_size_is_refused():
    with pytest.raises(UserError, match="needs the number of examples") as caught:
        tfopt.pipeline(batches, cache="memory")
    assert "examples=" in caught.value.fix
    with pytest.raises(UserError, match="endless"):
        tfopt.pipeline(dataset().repeat(), cache="memory")


def test_a_file_cache_is_used_again_only_for_what_it_was_made_from(tmp_path):
    path = f"file:{tmp_path}/cache"
    calls, count = counting()
    epoch(tfopt.pipeline((X, Y), map=count, cache=path))
    epoch(tfopt.pipeline((X, Y), map=count, cache=path))
    assert int(calls) == N
    with pytest.raises(UserError, match="belongs to other data or settings") as caught:
        tfopt.pipeline((X, Y), map=doubled, cache=path)
    assert "another map" in caught.value.received
    with pytest.raises(UserError, match="belongs to other data or settings") as caught:
        tfopt.pipeline((X + 1, Y), map=count, cache=path)
    assert "another content" in caught.value.received
    (tmp_path / "other_0.lockfile").write_text("")
    with pytest.raises(UserError, match=r"is incomplete(.|\n)*delete it"):
        tfopt.pipeline((X, Y), map=doubled, cache=f"file:{tmp_path}/other")


def test_a_cache_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written to"):
        tfopt.pipeline(dataset(), cache=f"file:{tmp_path}/file/cache")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"shuffle": 5}, "shuffle"),
        ({"cache": "file:"}, "cache"),
        ({"prefetch": -1}, "prefetch"),
        ({"examples": 0}, "examples"),
        ({"deterministic": "yes"}, "deterministic"),
        ({"map": 3}, "function"),
        ({"map": "no reference"}, "malformed"),
        ({"options": {"buffer": 2}}, "options"),
    ],
)
def test_a_wrong_setting_is_refused_when_it_is_made(settings, words):
    with pytest.raises(UserError, match=words):
        Pipeline(**settings)
    with pytest.raises(UserError, match=words):
        tfopt.pipeline((X, Y), **settings)
    for option in ({"buffer": 1}, {"drop_remainder": 1}, {"autoshard": "split"}):
        with pytest.raises(UserError, match=next(iter(option))):
            PipelineOptions(**option)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((X, Y[:5]), r"differ in length(.|\n)*dataset.batch\(32\)"),
        ((X[:0], Y[:0]), "nothing"),
        (dataset().take(0), "nothing"),
        (batches(), "only once"),
        (dataset().unbatch(), "single examples"),
        (lambda: iter([np.float32(1)]), "yield whole batches"),
        ((tf.ragged.constant([[1.0], [2.0, 3.0]]), Y[:2]), "A RaggedTensor cannot be cut"),
        ((tf.sparse.eye(2), Y[:2]), "A SparseTensor cannot be cut"),
        ((scipy.sparse.eye(2), Y[:2]), "cannot be cut(.|\n)*a dense array"),
        ([X, Y], "tuple"),
        (({"a": [1, 2]}, Y), "not an array of examples"),
        (7, "int"),
    ],
)
def test_a_source_that_cannot_be_read_is_one_clear_error(data, words):
    with pytest.raises(UserError, match=words):
        tfopt.pipeline(data)


def test_a_count_that_contradicts_the_data_is_refused():
    with pytest.raises(UserError, match="contradicts"):
        tfopt.pipeline((X, Y), examples=99)
    with pytest.raises(UserError, match="Every batch"):
        tfopt.pipeline((X, Y), batch_size=101, options=PipelineOptions(drop_remainder=True))


# The transform.


def facts(**changes):
    return run_of(Pipeline(), **changes).facts


def a_job(**settings):
    return Job(
        build=linear,
        data=lambda: Data(train=(X, Y.astype("float32"))),
        compile=lambda: {"optimizer": keras.optimizers.SGD(1e-6), "loss": "mse"},
        **settings,
    )


def test_the_batch_is_the_jobs_and_a_changed_one_is_told_with_the_learning_rate():
    ((_, effect),) = run(a_job(batch_size=10), Pipeline(batch_size=50)).effects
    assert effect.acted
    assert "batches of 50" in effect.note
    assert "the job's learning rate is for batches of 10: LearningRate scales it" in effect.note


def whole(count=N):
    return tf.data.Dataset.range(count)


@pytest.mark.parametrize(
    ("stream", "length"),
    [
        (whole().batch(20), 4),
        (whole().shuffle(9).batch(30, num_parallel_calls=2).cache().prefetch(1), 4),
        (whole().batch(30).map(lambda values: values), None),
        (whole().filter(lambda value: True).batch(30), None),
    ],
)
def test_new_batches_keep_the_length_where_it_follows(stream, length):
    made = tfopt.pipeline(stream, batch_size=25)
    assert int(made.cardinality()) == (
        length if length is not None else tf.data.UNKNOWN_CARDINALITY
    )
    assert sum(1 for _ in made) == 4


def test_what_was_not_done_is_told():
    _, notes = Pipeline(cache="memory").read((X, Y), facts())
    assert "nothing to cache" in ", ".join(notes)
    _, notes = Pipeline().read(Batches(workers=2, use_multiprocessing=True), facts())
    assert "in place of Batches" in ", ".join(notes)
