"""Fixtures of the monitor's tests."""

import threading

import pytest


@pytest.fixture
def sampler_threads():
    """Return a function that lists the samplers' threads which this test has begun."""
    before = set(threading.enumerate())

    def now():
        begun = set(threading.enumerate()) - before
        return [thread for thread in begun if thread.name == "tfopt-sampler"]

    return now
