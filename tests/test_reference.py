"""Every public name is in the reference, with a call, its parameters and its errors.

``make docs`` turns the pages into a site, where a warning, such as a link into nothing, is an error.
"""

import argparse
import ast
import inspect
import re
import textwrap
import tomllib
from importlib import import_module
from pathlib import Path

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import tfopt
from tfopt.commands.cli import _parser

ROOT = Path(__file__).parent.parent
ROOMS = ("tfopt", "tfopt.compress", "tfopt.data", "tfopt.job", "tfopt.report", "tfopt.train")
PUBLIC = {
    f"{room}.{name}": value
    for room in ROOMS
    for name in import_module(room).__all__
    if not inspect.ismodule(value := getattr(import_module(room), name))
}
ONCE = {id(value): name for name, value in reversed(PUBLIC.items())}
NAMES = sorted(ONCE.values())


def examples(docstring):
    """Return the blocks below Example, without the prompts of a doctest."""
    found = re.findall(r"^Example:+\n((?:(?: {4}.*)?\n?)+)", docstring, flags=re.MULTILINE)
    blocks = (textwrap.dedent(each).strip() for each in found)
    return [re.sub(r"^(>>>|\.\.\.) ?", "", each, flags=re.MULTILINE) for each in blocks]


def described(section, docstring):
    """Return the names below a section of a docstring, such as Args, that are followed by a text."""
    found = re.findall(rf"^{section}:\n((?:(?: {{4}}.*)?\n?)+)", docstring, flags=re.MULTILINE)
    return {*re.findall(r"^ {4}(\w+): \S", "".join(found), flags=re.MULTILINE)}


def undescribed(kind):
    """Return the parameters of a class that neither its docstring nor one of its bases' describes."""
    if "he fields are the arguments of ``" in inspect.getdoc(kind):
        return set()
    texts = [inspect.getdoc(base) or "" for base in inspect.getmro(kind)]
    told = {name for text in texts for name in re.findall(r"``(\w+)``", text)}
    told |= {name for text in texts for name in described("(?:Args|Attributes)", text)}
    parameters = inspect.signature(kind).parameters.values()
    names = {each.name for each in parameters if each.kind != each.VAR_KEYWORD}
    return {name for name in names - told if not name.startswith("_")}


def documented():
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        names = re.findall(
            r"^\.\. auto(?:function|class):: ([\w.]+)$", page.read_text("utf-8"), flags=re.MULTILINE
        )
        for name in names:
            module, _, attribute = name.rpartition(".")
            yield id(getattr(import_module(module), attribute))


def test_every_public_name_is_in_the_reference_once():
    found = [*documented()]
    assert len(found) == len(set(found))
    assert sorted(name for key, name in ONCE.items() if key not in found) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_docstring_shows_a_call_that_exists(name):
    docstring = inspect.getdoc(PUBLIC[name])
    blocks = examples(docstring)
    assert blocks, f"{name} has no example"
    if inspect.isfunction(PUBLIC[name]):
        assert f"{name.rpartition('.')[2]}(" in "".join(blocks), f"{name} is not called"
    for node in ast.walk(ast.parse("\n".join(blocks))):
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) == "tfopt":
            assert node.attr in tfopt.__all__


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isfunction(PUBLIC[name])])
def test_a_function_describes_its_parameters_and_errors(name):
    docstring = inspect.getdoc(PUBLIC[name])
    parameters = set(inspect.signature(PUBLIC[name]).parameters)
    missing = parameters - described("Args", docstring)
    assert not missing, f"{name} has no Args of {', '.join(sorted(missing))}"
    # What takes anything refuses something.
    raised = described("Raises", docstring)
    assert not parameters or raised & {"UserError", "OutOfMemory"}, f"{name} has no Raises"


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isclass(PUBLIC[name])])
def test_a_class_describes_its_fields(name):
    missing = undescribed(PUBLIC[name])
    assert not missing, f"{name} has no Attributes of {', '.join(sorted(missing))}"


def without_help(parser, command):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from without_help(below, f"{command} {name}")
        elif not action.help:
            yield f"{command} {'/'.join(action.option_strings) or action.dest}"


def test_every_flag_of_every_command_has_a_help():
    assert [*without_help(_parser(), "tfopt")] == []


