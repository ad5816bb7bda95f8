"""What every recipe module promises: functions by reference, its chain as a file."""

from importlib import import_module
from pathlib import Path

import pytest

from tfopt import UserError
from tfopt.job.recipe_file import read_recipe
from tfopt.job.references import resolve_job
from tfopt.measure.targets import resolve_target

ROOT = Path(__file__).parent.parent.parent
NAMES = (
    "cnn_mnist",
    "image_from_scratch",
    "image_finetuning",
    "text_transformer",
    "time_series",
    "tabular",
)


@pytest.mark.parametrize("name", NAMES)
def test_the_file_says_what_the_module_says(name):
    module = import_module(f"tfopt.recipes.{name}")
    recipe = read_recipe(ROOT / "recipes" / f"{name}.toml")
    assert recipe.chain == module.CHAIN
    assert recipe.job == f"tfopt.recipes.{name}:job"
    job = resolve_job(recipe.job, recipe.arguments)
    assert (job.name, job.epochs) == (name, 3)
    assert resolve_target(f"tfopt.recipes.{name}", {}).chain == module.CHAIN


@pytest.mark.parametrize("name", NAMES)
def test_each_has_a_card(name):
    cards = (ROOT / "recipes" / "README.md").read_text(encoding="utf-8")
    card = cards.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert "When it loses" in card


WRONG = {
    "image_from_scratch": [{"size": 8}, {"examples": 0}],
    "image_finetuning": [{"weights": "imagnet"}, {"size": 16}, {"unfreeze": -1}, {"examples": 0}],
    "text_transformer": [{"width": 0}, {"examples": 0}],
    "time_series": [{"hours": 0}, {"ahead": 0}],
    "tabular": [{"rows": 0}, {"width": 0}],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_before_anything_runs(name):
    job = import_module(f"tfopt.recipes.{name}").job
    for wrong in (*WRONG[name], {"data": "nowhere"}, {"epochs": 0}):
        with pytest.raises(UserError):
            job(**wrong)
