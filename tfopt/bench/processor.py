"""The processor of this machine, as the system names it."""

from __future__ import annotations

import platform
import re
from pathlib import Path

# What kernels are chosen by: vector and matrix units, and the half precisions.
_MATTERS = re.compile(
    r"avx\w*|amx\w*|fma\d?|f16c|sse4_2|neon|asimd\w*|sve\w*|sme(?!p)\w*|bf16|i8mm|fphp"
)


def cpu_model() -> str:
    """The model's name."""
    return _field("model name") or platform.processor() or "unknown"


def cpu_flags() -> tuple[str, ...]:
    """Those that change what a kernel can do; empty where the system does not tell."""
    flags = (_field("flags") or _field("Features")).split()
    return tuple(sorted(flag for flag in set(flags) if _MATTERS.fullmatch(flag)))


def _field(name: str) -> str:
    """What /proc/cpuinfo says of the first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
