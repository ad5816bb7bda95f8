"""What the monitor's tests share."""

import threading

import pytest


@pytest.fixture
def sampler_threads():
    """Tells the samplers' threads, but for those that other tests have left."""
    before = set(threading.enumerate())

    def now():
        begun = set(threading.enumerate()) - before
        return [thread for thread in begun if thread.name == "tfopt-sampler"]

    return now
