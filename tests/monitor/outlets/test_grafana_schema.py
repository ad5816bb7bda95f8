"""The dashboard against Grafana's own schema, as Grafana generates it into a Python library.

No Grafana can be had from a package index. Its library reads the file into the types of the
dashboard, of each panel's options and of the queries; what it knows nothing of is not written back.
"""

import copy
import json
from pathlib import Path

import pytest

from tfopt.monitor import outlets

plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
dashboards = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")


@pytest.fixture(scope="module")
def board():
    plugins.register_default_plugins()
    return json.loads(Path(outlets.__file__).with_name("grafana.json").read_text())


def lost(board):
    """The paths of what is another thing, or nothing, after Grafana's types have read it."""
    read = dashboards.Dashboard.from_json(copy.deepcopy(board))
    return sorted(_lost(board, json.loads(json.dumps(read, cls=encoder.JSONEncoder)), ""))


def _lost(given, read, path):
    if isinstance(given, dict) and isinstance(read, dict):
        for key, value in given.items():
            inside = f"{path}/{key}"
            yield from _lost(value, read[key], inside) if key in read else [inside]
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for place, (one, other) in enumerate(zip(given, read, strict=True)):
            yield from _lost(one, other, f"{path}/{place}")
    elif given != read:
        yield path


def test_grafanas_types_know_all_of_it(board):
    assert lost(board) == []


def test_they_would_not_know_a_misspelled_field(board):
    """Else the test above would prove nothing."""
    wrong = copy.deepcopy(board)
    types = [panel["type"] for panel in wrong["panels"]]
    stat, series = types.index("stat"), types.index("timeseries")
    wrong["panels"][stat]["options"]["colourMode"] = 1
    wrong["panels"][series]["fieldConfig"]["defaults"]["custom"]["lineWidths"] = 1
    assert lost(wrong) == sorted(
        [
            f"/panels/{stat}/options/colourMode",
            f"/panels/{series}/fieldConfig/defaults/custom/lineWidths",
        ]
    )
