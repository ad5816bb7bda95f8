"""Read files that version 0.1.0 wrote: later versions read them too.

They were written by ``tfopt doctor --json --only host`` on 2026-11-24 and by ``tfopt batch-size`` on
2026-11-27, the latter for a dense net on made data. ``whole.json`` was measured on 2026-11-25
under the schema ``tfopt.bench/3`` and put under ``tfopt.bench/7``: the windows of its processes stand
as turns, the ends of its epochs as readings, its comparisons were made anew, and what nobody compares
has gone from its provenance.
"""

import dataclasses
import json
from pathlib import Path

import pytest

import tfopt
from tfopt.commands.cli import main
from tfopt.doctor.examine import as_json
from tfopt.job.recipe_file import read_recipe, write_recipe

REPORTS = Path(__file__).with_name("reports")


# Examples a second of three rows, the accuracy to reach, the best one, KiB and a step.
FIGURES = ("29,516", "43,143", "57,717", "90.43", "82.42", "3.17", "1.48")


@pytest.mark.parametrize("form", ["terminal", "md", "html"])
def test_a_report_shows_its_variants_and_figures(capsys, form):
    assert main(["report", str(REPORTS / "whole.json"), "--format", form]) == 0
    text = capsys.readouterr().out
    for part in ("Pipeline", "Execution", "Prune", *FIGURES):
        assert part in text


def test_the_chain_file_reads_back_to_the_same_chain(tmp_path):
    recipe = read_recipe(REPORTS / "chain.toml")
    expected = tfopt.chain(
        tfopt.Pipeline(batch_size=64),
        tfopt.Execution(steps_per_execution=2, jit_compile=False),
        tfopt.Prune(0.5),
    )
    assert recipe.chain == expected
    write_recipe(recipe, tmp_path / "again.toml")
    assert read_recipe(tmp_path / "again.toml") == recipe


def test_a_search_still_writes_the_same_keys():
    from tfopt.tune.batch_size import BatchSizes

    written = json.loads((REPORTS / "batch_size.json").read_text())
    named = {field.name for field in dataclasses.fields(BatchSizes)}
    assert set(written) == named | {"largest", "fastest", "notes"}


def test_the_doctor_still_writes_the_same_keys():
    written = json.loads((REPORTS / "doctor.json").read_text())
    now = json.loads(as_json(tfopt.doctor(only=["host"])))
    assert set(now) == set(written)
    assert now["version"] == written["version"]
    assert set(now["checks"][0]) == set(written["checks"][0])
