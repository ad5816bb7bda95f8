"""The dashboard for Grafana that comes with tfopt, for what the Prometheus endpoint serves."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from tfopt.files import target_of, write_atomically


def write_dashboard(path: str | Path) -> Path:
    """Writes a file that Grafana imports (Dashboards, New, Import); returns where it is."""
    text = resources.files("tfopt.monitor").joinpath("grafana_dashboard.json").read_text("utf-8")
    return write_atomically(target_of(path), text)
