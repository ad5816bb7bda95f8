"""Call the functions that a test sends over a socket, and send back what they return or raise.

Runs as a fork of ``forks.py``. A function is named by its module, which is imported here; what it is
given and what it returns is pickled.
"""

import importlib
import os
import sys
import traceback
from multiprocessing.connection import Client
from operator import attrgetter


def main():
    sys.path[0] = os.environ["ROOT"]
    with Client(os.environ["SOCKET"]) as asking:
        while True:
            try:
                module, name, given = asking.recv()
            except EOFError:
                return
            try:
                function = attrgetter(name)(importlib.import_module(module))
                asking.send((True, function(*given)))
            except BaseException:
                asking.send((False, traceback.format_exc()))


main()
