"""Shared by the compression's tests: models that do not depend on which tests ran before."""

from __future__ import annotations

import keras
import pytest


@pytest.fixture(autouse=True)
def the_same_weights():
    """A net of random weights has now and then a class that an integer's rounding turns over."""
    keras.utils.set_random_seed(0)
