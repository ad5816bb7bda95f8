"""``python -m tfopt``: the command ``tfopt`` where it is not on the PATH.

Guarantees: the same as :mod:`tfopt.commands.cli`, and nothing happens when this is imported.
"""

import sys

from tfopt.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
