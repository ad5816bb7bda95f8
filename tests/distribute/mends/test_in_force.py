"""Mends are in force inside their context, and behind it the libraries are what they were."""

import threading
import weakref

import keras
import tensorflow as tf

import tfopt
from tfopt.compress.hooks import Shared, replaced
from tfopt.distribute.mends.in_force import mends_in_force


def places():
    """Return the classes and modules that mends change something of for a while."""
    from keras.src.backend.tensorflow.trainer import TFEpochIterator
    from tensorflow.python.distribute.values import DistributedVariable

    classes = [keras.Model, keras.callbacks.CallbackList, TFEpochIterator, DistributedVariable]
    return [*classes, tf.compat.v1]


def attributes(strategy):
    return [dict(vars(each)) for each in (*places(), strategy)]


def changed(before, after):
    pairs = zip(before, after, strict=True)
    return sorted(n for a, b in pairs for n in a.keys() | b.keys() if a.get(n) is not b.get(n))


def in_force():
    with tfopt.distribute(logical_cpus=2, verify=False) as scope:
        pass
    strategy = scope.strategy
    before, found = attributes(strategy), {}
    with mends_in_force(strategy):
        found["inside"] = changed(before, attributes(strategy))
        with mends_in_force(strategy):
            found["nested"] = changed(before, attributes(strategy))
        found["behind the inner one"] = changed(before, attributes(strategy))
    found["behind"] = changed(before, attributes(strategy))
    try:
        with mends_in_force(strategy):
            raise InterruptedError
    except InterruptedError:
        found["by an exception"] = changed(before, attributes(strategy))
    try:
        with tfopt.distribute(logical_cpus=2, verify=False):
            raise InterruptedError
    except InterruptedError:
        found["by one in the scope"] = changed(before, attributes(strategy))
    return found


def test_behind_the_context_nothing_of_the_libraries_is_changed(replicas):
    found = replicas(in_force)
    mended = ["__float__", "__int__", "experimental_distribute_dataset"]
    inside = [*mended, "reset_default_graph"]
    assert found == {
        "inside": inside,
        "nested": inside,
        "behind the inner one": inside,
        "behind": [],
        "by an exception": [],
        "by one in the scope": [],
    }


def over_workers():
    """Of several processes, whose probes need them: each mend by itself."""
    from tfopt.distribute.mends import worker_files, worker_input

    strategy = tf.distribute.get_strategy()
    before, found = attributes(strategy), []
    for mend in (worker_files, worker_input):
        with mend.mended(strategy):
            found += changed(before, attributes(strategy))
    return found, changed(before, attributes(strategy))


def test_nor_by_what_is_mended_over_several_workers(replicas):
    assert replicas(over_workers) == (["set_model", "__init__"], [])


class Thing:
    there = staticmethod(len)


def test_what_was_there_is_put_back_and_nothing_is_kept():
    class Error(Exception):
        pass

    thing, before = Thing(), dict(vars(Thing))

    def fail():
        with replaced(Thing, there=1, new=2), replaced(thing, there=3):
            assert (Thing.there, Thing.new, thing.there) == (1, 2, 3)
            raise Error

    try:
        fail()
    except Error as error:
        raised = weakref.ref(error)
    assert raised() is None
    assert dict(vars(Thing)) == before
    assert vars(thing) == {}


def test_threads_that_overlap_leave_in_any_order():
    shared = Shared(lambda: replaced(Thing, there=None))
    first, second = shared(), shared()
    first.__enter__()
    other = threading.Thread(target=second.__enter__)
    other.start()
    other.join()
    first.__exit__(None, None, None)
    assert Thing.there is None
    second.__exit__(None, None, None)
    assert Thing.there is len
