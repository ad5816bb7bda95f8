"""Write a dashboard for Grafana that asks Prometheus for what ``tfopt.monitor`` serves.

A panel is a row of a table: what it is called, its unit, how wide it is, and its queries, each
under the name that it has in the legend.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfopt.files import target_of, write_atomically

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# In a query, of the machines and the GPUs that are chosen at the top of the dashboard.
_HOST, _GPU = '{instance=~"$instance"}', '{instance=~"$instance", index=~"$gpu"}'
_WIDTH = 24
_HEIGHTS = {"row": 1, "stat": 5, "timeseries": 8}


@dataclass(frozen=True)
class _Panel:
    """One figure, or lines over time.

    Attributes:
        unit: Grafana's name for it.
        queries: By their legends.
        colours: From which value on, beside green.
        bounds: The ends of the axis that are known.
    """

    title: str
    unit: str
    width: int
    queries: Mapping[str, str]
    description: str = ""
    kind: str = "timeseries"
    colours: Mapping[str, float] = field(default_factory=dict)
    bounds: Mapping[str, int] = field(default_factory=lambda: {"min": 0})


_SHARE = {"min": 0, "max": 1}


def _rate(name: str) -> str:
    return f"rate({name}{_HOST}[$__rate_interval])"


def _in_an_hour(name: str) -> str:
    return f"increase({name}{_GPU}[1h])"


_PANELS: Mapping[str, tuple[_Panel, ...]] = {
    "Training": (
        _Panel(
            "Step time",
            "s",
            6,
            {
                "{{instance}}": f"{_rate('tfopt_training_seconds_total')} / "
                f"{_rate('tfopt_training_steps_total')}"
            },
            "Where tfopt.Monitor watches a training.",
            "stat",
        ),
        _Panel(
            "Examples a second",
            "short",
            6,
            {"{{instance}}": _rate("tfopt_training_examples_total")},
            "Of data whose batch size Keras knows.",
            "stat",
        ),
        _Panel(
            "Waiting for input",
            "percentunit",
            6,
            {
                "{{instance}}": f"{_rate('tfopt_training_input_wait_seconds_total')} / "
                f"{_rate('tfopt_training_seconds_total')}"
            },
            "Share of the step in which it waited for its batch: from 10 % on it is worth mending, "
            "20 % is much.",
            "stat",
            {"yellow": 0.1, "red": 0.2},
            _SHARE,
        ),
        _Panel(
            "GPUs held down",
            "short",
            6,
            {"GPUs": f"sum(tfopt_gpu_throttled{_GPU})"},
            "By heat, the power limit or the hardware, now.",
            "stat",
            {"red": 1},
        ),
    ),
    "GPUs": (
        _Panel(
            "Utilisation",
            "percentunit",
            12,
            {"GPU {{index}}": f"tfopt_gpu_utilisation_ratio{_GPU}"},
            "Share of the time in which any kernel ran; not how full the GPU was.",
            bounds=_SHARE,
        ),
        _Panel(
            "Memory in use",
            "bytes",
            12,
            {
                "GPU {{index}}": f"tfopt_gpu_device_bytes{_GPU}",
                "there is": f"max(tfopt_gpu_total_bytes{_GPU})",
            },
        ),
        _Panel(
            "Power",
            "watt",
            8,
            {
                "GPU {{index}}": f"tfopt_gpu_power_watts{_GPU}",
                "limit": f"max(tfopt_gpu_power_limit_watts{_GPU})",
            },
        ),
        _Panel(
            "Temperature",
            "celsius",
            8,
            {
                "GPU {{index}}": f"tfopt_gpu_temperature_celsius{_GPU}",
                "slows down at": f"min(tfopt_gpu_slowdown_temperature_celsius{_GPU})",
            },
            bounds={},
        ),
        _Panel(
            "SM clock",
            "hertz",
            8,
            {
                "GPU {{index}}": f"tfopt_gpu_sm_clock_hertz{_GPU}",
                "highest": f"max(tfopt_gpu_max_sm_clock_hertz{_GPU})",
            },
        ),
        _Panel(
            "Time spent on memory",
            "percentunit",
            8,
            {"GPU {{index}}": f"tfopt_gpu_memory_utilisation_ratio{_GPU}"},
            "Share of the time in which device memory was read or written.",
            bounds=_SHARE,
        ),
        _Panel(
            "PCIe traffic",
            "Bps",
            8,
            {
                "GPU {{index}} in": f"tfopt_gpu_pcie_received_bytes_per_second{_GPU}",
                "GPU {{index}} out": f"tfopt_gpu_pcie_sent_bytes_per_second{_GPU}",
            },
        ),
        _Panel(
            "Energy and memory errors an hour",
            "short",
            8,
            {
                "GPU {{index}} kWh": f"{_in_an_hour('tfopt_gpu_energy_joules_total')} / 3600000",
                "GPU {{index}} errors corrected": _in_an_hour("tfopt_gpu_ecc_corrected_total"),
                "GPU {{index}} errors beyond correction": _in_an_hour(
                    "tfopt_gpu_ecc_uncorrected_total"
                ),
            },
        ),
    ),
    "Host": (
        _Panel(
            "CPU",
            "percentunit",
            8,
            {
                "{{instance}} all cores": f"avg by (instance) (tfopt_host_cpu_ratio{_HOST})",
                "{{instance}} busiest core": f"max by (instance) (tfopt_host_cpu_ratio{_HOST})",
            },
            bounds=_SHARE,
        ),
        _Panel(
            "Memory",
            "bytes",
            8,
            {
                "{{instance}} machine": f"tfopt_host_memory_used_bytes{_HOST}",
                "{{instance}} process": f"tfopt_host_rss_bytes{_HOST}",
                "{{instance}} there is": f"tfopt_host_memory_total_bytes{_HOST}",
                "{{instance}} container's limit": f"tfopt_host_memory_limit_bytes{_HOST}",
            },
        ),
        _Panel(
            "Disk and network",
            "Bps",
            8,
            {
                "{{instance}} read": f"tfopt_host_disk_read_bytes_per_second{_HOST}",
                "{{instance}} written": f"tfopt_host_disk_write_bytes_per_second{_HOST}",
                "{{instance}} received": f"tfopt_host_network_received_bytes_per_second{_HOST}",
                "{{instance}} sent": f"tfopt_host_network_sent_bytes_per_second{_HOST}",
            },
        ),
    ),
}

_OPTIONS: Mapping[str, dict[str, Any]] = {
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "orientation": "auto",
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "textMode": "auto",
    },
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
}
_DEFAULTS: Mapping[str, dict[str, Any]] = {
    "stat": {"color": {"mode": "thresholds"}},
    "timeseries": {
        "color": {"mode": "palette-classic"},
        "custom": {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 10,
            "showPoints": "never",
            "spanNulls": False,
        },
    },
}


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's schema."""
    return {
        "title": "tfopt: training",
        "uid": "tfopt-training",
        "tags": ["tfopt", "gpu"],
        "description": "GPUs, host and training as tfopt's Prometheus endpoint serves them.",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 39,
        "version": 1,
        "timezone": "browser",
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "weekStart": "",
        "links": [],
        "annotations": {"list": []},
        "templating": {"list": _choices()},
        "panels": _panels(),
    }


