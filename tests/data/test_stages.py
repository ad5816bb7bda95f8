"""A pipeline taken apart, and put together again with changes: its elements stay what they are."""

import numpy as np
import pytest
import tensorflow as tf

from tfopt.data.stage_changes import applicable, changed
from tfopt.data.stages import stages_of

X = np.random.default_rng(0).normal(size=(96, 4)).astype("float32")
Y = np.arange(96)


def scaled(x, y):
    return x * 2 + 1, y


def in_python(x, y):
    doubled = tf.numpy_function(lambda each: each * 2, [x], tf.float32)
    doubled.set_shape(x.shape)
    return doubled, y


def noisy(x, y):
    return x + tf.random.normal(tf.shape(x)), y


def examples():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def values(dataset):
    """Return all values of x in the order of their size."""
    return np.sort(np.concatenate([np.ravel(x) for x, _ in dataset]))


def test_the_stages_have_names_and_how_many_examples_an_element_holds():
    dataset = examples().map(in_python).shuffle(64, seed=1).batch(8).prefetch(2)
    found = stages_of(dataset.with_options(tf.data.Options()))
    words = ["arrays", "map(in_python)", "shuffle(64)", "batch(8)", "prefetch(2)"]
    assert [stage.words for stage in found] == words
    assert [stage.examples for stage in found] == [1, 1, 1, 8, 8]
    assert [stage.python for stage in found] == [False, True, False, False, False]

    # What a filter leaves out is in no batch.
    halved = examples().map(scaled).filter(lambda x, y: y % 2 == 0).batch(8)
    assert [stage.examples for stage in stages_of(halved)] == [0.5, 0.5, 1, 8]

    # A generator that yields batches is one stage.
    def batches():
        yield X[:8]

    dataset = tf.data.Dataset.from_generator(
        batches, output_signature=tf.TensorSpec((8, 4), tf.float32)
    )
    (stage,) = stages_of(dataset, batch_size=8)
    assert (stage.kind, stage.python, stage.examples) == ("generator", True, 8)


PIPELINES = {
    "map, batch": lambda: examples().map(scaled).batch(8, drop_remainder=True),
    "shuffled": lambda: examples().shuffle(32, seed=3).map(scaled).batch(10).prefetch(1),
    "parallel": lambda: examples().map(scaled, num_parallel_calls=2).batch(8),
    "padded": lambda: examples().map(scaled).padded_batch(8, ((6,), ())).take(5),
    "counted": lambda: (
        examples().map(scaled).apply(tf.data.experimental.assert_cardinality(96)).batch(8)
    ),
    "more": lambda: examples().cache().map(scaled).filter(lambda x, y: y > 9).batch(8).repeat(2),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_no_change_changes_an_element(name):
    made = PIPELINES[name]()
    count = sum(1 for _ in made)
    for changes in (*((change,) for change in applicable(made)), applicable(made)):
        found = changed(made, changes, 8).take(count)
        np.testing.assert_allclose(values(found), values(made), rtol=1e-5)


def test_what_can_be_changed():
    plain = PIPELINES["map, batch"]()
    assert applicable(plain) == ("parallel_map", "cache", "prefetch")
    # What is drawn anew in every epoch is in no cache, nor is what is in memory already.
    assert "cache" not in applicable(examples().map(noisy).batch(8))
    tf.random.set_seed(1)  # with which every epoch draws the same
    assert "cache" not in applicable(examples().map(noisy).batch(8))
    assert "cache" not in applicable(examples().batch(8))
    # A stage that cannot be made again leaves only what comes behind it.
    assert applicable(examples().map(scaled).batch(8).rebatch(4)) == ("prefetch",)


def test_a_cache_stands_behind_what_every_epoch_repeats():
    dataset = changed(examples().map(scaled).map(noisy).shuffle(9).batch(8), ("cache",), 8)
    kinds = [stage.kind for stage in stages_of(dataset)]
    assert kinds == ["arrays", "map", "take", "cache", "repeat", "map", "shuffle", "batch"]
    # In the place of one in front of the work.
    dataset = changed(examples().cache().map(scaled).shuffle(9).batch(8), ("cache",), 8)
    kinds = [stage.kind for stage in stages_of(dataset)]
    assert kinds == ["arrays", "map", "take", "cache", "repeat", "shuffle", "batch"]
    assert "cache" not in applicable(examples().map(scaled).cache().shuffle(9).batch(8))


def test_files_are_read_by_several_threads_where_their_order_is_shuffled(tmp_path):
    names = [str(tmp_path / f"{number}.tfrecord") for number in range(3)]
    for number, name in enumerate(names):
        with tf.io.TFRecordWriter(name) as writer:
            for each in range(4):
                writer.write(f"{number}-{each}".encode())
    read = tf.data.TFRecordDataset(names)
    assert "parallel_read" not in applicable(read.batch(2))
    shuffled = read.shuffle(12).batch(2)
    assert [stage.kind for stage in stages_of(shuffled)] == ["read", "shuffle", "batch"]
    assert "parallel_read" in applicable(shuffled)
    found = {each for batch in changed(shuffled, ("parallel_read",), 2) for each in batch.numpy()}
    assert len(found) == 12
    files = tf.data.Dataset.from_tensor_slices(names)
    several = files.interleave(tf.data.TFRecordDataset, cycle_length=2)
    threads = changed(several, ("parallel_read",), 2)
    assert list(threads.as_numpy_iterator()) == list(several.as_numpy_iterator())
