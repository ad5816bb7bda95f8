"""Build the stand-in for libnvidia-ml from ``nvml.c``, and write traces for it to play.

``nvml.c`` says how a trace is written. In a process that is started with ``environment(...)``,
nvidia-ml-py finds the stand-in in the place of the driver's library.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).parent / "nvml.c"
MIB = 1024**2

# Everything that tfopt asks of a GPU, as a busy A100 would answer.
BUSY = {
    "uuid": "GPU-aaaa",
    "name": "NVIDIA Stand-In",
    "memory.total": 40_960 * MIB,
    "memory.used": 30_000 * MIB,
    "utilisation": 97,
    "memory_utilisation": 41,
    "clock.1": 1380,
    "max_clock.1": 1410,
    "clock.2": 1215,
    "temperature": 61,
    "field.82": 74,
    "threshold.1": 92,
    "power_mw": 312_450,
    "power_limit_mw": 400_000,
    "energy_mj": 10_000_000,
    "fan": 30,
    "mode": 0,
    "capability": "8 0",
    "reasons": 0,
    "processes": f"self:{2000 * MIB} 99:{500 * MIB}",
}


def compiler() -> str | None:
    """Return a C compiler, as make would find it."""
    return shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")


def build(folder: Path) -> Path:
    """Compile the library into a folder, under the name that pynvml loads."""
    library = folder / "libnvidia-ml.so.1"
    command = [compiler(), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    # Without a name of its own in it, which would keep it in the driver's place in a process that has
    # once loaded it by its path.
    command += ["-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=120)
    return library


def gpu(number: int, changes: dict[str, object] | None = None) -> str:
    """Return the lines of a busy GPU with changes; None leaves a key out."""
    return _lines(number, BUSY | (changes or {}))


def part(number: int, of: int, **figures: object) -> str:
    """Return the lines of a part (MIG) of a GPU: its memory, and these figures."""
    known = {"memory.total": 4864 * MIB, "memory.used": 1000 * MIB, "part_of": of}
    return _lines(number, known | figures)


def _lines(number: int, figures: dict[str, object]) -> str:
    return "".join(
        f"0 {number} {key} {value}\n" for key, value in figures.items() if value is not None
    )


DRIVER = (
    "0 - driver 580.65.06\n0 - cuda 12080\n"
    "0 - process.self /usr/bin/python3.11\n0 - process.99 /opt/other/train\n"
)


def environment(library: Path, trace: Path) -> dict[str, str]:
    """Return what a process needs to find the library and its trace."""
    return {"LD_LIBRARY_PATH": str(library.parent), "NVML_STAND_IN": str(trace)}


class Played:
    """A trace in this process, on a clock that the test turns."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.library = ctypes.CDLL(f"{environment['LD_LIBRARY_PATH']}/libnvidia-ml.so.1")
        self.library.nvml_stand_in_at.argtypes = [ctypes.c_double]
        self.library.nvml_stand_in_play(environment["NVML_STAND_IN"].encode())
        self.at(0.0)

    def at(self, moment: float) -> None:
        self.now = moment
        self.library.nvml_stand_in_at(moment)

    def calls(self, name: str) -> int:
        return self.library.nvml_stand_in_calls(name.encode())

    @property
    def sessions(self) -> int:
        return self.library.nvml_stand_in_sessions()