def test_what_a_function_does_to_its_model_is_said_at_once():
    takers = {
        name: inspect.getdoc(value)
        for name, value in PUBLIC.items()
        if inspect.isfunction(value)
        and next(iter(inspect.signature(value).parameters), "") == "model"
    }
    unsaid = {
        name
        for name, told in takers.items()
        if not re.search(r"in place|new|not changed|nothing is changed", told.partition("\n")[0])
    }
    # What they return is no model, and they read theirs.
    assert unsaid == {
        "tfopt.compress.clustering_report",
        "tfopt.compress.pruning_report",
        "tfopt.compress.quantization_report",
        "tfopt.explain_out_of_memory",
        "tfopt.export",
        "tfopt.optimize",
        "tfopt.training_memory",
    }


def test_the_readme_names_every_extra():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    readme = (ROOT / "README.md").read_text("utf-8").partition("Extras")[2]
    assert {f"`{name}`" for name in settings["optional-dependencies"]} <= {
        *re.findall(r"`[\w-]+`", readme)
    }


# Examples that do not run beside each other in one process, by what they need.
ELSEWHERE = {
    "devices that are not there": "Distribute FusedAttention Split fused_attention",
    "a fresh process": "Place compile_cache distribute place split",
    "tasks of a cluster": "train_asynchronously",
    "a module with the job": "doctor find_batch_size measure tune",
    "minutes": "optimize",
    "files": "data.ArrowTable data.Csv data.Dask data.HuggingFace "
    "data.ImageFolder data.Parquet data.Spark data.TFDS data.TFRecord report.BenchReport "
    "report.Report",
    "a transform around it": "job.Facts job.Run job.Transform",
}
RUN = {*NAMES} - {f"tfopt.{name}" for names in ELSEWHERE.values() for name in names.split()}


def build(nested=False):
    hidden = keras.layers.Dense(16, "relu", name="hidden")
    if nested:
        hidden = keras.Sequential([keras.Input((6,)), hidden], name="block")
    return keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(2, name="out")])


def compile():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return {"optimizer": "adam", "loss": loss, "metrics": ["accuracy"]}


def names_of_an_example(block):
    """Return what examples take for granted: a model, its data, a job, and tfopt's own names."""
    x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
    y = (x.sum(axis=1) > 0).astype("int64")
    model = build(nested='"block"' in block)
    model.compile(**compile())
    return {
        **{name.rpartition(".")[2]: value for name, value in PUBLIC.items()},
        **{"tfopt": tfopt, "keras": keras, "build": build, "compile": compile, "model": model},
        **{"x": x, "y": y, "x_test": x, "y_test": y},
        "data": tf.data.Dataset.from_tensor_slices((x, y)).batch(32),
        "layer": keras.layers.Dense(4),
        "weight": model.get_layer("out").kernel,
        "gradient": 0.0,
        "job": tfopt.Job(
            build=lambda: build(nested='"block"' in block),
            data=lambda: tfopt.Data(train=(x, y), test=(x, y)),
            compile=compile,
        ),
    }


# The schedule of a real training has an end that four steps do not reach.
@pytest.mark.filterwarnings("ignore:.*before their schedule")
# Keras warns of its own default where a dataset goes in.
@pytest.mark.filterwarnings("ignore:.*shuffle=True")
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(RUN))
def test_an_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = "\n".join(examples(inspect.getdoc(PUBLIC[name])))
    names = names_of_an_example(block)
    if name == "tfopt.compress.quantization_report":
        tfopt.quantize_aware(names["model"])
    if name == "tfopt.load":
        tfopt.export(
            names["model"], "served", formats="litert", precision="int8", calibration=names["x"]
        )
    if name == "tfopt.pipeline":
        pd.DataFrame(names["x"]).rename(columns=str).assign(y=names["y"]).to_parquet(
            "train.parquet"
        )
    exec(block, names)


FRESH = """import keras, numpy as np, tensorflow as tf, tfopt
from tfopt import Place, run


def build():
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(1)])


x, y = np.zeros((64, 6), "float32"), np.zeros(64, "float32")
job = tfopt.Job(build, lambda: tfopt.Data(train=(x, y)), lambda: {"loss": "mse"})
"""
TWO_DEVICES = """
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
model = build()
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ELSEWHERE["a fresh process"].split())
def test_an_example_runs_in_a_fresh_process(name, run_page_block):
    (block,) = examples(inspect.getdoc(PUBLIC[f"tfopt.{name}"]))
    run_page_block(FRESH + (TWO_DEVICES if name == "split" else "") + block)
