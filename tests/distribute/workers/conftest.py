"""Real workers of clusters on loopback."""

import pytest
from on_workers import Workers


@pytest.fixture(scope="session")
def workers(forks, tmp_path_factory):
    return Workers(forks, tmp_path_factory.mktemp("workers"))
