"""Functions of a test's own module, called in other processes with two logical CPU devices."""

from __future__ import annotations

from multiprocessing.connection import Listener
from pathlib import Path

import pytest
from on_workers import LIMIT_S

from tfopt.job.versions import library_versions

CALLED = Path(__file__).with_name("called.py")


class Called:
    """A process that has loaded TensorFlow, in which functions of test modules are called."""

    def __init__(self, forks, folder):
        self._forks = forks
        self._log = folder / "log"
        with Listener(str(folder / "socket")) as listener:
            self._pid = forks(
                script=str(CALLED),
                log=str(self._log),
                environment={"SOCKET": listener.address, "ROOT": str(CALLED.parents[2])},
            )
            self._connection = listener.accept()

    def __call__(self, function, *given):
        """Return what the function returns there; an error there is an AssertionError here."""
        self._connection.send((function.__module__, function.__qualname__, given))
        try:
            assert self._connection.poll(LIMIT_S), f"{function.__name__} has not ended"
            well, result = self._connection.recv()
        except EOFError:
            raise AssertionError(f"the process has died: {self._log.read_text()[-4000:]}") from None
        assert well, result
        return result

    def end(self):
        self._connection.close()
        if self._forks(ended=self._pid) is None:
            self._forks(kill=self._pid)


def two_devices():
    """Have two logical CPU devices, also where a test on one device comes first."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


@pytest.fixture(scope="session")
def replicas(forks, tmp_path_factory):
    """Call a function in the process that all tests share, that has two logical CPU devices."""
    called = Called(forks, tmp_path_factory.mktemp("replicas"))
    called(two_devices)
    yield called
    called.end()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call():
    """Skip what needs several replicas, which ``distribute()`` refuses beside Keras 3.8 and 3.9.

    A lower bound of Keras 3.10 removes this.
    """
    try:
        return (yield)
    except Exception as error:
        keras = library_versions()["Keras"]
        if keras.startswith(("3.8.", "3.9.")) and "keras>=3.10" in str(error):
            pytest.skip(f"several replicas are refused beside Keras {keras}")
        raise
