"""A terminal for commands that look different in one."""

import fcntl
import os
import pty
import select
import struct
import termios
import time

_LONG_S = 120


class Terminal:
    """A pseudo-terminal of 80 columns and what was written to it."""

    def __init__(self, lines=24):
        self.here, self.there = pty.openpty()
        size = struct.pack("HHHH", lines, 80, 0, 0)
        fcntl.ioctl(self.there, termios.TIOCSWINSZ, size)
        self.seen = ""

    def until(self, text):
        begun = time.monotonic()
        while text not in self.seen:
            assert time.monotonic() - begun < _LONG_S, self.seen[-3000:]
            if select.select([self.here], [], [], 0.2)[0]:
                self.seen += os.read(self.here, 65536).decode(errors="replace")

    def rest(self):
        while select.select([self.here], [], [], 0.2)[0]:
            self.seen += os.read(self.here, 65536).decode(errors="replace")
        return self.seen

    def process_arguments(self):
        """For a process of which this is the terminal: Ctrl-C reaches it."""
        return {
            "stdin": self.there,
            "stdout": self.there,
            "stderr": self.there,
            "start_new_session": True,
            "preexec_fn": lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        }

    def close(self):
        os.close(self.here)
        os.close(self.there)
