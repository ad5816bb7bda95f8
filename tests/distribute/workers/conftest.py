"""One process to fork workers from, for all tests of a file."""

import pytest
from on_workers import Workers


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    with Workers(tmp_path_factory.mktemp("workers")) as started:
        yield started
