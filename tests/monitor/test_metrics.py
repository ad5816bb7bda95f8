"""The table of metrics: what it names is what the readings hold."""

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


def test_no_two_metrics_share_a_name():
    assert len(BY_NAME) == len(GPU_METRICS) + len(HOST_METRICS)


@pytest.mark.parametrize("metric", BY_NAME.values(), ids=lambda metric: metric.name)
def test_a_name_ends_in_its_unit(metric):
    endings = [ending for ending in ENDINGS if metric.name.endswith(ending)]
    unit = ENDINGS[max(endings, key=len)] if endings else ""
    assert metric.unit == unit
    assert metric.description
