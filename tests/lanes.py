"""Test the wheel beside the oldest, the newest and the next TensorFlow and Keras.

A lane is a virtual environment in ``.lanes/`` that holds the wheel, made as for a release. It is asked
outside of the checkout what a user asks first, and runs tests of the checkout::

    python tests/lanes.py                     # three lanes; what `make test-versions` runs
    python tests/lanes.py oldest --quick      # two minutes; what continuous integration runs
    python tests/lanes.py --results           # and leave them in benchmarks/results

The lane "oldest" has the lower bound of each package that tfopt asks for. "nightly" prints what fails
there and is no failure; nor is, with ``--quick``, a lane that cannot be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / ".lanes"
LANES = ("oldest", "newest", "nightly")
NIGHTLY = {"tensorflow": "tf-nightly", "keras": "keras-nightly"}
TOOLS = ("pytest>=8.3", "pytest-xdist>=3.6", "allpairspy>=2.5")
# TensorFlow 2.18 has no wheel for Python 3.13.
OLDEST_PYTHONS = ("python3.12", "python3.11")

QUICK = (
    "tests/test_public_functions.py",
    "tests/test_keras_internals.py",
    "tests/job/test_from_model.py",
    "tests/job/test_versions.py",
)
SUITE = (
    *QUICK,
    "tests/guards/test_compression_goldens.py",
    "tests/job/test_transform_contract.py",
    "tests/commands/test_cli.py",
    "tests/data/test_texts.py",
    "tests/doctor/test_command.py",
    "tests/recipes/test_recipe_modules.py",
    "tests/measure/test_children.py",
    "tests/measure/test_trainings.py",
    "tests/tune/test_batch_size.py",
    "tests/tune/test_given_model.py",
    "tests/train/test_split.py",
    "tests/distribute/asynchronous/test_nothing_lost.py",
    "tests/export/test_litert_forms.py",
)
STEPS = """
import tfopt
from tfopt.recipes.cnn_mnist import job
print(tfopt.run(job(steps=3, epochs=1), tfopt.Execution(steps_per_execution=3)).evaluation)
"""
WEIGHTS = """
import json
import re
from importlib.metadata import distribution, requires
asked = [re.match(r"[\\w-]+", each)[0] for each in requires("tfopt") if "extra ==" not in each]
sizes = {name: (distribution(name).files or []) for name in asked}
weights = {name: sum(file.locate().stat().st_size for file in files if file.locate().exists())
           for name, files in sizes.items()}
print(json.dumps({name: round(weight / 1e6, 2) for name, weight in weights.items()}))
"""
DEMO = ("--budget", "0", "--transforms", "execution,quantize", "--steps", "5", "--epochs", "1")


class CommandFailed(Exception):
    """The Python of an environment ended with an error."""


class CannotInstall(Exception):
    """A lane's packages are not to be had here."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=f"of {', '.join(LANES)}")
    parser.add_argument("--quick", action="store_true", help="two minutes in place of six")
    parser.add_argument("--results", action="store_true", help="write benchmarks/results")
    options = parser.parse_args()
    if unknown := {*options.lanes} - {*LANES}:
        parser.error(f"no lane is called {', '.join(sorted(unknown))}")
    FOLDER.mkdir(exist_ok=True)
    results = {}
    try:
        wheel = built()
        for lane in options.lanes or LANES:
            results[lane] = tested(lane, wheel, quick=options.quick)
            print(f"lane {lane}: {in_words(results[lane])}", flush=True)
    except CannotInstall as error:
        print(f"no lane can be made here: {error}")
        return 0 if options.quick else 1
    if options.results:
        write_results(results)
    ignored = {"skipped"} if options.quick else set()
    failed = [
        lane
        for lane, result in results.items()
        if lane != "nightly" and (result["failures"] or {"skipped"} & {*result} - ignored)
    ]
    return 1 if failed else 0


def tested(lane: str, wheel: Path, *, quick: bool) -> dict:
    """Return what was found in a lane."""
    print(f"lane {lane}:", flush=True)
    began = time.monotonic()
    try:
        environment = installed(lane, wheel)
    except CannotInstall as error:
        return {"skipped": str(error), "failures": []}
    ready = time.monotonic()
    found = {
        "python": said(environment, "--version").split()[-1],
        "versions": said(environment, "-m", "tfopt", "--version"),
        "install_s": round(ready - began),
        "failures": [],
    }
    if lane == "newest":
        found["installed_mb"] = json.loads(said(environment, "-c", WEIGHTS))
    for name, words in outside(quick).items():
        if not works(environment, words):
            found["failures"].append(name)
    counts, failures = suite(lane, environment, QUICK if quick else SUITE)
    found["failures"] += failures
    return {**found, **counts, "tests_s": round(time.monotonic() - ready)}


def in_words(result: dict) -> str:
    if "skipped" in result:
        return f"skipped: {result['skipped']}"
    failed = f"failed: {', '.join(result['failures'])}" if result["failures"] else "all in order"
    return (
        f"{result['versions']}, Python {result['python']}; {result['tests']} tests, {failed} "
        f"({result['install_s']} s to install, {result['tests_s']} s to test)"
    )


