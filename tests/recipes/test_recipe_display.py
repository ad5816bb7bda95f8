"""What a recipe shows while it runs; the GPU is the stand-in for NVIDIA's library."""

import os
import re
import signal
import subprocess
import sys

from nvml_stand_in.library import gpu
from terminal import Terminal

SHORT = ("--data=synthetic", "--epochs=1", "--steps=4", "--transforms=pipeline")
LONG_S = 300


def command(folder):
    return [sys.executable, "-m", "tfopt.recipes.cnn_mnist", *SHORT, f"--output={folder}"]


def test_in_a_terminal_gpus_and_host_stand_under_the_row(tmp_path, nvml_stand_in):
    terminal = Terminal(lines=40)
    process = subprocess.Popen(
        command(tmp_path),
        env={**os.environ, **nvml_stand_in(gpu(0)), "TERM": "xterm-256color"},
        **terminal.process_arguments(),
    )
    try:
        terminal.until("312/400 W")
        terminal.until("baseline: rehearsing")
        assert "GPU 0 NVIDIA Stand-In" in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.seen)
        process.send_signal(signal.SIGINT)
        # A terminal that is never read would hold the command up.
        while process.poll() is None:
            terminal.rest()
        assert process.returncode == 130
    finally:
        process.kill()
        process.wait(LONG_S)
        terminal.close()
