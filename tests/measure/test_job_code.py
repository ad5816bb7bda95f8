"""The digest of a job's code: what changes it, what does not, and that nothing is run for it."""

import sys
from pathlib import Path

import pytest

from tfopt import Execution, Pipeline, chain
from tfopt.measure import provenance as job_code
from tfopt.measure.provenance import code_digest, functions_in

FILES = {
    "train.py": "import helper, numpy\nraise SystemExit('this file was run')\n",
    "helper.py": "def f():\n    from lib.deep import part\n",
    "lib/deep/part.py": "SIZE = 3\n",
    "other.py": "import train\n",
    "pkg/__init__.py": "",
    "pkg/job.py": "from . import model\n",
    "pkg/model.py": "import helper\n",
    "pkg/sub/by_name.py": "WIDTH = 3\n",
    "pkg/settings.toml": "width = 3\n",
    "pkg/notes.txt": "nothing\n",
    "pkg/.cache/x.py": "",
    "pkg/venv/pyvenv.cfg": "",
    "pkg/venv/lib/x.py": "",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write(tmp_path, FILES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("job", "changing"),
    [
        ("train:job", {"train.py", "helper.py", "lib/deep/part.py"}),
        (
            "pkg.job:Class.job",
            {
                "pkg/__init__.py",
                "pkg/job.py",
                "pkg/model.py",
                "pkg/sub/by_name.py",
                "pkg/settings.toml",
                "helper.py",
                "lib/deep/part.py",
            },
        ),
    ],
)
def test_every_file_that_the_job_is_made_of_counts_and_no_other(folder, job, changing):
    before = code_digest([job])
    assert code_digest([job]) == before
    found = set()
    for name, text in FILES.items():
        (folder / name).write_text(text + "# an edit\n")
        if code_digest([job]) != before:
            found.add(name)
        (folder / name).write_text(text)
    assert found == changing
    assert "train" not in sys.modules


def test_a_file_that_comes_or_goes_counts(folder):
    before = code_digest(["pkg.job:job"])
    (folder / "pkg/sub/new.py").touch()
    assert code_digest(["pkg.job:job"]) != before
    (folder / "pkg/sub/new.py").rename(folder / "pkg/sub/renamed.py")
    assert code_digest(["pkg.job:job"]) != before


def test_the_same_files_elsewhere_are_the_same_code(folder, monkeypatch):
    before = code_digest(["train:job"])
    write(folder / "elsewhere", FILES)
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder / "empty")
    assert code_digest(["train:job"]) != before
    # Where a worker looks, and this process does not.
    monkeypatch.setenv("PYTHONPATH", str(folder / "elsewhere"))
    assert code_digest(["train:job"]) == before


def test_functions_that_a_chain_names_count(folder):
    found = list(functions_in(chain(Execution(steps_per_execution=2), Pipeline(map="helper:f"))))
    assert found == ["helper:f"]
    assert code_digest(["pkg.job:job", *found]) == code_digest(["pkg.job:job"])
    assert code_digest(["other:job", "train:job"]) != code_digest(["train:job"])


def test_what_is_installed_counts_only_where_it_is_the_job(folder, monkeypatch):
    home = folder / "lib/python3/site-packages"
    write(home, {"installed/__init__.py": "", "installed/job.py": "import beside\n"})
    write(home, {"beside.py": ""})
    monkeypatch.syspath_prepend(str(home))
    before = code_digest(["installed.job:job"])
    (home / "beside.py").write_text("# an edit")
    assert code_digest(["installed.job:job"]) == before
    (home / "installed/job.py").write_text("# an edit")
    assert code_digest(["installed.job:job"]) != before


@pytest.mark.parametrize(
    "content", [b"import (\n", b"\x00", b"\xff\xfe", b"x = " + b"(" * 5000, b"'\\d'\n"]
)
def test_a_file_that_is_no_python_counts_as_it_is(folder, content):
    before = code_digest(["train:job"])
    Path("train.py").write_bytes(content)
    assert code_digest(["train:job"]) != before


def test_a_module_that_is_not_there_is_told_later(folder):
    assert code_digest(["nowhere:job"]) == code_digest(["neither.here:job"])
    assert code_digest(["sys:job"])


def test_a_huge_folder_is_not_read_to_its_end(folder, monkeypatch):
    monkeypatch.setattr(job_code, "MOST_ENTRIES", 4)
    before = code_digest(["pkg.job:job"])
    (folder / "pkg/sub/by_name.py").write_text("WIDTH = 4\n")
    assert code_digest(["pkg.job:job"]) == before
    (folder / "pkg/model.py").write_text("")
    assert code_digest(["pkg.job:job"]) != before
