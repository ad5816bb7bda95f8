"""Execute the notebooks of docs/notebooks, and keep what they show::

python tests/notebooks.py              # all of them; what `make notebooks` runs
python tests/notebooks.py train        # those whose name begins so
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
LIMIT_S = 180


def executed(path, folder):
    """Return a notebook as it is after it has run in a folder, all cells within ``LIMIT_S``.

    A cell that fails or takes too long is an error that shows it. What libraries in C write goes
    to this process's terminal.
    """
    notebook = nbformat.read(path, as_version=4)
    until = time.monotonic() + LIMIT_S
    NotebookClient(
        notebook,
        kernel_name="python3",
        timeout_func=lambda cell: max(1, int(until - time.monotonic())),
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--IPKernelApp.capture_fd_output=False"],
    ).execute()
    return notebook


def main(begins_with):
    paths = sorted(FOLDER.glob(f"{begins_with}*.ipynb"))
    if not paths:
        raise SystemExit(f"No notebook's name begins with {begins_with!r}.")
    for path in paths:
        begun = time.monotonic()
        with TemporaryDirectory() as folder:
            nbformat.write(executed(path, folder), path)
        print(f"{path.name}: {time.monotonic() - begun:.0f} s, {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main(*(sys.argv[1:] or [""]))
