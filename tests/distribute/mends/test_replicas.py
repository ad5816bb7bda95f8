"""What the tests of the repairs compare trainings by would show a difference."""

from textwrap import dedent

import numpy as np
from repairs.replicas import COMMON


def test_a_weight_that_is_no_number_is_a_difference():
    names = {}
    exec(dedent(COMMON), names)
    plain = [np.zeros(3), np.zeros(2)]
    assert names["largest"](plain, plain) == 0
    assert np.isnan(names["largest"](plain, [np.zeros(3), np.array([0, np.nan])]))
