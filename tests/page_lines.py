"""A line of a page of the documents, run as its reader would."""

import os
import signal
import subprocess
import sys

PROGRAMS = {"python": [sys.executable], "tfopt": [sys.executable, "-m", "tfopt"]}


def launched(folder, words):
    """What a command printed, with this Python. Nothing of it outlives the call."""
    started = subprocess.Popen(
        [part for word in words for part in PROGRAMS.get(word, [word])],
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
