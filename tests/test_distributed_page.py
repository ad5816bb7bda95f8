"""What the page about several GPUs and machines tells its readers to run, run as they would."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parent.parent / "docs" / "distributed_training.md"
TEXT = PAGE.read_text(encoding="utf-8")


def block(name):
    """The script that opens with its name."""
    (found,) = re.findall(rf"^```python\n(# {name}\n.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return found


def lines():
    shell = re.findall(r"^```sh\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    return [shlex.split(line, comments=True) for each in shell for line in each.splitlines()]


def run(folder, words):
    """A line of the page, with this Python; what it printed. Nothing of it outlives the call."""
    assert words[:2] == ["tfopt", "launch"]
    words = [sys.executable if word == "python" else word for word in words[1:]]
    started = subprocess.Popen(
        [sys.executable, "-m", "tfopt", *words],
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = started.communicate(timeout=240)
    finally:
        if started.poll() is None:
            started.send_signal(signal.SIGTERM)  # which the launcher passes on to its tasks
            started.communicate(timeout=60)
    assert started.returncode == 0, err[-4000:]
    return out


@pytest.mark.parametrize(
    ("script", "flags", "said"),
    [
        # The first line of the page, and the same script without the launcher.
        ("train.py", ["--workers", "2"], r"loss: \d"),
        ("train.py", None, r"loss: \d"),
        ("train_async.py", ["--ps", "1"], r"\[chief 0\] loss \[\d.*staleness \["),
    ],
)
def test_a_script_of_the_page_runs_as_it_stands(tmp_path, script, flags, said):
    (tmp_path / script).write_text(block(script), encoding="utf-8")
    if flags is None:
        done = subprocess.run(
            [sys.executable, script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        out = done.stdout
    else:
        line = next(each for each in lines() if each[-1] == script and set(flags) <= {*each})
        out = run(tmp_path, line)
    assert re.search(said, out)
    if script == "train.py":
        assert len(re.findall(said, out)) == 1, "the chief alone prints"
        assert (tmp_path / "trained.keras").is_file()


def test_the_lines_that_write_a_file_write_it(tmp_path):
    written = [each for each in lines() if "--output" in each]
    assert {each[2] for each in written} == {"slurm", "kubernetes"}
    for each in written:
        run(tmp_path, each)
        assert (tmp_path / each[each.index("--output") + 1]).stat().st_size > 500