def write_dashboard(path: str | Path) -> Path:
    """Write a dashboard that Grafana imports (Dashboards, New, Import); return where it is."""
    return write_atomically(target_of(path), json.dumps(dashboard(), indent=1) + "\n")


def _choices() -> list[dict[str, Any]]:
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "multi": False,
        "includeAll": False,
        "options": [],
    }
    asked = (
        ("instance", "Machine", "label_values(tfopt_host_memory_used_bytes, instance)"),
        ("gpu", "GPU", f"label_values(tfopt_gpu_total_bytes{_HOST}, index)"),
    )
    return [source] + [
        {
            "name": name,
            "label": label,
            "type": "query",
            "datasource": _SOURCE,
            "query": query,
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "current": {"text": "All", "value": "$__all"},
            "options": [],
            "sort": 3,
        }
        for name, label, query in asked
    ]


def _panels() -> list[dict[str, Any]]:
    """Return the panels, each row of them as wide as the dashboard."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in _PANELS.items():
        panels.append(
            {
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": _HEIGHTS["row"]},
                "panels": [],
            }
        )
        x, y = 0, y + _HEIGHTS["row"]
        for each in row:
            height = _HEIGHTS[each.kind]
            panels.append(_panel(each, {"x": x, "y": y, "w": each.width, "h": height}))
            x += each.width
            if x == _WIDTH:
                x, y = 0, y + height
    return [{"id": number, **panel} for number, panel in enumerate(panels, start=1)]


def _panel(panel: _Panel, place: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    steps += [{"color": colour, "value": value} for colour, value in panel.colours.items()]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "thresholds": {"mode": "absolute", "steps": steps},
                **panel.bounds,
                **_DEFAULTS[panel.kind],
            },
            "overrides": [],
        },
        "options": _OPTIONS[panel.kind],
        "targets": [
            {
                "refId": "ABCD"[number],
                "expr": query,
                "legendFormat": legend,
                "datasource": _SOURCE,
                "range": True,
            }
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }
