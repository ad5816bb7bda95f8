"""Recipe files: equal after a round trip, wrong ones refused by file and key, none executed."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from one_transform import example

from tfopt import LearningRate, Pipeline, Place, UserError, chain
from tfopt.job import recipe_file
from tfopt.job.recipe_file import RecipeFile, chain_to_toml, read_recipe, write_recipe
from tfopt.job.roster import ROSTER

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "recipes").glob("*.toml"))
CHAIN = chain(
    Place(gpus=(0, "H100"), memory_growth=False),
    LearningRate(peak=0.01, warmup=0.1, decay="cosine"),
)


def written(tmp_path, text):
    path = tmp_path / "x.toml"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def refused(path):
    with pytest.raises(UserError) as caught:
        read_recipe(path)
    return caught.value


@pytest.mark.parametrize("name", list(ROSTER))
def test_every_transform_survives_toml_and_json(name, tmp_path):
    whole = chain(example(name))
    path = write_recipe(RecipeFile(chain=whole), tmp_path / "x.toml")
    assert repr(read_recipe(path, trust_functions=True).chain) == repr(whole)
    assert recipe_file.chain_from_toml(json.loads(json.dumps(chain_to_toml(whole)))) == whole


def test_a_whole_recipe_survives(tmp_path):
    recipe = RecipeFile(
        job="my_package.train:job",
        arguments={"epochs": 4, "rate": 0.5, "name": 'a "b"\n\\ü', "deep": {"x": [1, {"y": True}]}},
        chain=CHAIN,
        title="A title = [x]",
        description="Two\nlines # no comment",
    )
    path = write_recipe(recipe, tmp_path / "new" / "x.toml")
    assert read_recipe(path) == recipe
    text = path.read_text(encoding="utf-8")
    assert text.startswith("tfopt = 1\n")
    assert text.count("\n[[chain]]\ntransform = ") == len(CHAIN.parts)


def test_chains_are_written_flat_and_only_with_what_differs_from_the_defaults(tmp_path):
    assert read_recipe(written(tmp_path, "tfopt = 1")) == RecipeFile()
    assert chain_to_toml(chain(chain(Place()), LearningRate(warmup=0.1))) == [
        {"transform": "place"},
        {"transform": "learning_rate", "warmup": 0.1},
    ]


def test_what_would_not_read_back_is_not_written(tmp_path):
    path = written(tmp_path, "before")
    with pytest.raises(UserError, match="reference is malformed"):
        RecipeFile(job="train.py")
    with pytest.raises(TypeError, match="NoneType"):
        write_recipe(RecipeFile(arguments={"steps": None}), path)
    assert path.read_text(encoding="utf-8") == "before"
    assert os.listdir(tmp_path) == ["x.toml"]


# A text, what the error says after the name of the file, and how its fix begins.
WRONG = [
    ("tfpot = 1", ": tfpot is an unknown key.", "did you mean tfopt?"),
    ("tfopt = 2", ": tfopt does not fit.", None),
    ("tfopt = 1\njob = 'pkg/a.py:job'", ": The reference is malformed.", None),
    ("tfopt = 1\n[arguments.b]\na = [1, 1979-05-27]", ": The file does not fit.", None),
    ("tfopt = 1\n[chain]\ntransform = 'place'", ": chain does not fit.", None),
    ("tfopt = 1\n[[chain]]\ntransform='place'\n[[chain]]\ngpus = 1", ": chain[1]: There is no transform None.", None),
    ("tfopt = 1\n[[chain]]\ntransform = 'Exectuion'", ": chain[0]: There is no transform 'Exectuion'.", "did you mean execution?"),
    ("tfopt = 1\n[[chain]]\ntransform = 'place'\ngpus = [2, 2]", ": chain[0]: Invalid gpus of place().", None),
    ("tfopt = 1\n[[chain]]\ntransform = 'pipeline'\noptions = {autoshar = 'off'}",
     ": chain[0]: options.autoshar is an unknown key.", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "what", "fix"), WRONG, ids=[what for _, what, _ in WRONG])
def test_a_mistake_is_told_with_its_file_and_key(tmp_path, text, what, fix):
    path = written(tmp_path, text)
    error = refused(path)
    assert error.what.startswith(f"{path}{what}")
    assert (error.fix or "").startswith(fix or "")
    assert (error.fix is None) == (fix is None)
    assert error.expected or error.received


def test_a_file_that_cannot_be_read(tmp_path):
    assert "x.toml does not exist" in refused(tmp_path / "x.toml").what
    path = tmp_path / "x.toml"
    written(tmp_path, "[[chain]]\nx = True")
    assert "at line 2" in refused(path).received
    path.write_bytes("tfopt = 1\ntitle = 'ü'".encode("latin-1"))
    assert "UnicodeDecodeError" in refused(path).received
    path.write_bytes("tfopt = 1\ntitle = 'ü'".encode("utf-8-sig"))
    assert read_recipe(path).title == "ü"


def test_a_file_that_names_functions_is_refused_unless_they_are_trusted(tmp_path):
    path = written(tmp_path, "tfopt = 1\n[[chain]]\ntransform = 'pipeline'\nmap = 'os:system'")
    error = refused(path)
    assert error.what.startswith(f"{path}: chain[0].map names a function")
    assert error.received == "'os:system'"
    assert "--trust-functions" in error.fix
    assert read_recipe(path, trust_functions=True).chain == chain(Pipeline(map="os:system"))


def test_the_fields_of_a_pipeline_that_name_functions_are_known_as_such():
    """A field is one if it is read as one: then text that is no reference is refused as such."""
    reading = set()
    for each in dataclasses.fields(Pipeline):
        try:
            Pipeline(**{each.name: "no reference"})
        except (ValueError, TypeError) as error:
            if "reference is malformed" in str(error):
                reading.add(each.name)
    assert reading == set(Pipeline.functions)


HOSTILE_HEAD = 'tfopt = 1\njob = "evil:job"\ntitle = "{__import__(\'evil\')}"\n'
HOSTILE = {
    "a job": "[arguments]\nx = '!!python/object/apply:evil.job'\n[[chain]]\ntransform = 'place'",
    "a transform": "[[chain]]\ntransform = 'evil:job'",
    "a field": "[[chain]]\ntransform = 'place'\n__class__ = 'evil'\n__post_init__ = 'evil:job'",
    "a function": "[[chain]]\ntransform = 'pipeline'\nmap = 'evil:job'",
}


def test_reading_executes_nothing_that_the_file_names(tmp_path, monkeypatch):
    (tmp_path / "evil.py").write_text("open('mark', 'w').close()\ndef job(): ...\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    refused = set()
    for name, body in HOSTILE.items():
        try:
            read_recipe(written(tmp_path, HOSTILE_HEAD + body), trust_functions=True)
        except UserError:
            refused.add(name)
    assert refused == {"a transform", "a field"}
    assert not (tmp_path / "mark").exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_is_valid_and_says_what_it_is_for(path):
    recipe = read_recipe(path)
    assert recipe.title == path.stem
    assert recipe.description
    assert recipe.chain.parts
