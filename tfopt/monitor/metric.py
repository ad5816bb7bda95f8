"""What is known of one metric: its name, its unit, where it comes from, how often it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# What seldom changes is asked seldom; in between the last answer stands.
OFTEN_S = 0.0
EACH_SECOND_S = 1.0
SELDOM_S = 10.0
# NVML counts bytes for 20 ms before it answers this one.
PCIE_S = 5.0


@dataclass(frozen=True)
class Metric:
    """One metric.

    Attributes:
        name: The field of the reading.
        unit: Of the value; "" for a plain number.
        told: What it is, for people.
        source: The call, or the file, that tells it.
        scale: The source's figure times this is the value.
        kind: A gauge goes up and down; a counter only grows (until a driver starts anew), and
            only its differences mean something.
        every_s: It is asked at most this often; in between the last answer stands. 0: each time.
    """

    name: str
    unit: str
    told: str
    source: str
    scale: float = 1.0
    kind: Literal["gauge", "counter"] = "gauge"
    every_s: float = OFTEN_S
