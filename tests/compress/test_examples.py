"""Examples out of every kind of source that fit takes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfopt import UserError
from tfopt.compress.examples import labelled_batches, take_inputs
from tfopt.compress.model_graph import Port, Ports
from tfopt.export.parity import compare

X = np.arange(40, dtype="float64").reshape(20, 2)
Y = np.arange(20)
PORTS = Ports((Port("x", (2,), "float32"),), None)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return X[index * 5 : index * 5 + 5], Y[index * 5 : index * 5 + 5]


def batches():
    for start in range(0, 20, 5):
        yield X[start : start + 5], Y[start : start + 5]


STREAMS = [
    tf.data.Dataset.from_tensor_slices((X, Y)).batch(5),
    tf.data.Dataset.from_tensor_slices(X).batch(8),
    Batches(),
    batches,
]


@pytest.mark.parametrize("source", STREAMS)
def test_streams_give_their_first_examples(source):
    (taken,) = take_inputs(source, PORTS, 7)
    assert taken.dtype == "float32"
    np.testing.assert_array_equal(taken, X[:7])
    np.testing.assert_array_equal(take_inputs(source, PORTS, 99)[0], X)


def test_a_stream_is_read_no_further_than_needed():
    read = []

    def endless():
        while True:
            read.append(1)
            yield X[:5], Y[:5]

    assert len(take_inputs(endless, PORTS, 12)[0]) == 12
    assert len(read) == 3


@pytest.mark.parametrize("source", [X, (X, Y), [X], {"x": X}, tf.constant(X), X.tolist()])
def test_arrays_give_examples_from_their_whole_length(source):
    (taken,) = take_inputs(source, PORTS, 5)
    np.testing.assert_array_equal(taken, X[[0, 4, 9, 14, 19]])
    np.testing.assert_array_equal(take_inputs(source, PORTS, 99)[0], X)


@pytest.mark.parametrize("source", [(X, Y), STREAMS[0], Batches(), batches])
def test_labelled_batches_hold_every_example_once(source):
    parts = list(labelled_batches(source, PORTS))
    np.testing.assert_array_equal(np.concatenate([x for (x,), _ in parts]), X)
    np.testing.assert_array_equal(np.concatenate([y for _, y in parts]), Y)


def test_inputs_and_labels_in_a_list_are_not_taken_for_rows():
    with pytest.raises(UserError, match=r"do not form an array") as caught:
        take_inputs([X, Y], PORTS, 5)
    assert "a list is taken as rows" in caught.value.fix
    assert "pass (x, y) as a tuple, or x alone" in caught.value.fix


def test_fractions_do_not_become_token_numbers():
    port = Ports((Port("ids", (2,), "int32"),), None)
    assert take_inputs(X, port, 3)[0].dtype == "int32"
    with pytest.raises(UserError, match="takes integers"):
        take_inputs(X + 0.5, port, 3)


def lengths():
    yield np.zeros((4, 5), "int32")
    yield np.zeros((4, 7), "int32")


def test_batches_of_different_lengths_are_refused_where_they_are_needed_together():
    port = Ports((Port("ids", (None,), "int32"),), None)
    assert take_inputs(lengths, port, 4)[0].shape == (4, 5)
    with pytest.raises(UserError, match=r"different shapes for input 'ids'(.|\n)*\(5,\), \(7,\)"):
        take_inputs(lengths, port, 5)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("x.npy", "an unknown type"),
        ({1, 2}, "an unknown type"),
        ((batch for batch in [X]), "read only once"),
        (lambda: iter(()), "examples are empty"),
        (lambda: iter(X), "batch the dataset"),
        (lambda: None, "yields no batches"),
        (np.float32(3), "wrong shape"),
        (lambda: iter([3.0]), "wrong shape"),
        (lambda: "ab", "not numbers"),
    ],
)
def test_what_holds_no_examples_is_refused(source, words):
    with pytest.raises(UserError, match=words):
        take_inputs(source, PORTS, 3)


def test_parity_judges_classes_by_rank_and_others_by_distance():
    scores = np.array([[0.6, 0.4], [0.3, 0.7], [0.55, 0.45], [0.9, 0.1]])
    turned = scores.copy()
    turned[2] = [0.45, 0.55]
    parity = compare([scores], [turned])
    assert (parity.measure, parity.argmax_agreement, parity.lost) == (
        "argmax_agreement",
        0.75,
        0.25,
    )
    assert parity.max_abs_error == pytest.approx(0.1)
    assert parity.failure(20)
    assert parity.failure(25) is None

    logits = compare([scores * 5], [turned * 5])
    assert logits.measure == "relative_error"
    assert compare([scores * 5], [turned * 5], classifier=True).measure == "argmax_agreement"
    assert compare([np.ones((4, 1))], [np.ones((4, 1))]).argmax_agreement is None


def test_parity_refuses_noise_whatever_class_is_on_top():
    scores = np.array([[0.6, 0.4], [0.7, 0.3]])
    parity = compare([scores], [scores + np.array([3.0, 2.0])])
    assert parity.argmax_agreement == 1
    assert parity.failure(5)
    assert compare([scores], [scores * np.nan]).failure(5)
