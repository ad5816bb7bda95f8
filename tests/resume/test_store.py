"""The folder of checkpoints: whole or not there, verified, and never harmed by a write that fails."""

import json
import os
import resource
import signal
import time
from collections import OrderedDict, deque
from hashlib import sha256

import numpy as np
import pytest

from tfopt import UserError
from tfopt.resume.packing import Unsaveable, pack, unpack
from tfopt.resume.peers import Alone
from tfopt.resume.shared_store import SharedStore
from tfopt.resume.store import Store


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


def test_what_is_derived_from_a_dict_or_a_list_is_refused():
    kinds = OrderedDict(a=1), deque([1]), type("Mine", (list,), {})([1]), np.ma.masked_array([1])
    for value in kinds:
        with pytest.raises(Unsaveable, match=type(value).__name__):
            pack(value, [])


def test_a_generator_goes_on_drawing_where_it_was():
    rng = np.random.default_rng(3)
    rng.normal(size=5)
    copy = back(rng)
    assert copy.normal() == rng.normal()


def test_what_has_no_value_is_refused_by_its_type():
    with pytest.raises(Unsaveable, match="set"):
        pack([{1, 2}], [])
    with pytest.raises(Unsaveable, match="object"):
        pack(np.array(["a", None]), [])
    with pytest.raises(Unsaveable, match="function"):
        pack(names, [])


def test_the_newest_are_kept_and_read(tmp_path):
    import ml_dtypes

    store = Store(tmp_path, keep=2)
    assert store.read_newest() is None
    for number in range(4):
        store.write({"number": number, "half": np.ones(3, ml_dtypes.bfloat16)})
    assert names(tmp_path) == ["checkpoint-000003", "checkpoint-000004"]
    name, state = store.read_newest()
    assert (name, state["number"]) == ("checkpoint-000004", 3)
    assert state["half"].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("file", ["arrays.bin", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "altered", "gone"])
def test_a_damaged_newest_is_told_and_the_one_before_is_read(tmp_path, file, damage):
    store = Store(tmp_path, keep=3)
    for number in range(2):
        store.write({"number": number, "weights": np.arange(1000.0)})
    path = tmp_path / "checkpoint-000002" / file
    content = path.read_bytes()
    if damage == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "altered":
        path.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    else:
        path.unlink()
    with pytest.warns(RuntimeWarning, match="checkpoint-000002 cannot be used"):
        name, state = store.read_newest()
    assert (name, state["number"]) == ("checkpoint-000001", 0)
    assert names(tmp_path) == ["checkpoint-000001", "unreadable-000002"]


@pytest.mark.parametrize("several", [False, True])
def test_nothing_begins_anew_where_no_checkpoint_can_be_read(tmp_path, several):
    store = SharedStore(tmp_path, 3, Alone()) if several else Store(tmp_path, keep=3)
    for number in (1, 2):
        store.write({"trained": number, "variables": []})
        (tmp_path / f"checkpoint-00000{number}" / "arrays.bin").write_bytes(b"x")
    # Nor at a second start, as a launcher makes one of its own.
    for _ in range(2):
        with pytest.raises(UserError, match=r"remove .* to train from the start") as caught:
            store.read_newest()
        assert "has 1 of 0 bytes" in str(caught.value)
    assert names(tmp_path) == ["checkpoint-000001", "checkpoint-000002"]


@pytest.mark.parametrize("several", [False, True])
def test_what_was_put_aside_without_anything_before_it_is_a_past_too(tmp_path, several):
    store = SharedStore(tmp_path, 3, Alone()) if several else Store(tmp_path, keep=3)
    store.write({"trained": 1, "variables": []})
    (tmp_path / "checkpoint-000001").rename(tmp_path / "unreadable-000001")
    with pytest.raises(UserError, match="No checkpoint in"):
        store.read_newest()


def rewritten(folder, change):
    """Another tfopt's checkpoint: whole, with a description that is not as this one writes it."""
    described = json.loads((folder / "state.json").read_bytes())
    change(described)
    content = json.dumps(described).encode()
    (folder / "state.json").write_bytes(content)
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["state.json"] = {"bytes": len(content), "sha256": sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda described: described.pop("format"), "form none"),
        (lambda described: described.update(format=99), "form 99"),
    ],
)
def test_a_checkpoint_of_another_version_is_refused_and_left_alone(tmp_path, change, message):
    store = Store(tmp_path, keep=3)
    for number in range(2):
        store.write({"epoch": number, "logs": {}})
    rewritten(tmp_path / "checkpoint-000002", change)
    with pytest.raises(UserError, match="another version of tfopt") as caught:
        store.read_newest()
    assert message in str(caught.value)
    assert "train from the start in a folder" in str(caught.value)
    assert names(tmp_path) == ["checkpoint-000001", "checkpoint-000002"]


def test_one_that_is_spared_stays_however_old(tmp_path):
    store = Store(tmp_path, keep=2)
    for _ in range(5):
        store.write({}, spared=2)
    assert store.numbers() == [2, 4, 5]


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_a_write_that_is_killed_leaves_whole_checkpoints(tmp_path):
    store = Store(tmp_path, keep=2)
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
    assert len(names(tmp_path)) <= 3
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


def test_a_write_for_which_there_is_no_space_leaves_the_others(tmp_path):
    store = Store(tmp_path, keep=3)
    store.write(1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.write(np.zeros(1_000_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.read_newest() == ("checkpoint-000001", 1)
    assert names(tmp_path) == ["checkpoint-000001"]
