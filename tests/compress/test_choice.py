import keras
import pytest

from tfopt.compress.kernels import matcher
from tfopt.errors import UserError


def test_layers_are_chosen_by_path_by_type_and_by_a_function():
    dense, conv = keras.layers.Dense(1), keras.layers.Conv2D(1, 1)
    cases = {
        "a/dense": (True, False),
        keras.layers.Dense: (True, False),
        (keras.layers.Conv2D, keras.layers.Embedding): (False, True),
        (lambda layer: isinstance(layer, keras.layers.Conv2D)): (False, True),
        None: (True, True),
    }
    for choice, expected in cases.items():
        chosen = matcher(choice)
        assert (chosen("a/dense", dense), chosen("b/conv", conv)) == expected


@pytest.mark.parametrize("choice", [3, (), (keras.layers.Dense, "conv"), keras.layers.Dense(1)])
def test_what_cannot_choose_is_an_error(choice):
    with pytest.raises(UserError, match="does not choose layers"):
        matcher(choice)
