"""The table of metrics against the readings."""

from dataclasses import fields

import pytest

from tfopt.monitor.metrics import BY_NAME, GPU_METRICS, HOST_METRICS
from tfopt.monitor.readings import GpuReading, HostReading

# A name's ending is its unit.
ENDINGS = {
    "_mib": "MiB",
    "_percent": "%",
    "_mhz": "MHz",
    "_c": "°C",
    "_w": "W",
    "_j": "J",
    "_mib_per_s": "MiB/s",
    "_s": "s",
}


@pytest.mark.parametrize(
    ("table", "reading", "others"),
    [
        (GPU_METRICS, GpuReading, ["clock_reasons", "processes"]),
        (HOST_METRICS, HostReading, []),
    ],
)
def test_the_table_names_every_field_once_and_in_order(table, reading, others):
    assert [metric.name for metric in table] + others == [each.name for each in fields(reading)]


def test_a_name_ends_in_its_unit():
    assert len(BY_NAME) == len(GPU_METRICS) + len(HOST_METRICS)
    for metric in BY_NAME.values():
        endings = [ending for ending in ENDINGS if metric.name.endswith(ending)]
        assert metric.unit == (ENDINGS[max(endings, key=len)] if endings else "")
        assert metric.description
