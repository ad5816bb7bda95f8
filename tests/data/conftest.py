"""Shared by tests of data: TensorFlow Datasets, where it can be imported."""

import pytest

from tfopt.data.sources.tfds import _library
from tfopt.errors import UserError


@pytest.fixture
def tfds():
    """TensorFlow Datasets; beside TensorFlow 2.18 and 2.19 it needs tensorflow-metadata before 1.21."""
    try:
        return _library()
    except UserError as error:
        pytest.skip(str(error))
