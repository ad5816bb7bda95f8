"""Recipe files: equal after a round trip, wrong ones refused by file and key, none executed."""

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from tfopt import (
    Distribute,
    Execution,
    LearningRate,
    MixedPrecision,
    Pipeline,
    Place,
    UserError,
    chain,
)
from tfopt.job.recipe_file import (
    RecipeFile,
    chain_from_toml,
    chain_to_toml,
    read_recipe,
    write_recipe,
)
from tfopt.job.references import resolve_job
from tfopt.job.roster import ROSTER, transform_class

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "recipes").glob("*.toml"))
CHAIN = chain(
    Place(gpus=(0, "H100"), memory_growth=False),
    MixedPrecision("mixed_bfloat16", tf32=False),
    Distribute(per_replica_batch=8),
    Execution(jit_compile="auto", steps_per_execution=4),
    LearningRate(peak=0.01, warmup=0.1, decay="cosine"),
)


def candidates(hint):
    """Values of a type hint, to be tried on a field."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (tuple, Sequence):
        return [(value,) for inner in get_args(hint)[:1] for value in candidates(inner)]
    if dataclasses.is_dataclass(hint):
        return variants(hint)
    if get_args(hint):
        return [value for option in get_args(hint) for value in candidates(option)]
    texts = ["memory", "file:/tmp/tfopt-cache", "os.path:basename", "dense.*", "1x16"]
    texts += ["grpc://localhost:5050"]
    known = {bool: [True, False], int: [2, 16], float: [0.25, 0.75], str: texts, NoneType: []}
    return known.get(hint, [])


def first_that_is_possible(kind, choices):
    for values in product(*choices.values()):
        try:
            return kind(**dict(zip(choices, values, strict=True)))
        except UserError:
            continue
    raise AssertionError(f"no values found for {kind.__name__}: extend candidates")


def variants(kind):
    """One instance for each field of a dataclass, in which that field is not its default."""
    hints, found = get_type_hints(kind), []
    required = [
        each.name
        for each in dataclasses.fields(kind)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    ]
    plain = first_that_is_possible(kind, {name: candidates(hints[name]) for name in required})
    for each in dataclasses.fields(kind):
        # A setting may only make sense beside another, such as the budget of what is switched on.
        for value, base in product(candidates(hints[each.name]), (plain, *found)):
            try:
                variant = dataclasses.replace(base, **{each.name: value})
            except UserError:
                continue
            if variant != base:
                found.append(variant)
                break
        else:
            raise AssertionError(
                f"no value found for {kind.__name__}.{each.name}: extend candidates"
            )
    return [plain, *found]


def written(tmp_path, text):
    path = tmp_path / "x.toml"
    path.write_text(text, encoding="utf-8", newline="")
    return path


def refused(path):
    with pytest.raises(UserError) as caught:
        read_recipe(path)
    return caught.value


@pytest.mark.parametrize("name", list(ROSTER))
def test_every_field_of_every_transform_survives_toml_and_json(name, tmp_path):
    for transform in variants(transform_class(name)):
        whole = chain(transform)
        path = write_recipe(RecipeFile(chain=whole), tmp_path / "x.toml")
        assert repr(read_recipe(path, trust_functions=True).chain) == repr(whole)
        assert chain_from_toml(json.loads(json.dumps(chain_to_toml(whole)))) == whole


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
    ("tfopt = 1\n[[chain]]\ntransform = 'execution'\njit_compile = true\n[[chain]]\n"
     "transform = 'place'\njit_compile = true", ": chain[1]: jit_compile is an unknown key.", None),
    ("tfopt = 1\nchain = [{transform = 'place'}, {transform = 'place', gpus = [0, 1.5]}]", ": chain[1]: gpus[1] does not fit.", None),
    ("tfopt = 1\n[[chain]]\ntransform = 'place'\ngpus = [2, 2]", ": chain[0]: place() needs each GPU once.", 'use "none" to run on the CPU'),
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


def test_expected_and_received_are_told(tmp_path):
    text = "tfopt = 1\n[[chain]]\ntransform = 'learning_rate'\npeak = 'linaer'"
    assert str(refused(written(tmp_path, text))).splitlines()[1:] == [
        "  expected: a valid number or 'linear' or 'sqrt'",
        '  received: "linaer"',
    ]


def test_a_file_that_cannot_be_read(tmp_path):
    error = refused(tmp_path / "x.toml")
    assert "x.toml cannot be read" in error.what
    assert "FileNotFoundError" in error.received
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


@pytest.mark.parametrize("name", list(ROSTER))
def test_every_field_that_holds_a_reference_is_marked_as_one(name):
    """A field is one if it is read as one: then text that is no reference is refused as such."""
    kind = transform_class(name)
    required = {
        each.name: candidates(get_type_hints(kind)[each.name])[0]
        for each in dataclasses.fields(kind)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }
    reading = set()
    for each in dataclasses.fields(kind):
        try:
            kind(**{**required, each.name: "no reference"})
        except (ValueError, TypeError) as error:
            if "reference is malformed" in str(error):
                reading.add(each.name)
    assert reading == set(kind.functions)
    assert bool(reading) == (name == "pipeline")


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
    outcomes = {}
    for name, body in HOSTILE.items():
        try:
            read_recipe(written(tmp_path, HOSTILE_HEAD + body), trust_functions=True)
            outcomes[name] = "read"
        except UserError:
            outcomes[name] = "refused"
    assert outcomes == {
        "a job": "read",
        "a transform": "refused",
        "a field": "refused",
        "a function": "read",
    }
    assert not (tmp_path / "mark").exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_recipe_is_valid_and_says_what_it_is_for(path):
    recipe = read_recipe(path)
    assert recipe.title == path.stem
    assert recipe.description
    assert recipe.chain.parts


def test_the_file_of_the_main_recipe_says_what_its_module_says():
    from tfopt.recipes.cnn_mnist import CHAIN as MODULE_CHAIN

    recipe = read_recipe(ROOT / "recipes" / "cnn_mnist.toml")
    assert set(recipe.chain.parts) == set(MODULE_CHAIN.parts)
    job = resolve_job(recipe.job, recipe.arguments)
    assert (job.name, job.epochs) == ("cnn_mnist", 3)
