"""What a word on the command line means, and what is said of one that means nothing."""

import sys

import pytest

from tfopt import Job, Pipeline, UserError, chain
from tfopt.measure.targets import reference_of, resolve_target
from tfopt.recipes import cnn_mnist

RECIPE = """
tfopt = 1
title = "mine"
job = "my_pkg:job"

[arguments]
epochs = 2
steps = 10

[[chain]]
transform = "pipeline"
batch_size = 64
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_module_or_a_file_brings_its_chain_and_a_job_is_not_imported(folder):
    target = resolve_target("tfopt.recipes.cnn_mnist", {"epochs": 1})
    assert target.job == "tfopt.recipes.cnn_mnist:job"
    assert (target.name, target.chain) == ("cnn_mnist", cnn_mnist.CHAIN)
    assert target.arguments == {"epochs": 1}
    (folder / "my_pkg.py").write_text("from anywhere import *")
    (folder / "mine.toml").write_text(RECIPE)
    target = resolve_target("mine.toml", {"steps": 20})
    assert target.job == "my_pkg:job"
    assert target.chain == chain(Pipeline(batch_size=64))
    assert target.arguments == {"epochs": 2, "steps": 20}
    (folder / "my_train.py").write_text("raise AssertionError\ndef job() -> Job: ...\n")
    target = resolve_target("my_train:job", {})
    assert target.job == target.name == "my_train:job"
    assert target.chain == chain()


@pytest.mark.parametrize(
    ("text", "what", "fix"),
    [
        ("train.py", "is a file, not a target", "train:job"),
        ("no_job.toml", "names no job", "--chain no_job.toml"),
        ("no_jobs.toml", "does not exist", "did you mean no_job.toml?"),
        ("no_such_module", "There is no module", ""),
        ("zzz_nowhere:job", "There is no module 'zzz_nowhere'", "run from the folder"),
        ("trian:job", "There is no module 'trian'", "did you mean train?"),
        ("tfopt.recipes.tabula:job", "There is no module 'tfopt.recipes.tabula'", "tabular?"),
        ("chainless:jbo", "chainless has no 'jbo'", "did you mean job?"),
        ("chainless:unannotated", "is not annotated as returning a Job", "write -> tfopt.Job"),
        ("plain_module", "is not a recipe module", "plain_module:job"),
        ("chainless", "is not a recipe module", "chainless:job"),
        ("a b", "malformed", ""),
    ],
)
def test_anything_else_is_refused_with_a_way_out(folder, monkeypatch, text, what, fix):
    monkeypatch.syspath_prepend(str(folder))
    (folder / "train.py").write_text("")
    (folder / "no_job.toml").write_text("tfopt = 1\n")
    (folder / "plain_module.py").write_text("x = 1\n")
    (folder / "chainless.py").write_text(
        "import tfopt\ndef job() -> tfopt.Job: ...\ndef unannotated(): ...\n"
    )
    with pytest.raises(UserError, match=what) as caught:
        resolve_target(text, {})
    assert fix in (caught.value.fix or "")


def a_job() -> Job:
    raise AssertionError("a reference runs nothing")


def test_a_function_goes_by_its_name(monkeypatch):
    assert reference_of(a_job, "measure") == f"{__name__}:a_job"
    assert reference_of("os:path", "measure") == "os:path"
    with pytest.raises(UserError, match="which make the job themselves"):
        reference_of(Job(build=a_job, data=a_job, compile=dict), "measure")
    # A measurement that its own processes would start again.
    child = type("Spec", (), {"name": "tfopt.measure.starter"})
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", child)
    with pytest.raises(UserError, match="under if __name__ == '__main__'"):
        reference_of(a_job, "measure")
