"""A line of a page of the documents, run as its reader would."""

import os
import signal
import subprocess
import sys


def launched(folder, words):
    """What ``tfopt launch ...`` printed, with this Python. Nothing of it outlives the call."""
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
