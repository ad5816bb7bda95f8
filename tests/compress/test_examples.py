"""Examples out of every kind of source that fit takes."""

import numpy as np
import pytest
import tensorflow as tf
from in_batches import Batches

from tfopt import UserError
from tfopt.compress.examples import labelled_batches, take
from tfopt.compress.model_graph import Port, Ports

X = np.arange(40, dtype="float64").reshape(20, 2)
Y = np.arange(20)
PORTS = Ports((Port("x", (2,), "float32"),), None)


def batches():
    for start in range(0, 20, 5):
        yield X[start : start + 5], Y[start : start + 5]


DATASET = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5)


@pytest.mark.parametrize("source", [DATASET, Batches(X, Y, size=5), batches])
def test_streams_give_their_first_examples(source):
    (taken,), labels = take(source, PORTS, 7)
    assert taken.dtype == "float32"
    np.testing.assert_array_equal(taken, X[:7])
    np.testing.assert_array_equal(labels, Y[:7])
    np.testing.assert_array_equal(take(source, PORTS, 99)[0][0], X)


def test_of_an_endless_stream_a_few_batches_are_read():
    read = []

    def endless():
        while True:
            read.append(1)
            yield X[:5], Y[:5]

    assert len(take(endless, PORTS, 12)[0][0]) == 12
    assert len(read) < 12


@pytest.mark.parametrize("source", [X, (X, Y), [X], {"x": X}, tf.constant(X), X.tolist()])
def test_arrays_give_examples_from_their_whole_length(source):
    (taken,), labels = take(source, PORTS, 5)
    np.testing.assert_array_equal(taken, X[[0, 4, 9, 14, 19]])
    assert (labels is not None) == isinstance(source, tuple)
    np.testing.assert_array_equal(take(source, PORTS, 99)[0][0], X)


@pytest.mark.parametrize("source", [(X, Y), DATASET])
def test_labelled_batches_hold_every_example_once(source):
    parts = list(labelled_batches(source, PORTS))
    np.testing.assert_array_equal(np.concatenate([x for (x,), _ in parts]), X)
    np.testing.assert_array_equal(np.concatenate([y for _, y in parts]), Y)


def test_inputs_and_labels_in_a_list_are_not_taken_for_rows():
    with pytest.raises(UserError, match=r"do not form an array(.|\n)*pass \(x, y\) as a tuple"):
        take([X, Y], PORTS, 5)


def test_fractions_do_not_become_token_numbers():
    port = Ports((Port("ids", (2,), "int32"),), None)
    assert take(X, port, 3)[0][0].dtype == "int32"
    with pytest.raises(UserError, match="takes integers"):
        take(X + 0.5, port, 3)


def test_batches_of_different_lengths_are_refused_where_they_are_needed_together():
    def lengths():
        yield from (np.zeros((4, length), "int32") for length in (5, 7))

    port = Ports((Port("ids", (None,), "int32"),), None)
    assert take(lengths, port, 4)[0][0].shape == (4, 5)
    with pytest.raises(UserError, match=r"different shapes for input 'ids'(.|\n)*\(5,\), \(7,\)"):
        take(lengths, port, 5)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x.npy", "type cannot be read"),
        ((batch for batch in [X]), "read only once"),
        (range(3), r"data=lambda: iter\(batches\)"),
        (lambda: iter(()), "yields nothing"),
        (lambda: iter(X), "batch the dataset"),
        (lambda: None, "returns an iterator over batches"),
        (np.float32(3), "wrong shape"),
        (lambda: iter([3.0]), "not an array of examples"),
        (lambda: iter([np.array(["a"])]), "not numbers"),
    ],
)
def test_what_holds_no_examples_is_refused(source, words):
    with pytest.raises(UserError, match=words):
        take(source, PORTS, 3)
