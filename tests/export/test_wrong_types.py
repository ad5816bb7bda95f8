"""What is given in place of a model, and is none: an error, before any work."""

import keras
import pytest

import tfopt
from tfopt.errors import UserError


@pytest.mark.parametrize("given", [None, "x", keras.Model])
@pytest.mark.parametrize(
    "what",
    [
        tfopt.strip,
        tfopt.compress.hold,
        tfopt.compress.pruning_report,
        tfopt.compress.clustering_report,
    ],
)
def test_what_is_no_model_is_refused(what, given):
    with pytest.raises(UserError, match=r"must be a Keras 3 model|x does not exist"):
        what(given)