def write_results(results: dict) -> None:
    path = ROOT / "benchmarks" / "results" / f"{date.today()}-lanes.json"
    about = {
        "command": " ".join(["python", "tests/lanes.py", *sys.argv[1:]]),
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
    path.write_text(json.dumps({**about, "lanes": results}, indent=1) + "\n", encoding="utf-8")
    print(path)


# Packages


def built() -> Path:
    """Make the sdist, and the wheel from it, as for a release; return the wheel."""
    folder = FOLDER / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    environment = FOLDER / "build"
    pip(environment, sys.executable, "build>=1.2")
    said(environment, "-m", "build", "--outdir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    return wheel


def installed(lane: str, wheel: Path) -> Path:
    """Make a lane's environment, or take up the one that is there, and install the wheel in it."""
    environment, stamp = FOLDER / lane, FOLDER / f"{lane}.txt"
    wanted = [*requirements(lane), *TOOLS]
    if not stamp.exists() or stamp.read_text(encoding="utf-8").split("\n") != wanted:
        shutil.rmtree(environment, ignore_errors=True)
        python = python_for(lane)
        # What the wheel asks for is resolved with it: it must change none of what is wanted.
        pip(environment, python, *wanted, *([] if lane == "nightly" else [str(wheel)]))
        stamp.write_text("\n".join(wanted), encoding="utf-8")
    pip(environment, None, "--no-deps", "--force-reinstall", str(wheel))
    return environment


def requirements(lane: str) -> list[str]:
    """Return what is installed beside the wheel, of its own requirements."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    asked = settings["project"]["dependencies"]
    if lane == "oldest":
        bounds = (re.fullmatch(r"([\w-]+)>=([\w.]+)(,.*)?", each).groups()[:2] for each in asked)
        return [f"{name}=={bound}.*" for name, bound in bounds]
    if lane == "nightly":
        return [NIGHTLY.get(re.split("[<>=]", each)[0], each) for each in asked]
    return []


def python_for(lane: str) -> str:
    if lane != "oldest" or sys.version_info < (3, 13):
        return sys.executable
    for name in OLDEST_PYTHONS:
        if (found := shutil.which(name)) is not None:
            return found
    raise CannotInstall(f"TensorFlow 2.18 needs one of {', '.join(OLDEST_PYTHONS)}")


def pip(environment: Path, python: str | None, *words: str) -> None:
    """Install into a virtual environment, which ``python`` makes."""
    try:
        if python is not None and not environment.exists():
            subprocess.run([python, "-m", "venv", environment], check=True, capture_output=True)
        said(environment, "-m", "pip", "install", "--quiet", *words)
    except (CommandFailed, subprocess.CalledProcessError) as error:
        lines = [line for line in str(error).splitlines() if line.startswith("ERROR")]
        raise CannotInstall(lines[-1] if lines else str(error)[-300:]) from error


# Tests


def outside(quick: bool) -> dict[str, tuple[str, ...]]:
    """Return what is run in an empty folder, by name."""
    found = {
        "where it is": ("-c", "import tfopt; assert '.lanes' in tfopt.__file__, tfopt.__file__"),
        "cnn_mnist --help": ("-m", "tfopt.recipes.cnn_mnist", "--help"),
        "some steps of cnn_mnist": ("-c", STEPS),
        "tfopt doctor": ("-m", "tfopt", "doctor", "--only", "host"),
    }
    return found if quick else {**found, "cnn_mnist": ("-m", "tfopt.recipes.cnn_mnist", *DEMO)}


def works(environment: Path, words: tuple[str, ...]) -> bool:
    """Return whether a command of the lane's Python ends well in an empty folder."""
    try:
        with TemporaryDirectory() as folder:
            said(environment, *words, folder=folder)
    except CommandFailed as error:
        print(error, flush=True)
        return False
    return True


def suite(lane: str, environment: Path, files: tuple[str, ...]) -> tuple[dict[str, int], list[str]]:
    """Run tests of the checkout on the lane's tfopt; return how many, and the names that failed."""
    report = FOLDER / f"{lane}.xml"
    report.unlink(missing_ok=True)
    there = [name for name in files if (ROOT / name).exists()]
    # Not `python -m pytest`, which would put the checkout's tfopt in front.
    words = ["-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider", "--tb=short"]
    marks = ["-m", "not slow or versions", f"--junitxml={report}"]
    command = [environment / "bin" / "pytest", *words, *marks, *there]
    subprocess.run(command, cwd=ROOT, env=variables(environment), check=False)
    if not report.exists():
        return {"tests": 0}, ["pytest did not run"]
    cases = [*ElementTree.parse(report).iter("testcase")]
    failures = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return {"tests": len(cases)}, failures


def said(environment: Path, *words: str, folder: str | Path = FOLDER) -> str:
    """Return what the lane's Python prints, or raise what it complains of."""
    done = subprocess.run(
        [environment / "bin" / "python", *words],
        cwd=folder,
        env=variables(environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CommandFailed(f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
    return done.stdout.strip()


def variables(environment: Path) -> dict[str, str]:
    path = f"{environment / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "2"}


if __name__ == "__main__":
    sys.exit(main())
