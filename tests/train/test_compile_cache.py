"""Compiled programs are taken up again by the next process, and a cut off one never is."""

import json
import os
import subprocess
import sys

import pytest

from tfopt import UserError, compile_cache
from tfopt.train import compile_cache as module
from tfopt.train import placement

CODE = """
import json, os, sys
import tfopt
folder = tfopt.compile_cache(sys.argv[1])
import tensorflow as tf
before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.pb")}
found = tf.function(lambda x: tf.reduce_sum(x * x), jit_compile=True)(tf.ones((3, 4)))
after = {path.name: path.stat().st_mtime_ns for path in folder.glob("*.pb")}
try: tfopt.compile_cache(sys.argv[1])
except tfopt.UserError as error: late = str(error)
print(json.dumps([float(found), str(folder), before, after, late]))
"""


def in_a_process(folder, **environment):
    command = [sys.executable, "-c", CODE, str(folder)]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_next_process_takes_the_programs_up_and_a_cut_off_one_is_made_again(tmp_path):
    found, folder, before, first, late = in_a_process(tmp_path)
    assert found == 12
    assert not before
    assert len(first) == 1
    assert "came too late" in late
    _, _, before, after, _ = in_a_process(tmp_path)
    assert before == after == first
    (name,) = first
    path = os.path.join(folder, name)
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)
    found, _, before, after, _ = in_a_process(tmp_path)
    assert (found, before, list(after)) == (12, {}, [name])
    _, other, before, _, _ = in_a_process(tmp_path, XLA_FLAGS="--xla_cpu_enable_fast_math=true")
    assert other != folder
    assert not before


def test_the_oldest_programs_go_first(tmp_path):
    for age in range(3):
        path = tmp_path / f"{age}.pb"
        path.write_bytes(bytes(100))
        os.utime(path, (1000 - age, 1000 - age))
    module._remove_oldest(tmp_path, 200)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.pb", "1.pb"]


def test_place_keeps_compiled_programs_too(monkeypatch):
    monkeypatch.setattr(placement, "keep_compiled", lambda: "here")
    effect = placement.place(compile_cache=True)
    assert effect.acted
    assert effect.note.endswith("compiled programs kept in here")
    assert "compiled" not in placement.place().note


def test_what_else_lies_in_the_folder_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_has_devices", lambda: False)
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    with pytest.raises(UserError, match="a space in its path"):
        compile_cache(tmp_path / "two words")
    kept = compile_cache(tmp_path)
    for path in (tmp_path / "weights.h5", kept / "old.pb"):
        path.write_bytes(bytes(2 << 20))
    assert compile_cache(tmp_path, limit_mib=1) == kept
    assert (tmp_path / "weights.h5").exists()
    assert not (kept / "old.pb").exists()


def test_a_second_call_keeps_the_folder_of_the_first(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_has_devices", lambda: False)
    monkeypatch.setenv("TF_XLA_FLAGS", "")
    kept = compile_cache(tmp_path)
    assert compile_cache() == compile_cache(tmp_path) == kept
    with pytest.raises(UserError, match="a compile cache in another folder"):
        compile_cache(tmp_path / "other")
    assert str(kept) in os.environ["TF_XLA_FLAGS"]


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_set(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_has_devices", lambda: False)
    monkeypatch.delenv("TF_XLA_FLAGS", raising=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        compile_cache(tmp_path / "file" / "inside")
    with pytest.raises(UserError, match="limit_mib"):
        compile_cache(tmp_path, limit_mib=0)
    assert "TF_XLA_FLAGS" not in os.environ
