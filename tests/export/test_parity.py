"""Parity of a file with its model: which figure decides, and how the note words it."""

import numpy as np
import pytest

from tfopt.export.parity import compare

OUTPUTS = np.array([[0.2, 0.4], [3.0, 4.0]])


def test_only_scores_of_classes_are_called_classes():
    other = OUTPUTS[:, ::-1] * [[1.0], [0.0]] + OUTPUTS * [[0.0], [1.0]]
    scores = compare([OUTPUTS], [other], classifier=True).summary()
    assert scores == "50.00% of the classes agree, relative error 0.0563 on 2 examples"
    numbers = compare([OUTPUTS], [other]).summary()
    assert numbers == "relative error 0.0563, the same largest output in 50.00%, on 2 examples"


def test_a_failure_names_what_decided():
    doubled = compare([OUTPUTS], [2 * OUTPUTS], classifier=True)
    assert doubled.failure(10) == "its outputs are not those of the model"
    assert compare([OUTPUTS], [2 * OUTPUTS]).failure(10) == "it loses more than 10 points"
    assert compare([OUTPUTS], [OUTPUTS]).failure(0) is None


def test_classes_are_judged_by_rank_and_other_outputs_by_distance():
    scores = np.array([[0.6, 0.4], [0.3, 0.7], [0.55, 0.45], [0.9, 0.1]])
    turned = scores.copy()
    turned[2] = [0.45, 0.55]
    parity = compare([scores], [turned])
    assert (parity.argmax_agreement, parity.lost) == (0.75, 0.25)
    assert parity.max_abs_error == pytest.approx(0.1)
    assert parity.failure(20)
    assert parity.failure(25) is None
    assert compare([scores * 5], [turned * 5]).measure == "relative_error"
    assert compare([np.ones((4, 1))], [np.ones((4, 1))]).argmax_agreement is None


def test_noise_is_refused_whatever_class_is_on_top():
    scores = np.array([[0.6, 0.4], [0.7, 0.3]])
    for noise in (scores + np.array([3.0, 2.0]), scores * np.nan):
        assert compare([scores], [noise]).failure(5)
