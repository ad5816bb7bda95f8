"""The wheel holds what a user needs, works from any folder, and is light to import."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import tfopt

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy, since building leaves folders behind."""
    source = tmp_path_factory.mktemp("source") / "tfopt"
    source.mkdir()
    for name in ("tfopt", "pyproject.toml", "README.md", "LICENSE"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    return source


@pytest.fixture(scope="module")
def wheel(source, tmp_path_factory):
    target = tmp_path_factory.mktemp("wheel")
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]
    subprocess.run([sys.executable, *command, target, source], check=True, timeout=120)
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_holds_data_templates_types_and_licences(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "tfopt/data/mnist_10k.npz",
        "tfopt/data/mnist_10k.LICENSE.md",
        "tfopt/monitor/outlets/grafana.json",
        "tfopt/report/templates/bench.html.j2",
        "tfopt/py.typed",
    } <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "benchmarks/", "recipes/")) for name in names)
    assert wheel.stat().st_size < 5_000_000


def test_the_sdist_makes_the_same_wheel(wheel, source, tmp_path):
    code = "import sys, setuptools.build_meta as made; made.build_sdist(sys.argv[1])"
    command = [sys.executable, "-c", code, tmp_path]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (sdist,) = tmp_path.glob(f"tfopt-{tfopt.__version__}.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in in_wheel if ".dist-info/" not in name} <= names
    assert {"LICENSE", "README.md", "pyproject.toml"} <= names
    assert not any(name.startswith(("benchmarks/", "recipes/")) for name in names)


def test_the_base_install_is_small_and_every_package_of_it_is_accounted_for():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = dict(re.fullmatch(r"([\w-]+)(.*)", each).groups() for each in settings["dependencies"])
    assert (bounds["tensorflow"], bounds["keras"]) == (">=2.18", ">=3.8")
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| package | why | MB |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [row.split("|")[1].strip() for row in table.splitlines()]
    assert {name for row in rows for name in row.split(", ")} == bounds.keys()


def test_the_installed_package_works_from_another_folder(wheel, tmp_path):
    installed = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(installed)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = (
        "import tfopt; from tfopt.data.mnist import load_mnist; data = load_mnist('embedded');"
        "print(tfopt.__file__, data.train[0].shape, data.test[1].shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=elsewhere,
        env={**os.environ, "PYTHONPATH": str(installed)},
        timeout=120,
    )
    assert str(installed) in done.stdout
    assert "(10000, 28, 28, 1) (10000,)" in done.stdout


@pytest.fixture(scope="module")
def imported():
    """What each of a user's first imports loads, in a process of its own."""
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("first_imports.py")],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def test_importing_tfopt_is_instant(imported):
    """Counted in modules, since a shared machine's seconds mean little."""
    foreign = {name for name in imported["tfopt"] if not is_standard(name)}
    assert foreign <= {"tfopt", "lazy_loader"}
    assert len(imported["tfopt"]) < 60


def test_commands_and_recipes_answer_for_help_without_tensorflow(imported):
    heavy = {"tensorflow", "keras", "pynvml", "tensorflow_datasets", "tf_keras"}
    assert not (heavy | {"numpy", "pydantic"}) & {*imported["tfopt.commands.cli"]}
    for name, found in imported["help"].items():
        assert not heavy & {*found["loaded"]}, name
        printed = " ".join(found["printed"].split())
        assert "a recipe file (.toml)" in printed or f"{name}_report" in printed


def test_a_name_that_is_also_a_module_stays_the_function(imported):
    names = ("tfopt.doctor", "tfopt.export", "tfopt.run", "tfopt.tune")
    assert imported["functions"] == dict.fromkeys(names, "function")


def is_standard(module):
    return module.partition(".")[0] in sys.stdlib_module_names
