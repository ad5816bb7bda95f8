"""What is said of a file's distance from its model."""

import numpy as np

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
