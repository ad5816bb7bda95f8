"""Read files that version 0.1.0 wrote: later versions read them too, or name their schema.

They were written on 2026-11-24 by ``tfopt batch-size`` and ``tfopt doctor --json --only host`` for a
dense net on made data, under the chain of ``chain.toml``. ``whole.json`` was written on 2026-11-25 by ``tfopt run`` under the schema
``tfopt.bench/3``, and put under ``tfopt.bench/4`` by leaving out the figures that this one has no more.
"""

import dataclasses
import json
from pathlib import Path

import pytest

import tfopt
from tfopt.commands.cli import main
from tfopt.doctor.examine import as_json
from tfopt.job.recipe_file import read_recipe, write_recipe
from tfopt.measure.batch_size import BatchSizes

REPORTS = Path(__file__).with_name("reports")


def shown(capsys, name, *arguments):
    assert main(["report", str(REPORTS / name), *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("form", ["terminal", "md", "html"])
def test_a_report_shows_its_variants(capsys, form):
    text = shown(capsys, "whole.json", "--format", form)
    for part in ("Pipeline", "Execution", "Prune"):
        assert part in text


@pytest.mark.parametrize("schema", ["tfopt.report/1", "tfopt.bench/2", "tfopt.bench/3"])
def test_a_report_of_an_earlier_schema_is_refused_by_its_name(capsys, tmp_path, schema):
    (tmp_path / "bench.json").write_text(json.dumps({"schema": schema}))
    assert main(["report", str(tmp_path / "bench.json")]) == 2
    said = capsys.readouterr().err
    assert schema in said
    assert "measure again" in said


@pytest.mark.parametrize("name", ["whole.json"])
def test_a_later_version_is_refused_by_its_number(capsys, tmp_path, name):
    content = json.loads((REPORTS / name).read_text())
    family = content["schema"].rpartition("/")[0]
    content["schema"] = f"{family}/99"
    (tmp_path / name).write_text(json.dumps(content))
    assert main(["report", str(tmp_path / name)]) == 2
    assert f"{family}/99" in capsys.readouterr().err


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
    written = json.loads((REPORTS / "batch_size.json").read_text())
    named = {field.name for field in dataclasses.fields(BatchSizes)}
    assert set(written) == named | {"largest", "fastest", "notes"}


def test_the_doctor_still_writes_the_same_keys():
    written = json.loads((REPORTS / "doctor.json").read_text())
    now = json.loads(as_json(tfopt.doctor(only=["host"])))
    assert set(now) == set(written)
    assert now["version"] == written["version"]
    assert set(now["checks"][0]) == set(written["checks"][0])
