"""The folder of checkpoints: whole or not there, verified, and never harmed by a write that fails."""

import json
import os
import signal
import time
from collections import OrderedDict, deque

import numpy as np
import pytest

from tfopt import UserError
from tfopt.resume import store as store_module
from tfopt.resume.peers import SingleWorker
from tfopt.resume.store import Checkpoints, NotSerializable, pack, unpack


def store_in(folder, keep=3):
    return Checkpoints(folder, keep, SingleWorker())


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def back(value):
    arrays = []
    packed = json.loads(json.dumps(pack(value, arrays)))
    return unpack(packed, arrays)


def test_values_come_back_as_they_were():
    value = {
        "numbers": [1, 2.5, True, None, float("inf"), 2**80],
        "of its own type": (np.float32(0.1), np.int64(3)),
        3: "a key that is no text",
        "array": np.arange(6, dtype="float16").reshape(2, 3),
    }
    got = back(value)
    assert got["numbers"] == value["numbers"]
    assert got["of its own type"] == value["of its own type"]
    assert [type(each) for each in got["of its own type"]] == [np.float32, np.int64]
    assert got[3] == value[3]
    assert got["array"].dtype == "float16"
    np.testing.assert_array_equal(got["array"], value["array"])
    assert np.isnan(back(float("nan")))


def test_what_has_no_plain_value_is_refused_by_its_type():
    kinds = OrderedDict(a=1), deque([1]), type("Mine", (list,), {})([1]), np.ma.masked_array([1])
    for value in (*kinds, [{1, 2}], np.array(["a", None]), names):
        kind = value[0] if isinstance(value, list) and type(value) is list else value
        name = "object" if isinstance(value, np.ndarray) and value.dtype == object else None
        with pytest.raises(NotSerializable, match=name or type(kind).__name__):
            pack(value, [])


def test_the_newest_are_kept_and_read(tmp_path):
    import ml_dtypes

    store = store_in(tmp_path, keep=2)
    assert store.read_newest() is None
    for number in range(4):
        store.write({"number": number, "half": np.ones(3, ml_dtypes.bfloat16)})
    assert names(tmp_path) == ["checkpoint-000003", "checkpoint-000004"]
    name, state = store.read_newest()
    assert (name, state["number"]) == ("checkpoint-000004", 3)
    assert state["half"].dtype == ml_dtypes.bfloat16


def test_a_damaged_newest_is_told_and_the_one_before_is_read(tmp_path):
    store = store_in(tmp_path)
    for number in range(3):
        store.write({"number": number, "weights": np.arange(1000.0)})
    cut, altered = (tmp_path / f"checkpoint-00000{number}" for number in (3, 2))
    content = cut.read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    content = altered.read_bytes()
    altered.write_bytes(content[:2000] + bytes([content[2000] ^ 1]) + content[2001:])
    with pytest.warns(RuntimeWarning, match="is skipped") as warned:
        name, state = store.read_newest()
    assert len(warned) == 2
    assert (name, state["number"]) == ("checkpoint-000001", 0)
    assert names(tmp_path) == ["checkpoint-000001"]


def test_nothing_begins_anew_where_no_checkpoint_can_be_read(tmp_path):
    store = store_in(tmp_path)
    for number in (1, 2):
        store.write({"trained": number, "variables": []})
        (tmp_path / f"checkpoint-00000{number}").write_bytes(b"x")
    # Nor at a second start, as a launcher makes one of its own.
    for _ in range(2):
        with pytest.raises(UserError, match=r"remove .* to train from the start") as caught:
            store.read_newest()
        assert "checkpoint-000002: " in str(caught.value)
    assert names(tmp_path) == ["checkpoint-000001", "checkpoint-000002"]


def test_a_checkpoint_of_another_version_is_refused_and_left_alone(tmp_path, monkeypatch):
    store = store_in(tmp_path)
    store.write({"epoch": 1})
    monkeypatch.setattr(store_module, "FORMAT", 99)
    store.write({"epoch": 2})
    monkeypatch.undo()
    with pytest.raises(UserError, match="another version of tfopt") as caught:
        store.read_newest()
    assert "format 99" in str(caught.value)
    assert "train from the start in another folder" in str(caught.value)
    assert names(tmp_path) == ["checkpoint-000001", "checkpoint-000002"]


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_write_that_is_killed_leaves_whole_checkpoints(tmp_path):
    store = store_in(tmp_path, keep=2)
    rng, unfinished = np.random.default_rng(0), 0
    for _ in range(12):
        writer = os.fork()
        if writer == 0:
            write_without_end(store)
        time.sleep(rng.uniform(0.02, 0.1))
        os.kill(writer, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(writer, 0)[1]) == signal.SIGKILL
        unfinished += any(name.startswith(".") for name in names(tmp_path))
        found = store.read_newest()  # a warning is an error here
        if found is not None:
            assert all((each == found[1]["number"]).all() for each in found[1]["weights"])
    store.clear_unfinished()
    assert all(name.startswith("checkpoint-") for name in names(tmp_path))
    # One killed before it removed the oldest leaves that to the next write.
    newest = store.write({"number": 1, "weights": []})
    assert len(names(tmp_path)) == 2
    assert max(names(tmp_path)) == newest
    # Some did die in the middle of a write, or this has tested nothing.
    assert unfinished


def write_without_end(store):
    number = 0
    try:
        while True:
            number += 1
            store.write({"number": number, "weights": [np.full(100_000, float(number))] * 4})
    finally:
        os._exit(1)
