"""What a search makes small."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Objective = Literal["training", "step", "memory", "energy", "time-to-accuracy"]
OBJECTIVES: Mapping[Objective, str] = {
    "training": "the predicted time of the whole training",
    "step": "the time of an example",
    "memory": "peak memory",
    "energy": "the energy of an example",
    "time-to-accuracy": "the predicted time of the whole training",
}
