"""References: the named job or function, or one error that says which part of it is wrong."""

import re
import sys
import textwrap

import pytest

from tfopt.errors import CannotCombine, UserError
from tfopt.job.job import Job
from tfopt.job.references import resolve_function, resolve_job


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a package, as its user's current folder; import state is put back."""
    files = {
        "ref_pkg/__init__.py": "",
        "ref_pkg/train.py": """
            import functools

            from tfopt.job.job import Job

            class Holder:
                inner = Job(build=dict, data=dict, compile=dict, name="inner")

            class Model:
                def fit(self): ...
                def __call__(self): ...

            ready = Job(build=dict, data=dict, compile=dict, name="ready")
            number = 5
            model = Model()

            def job(epochs=1, *, width: int = 8, title="job") -> Job:
                return Job(build=dict, data=dict, compile=dict, name=f"{title}{width}", epochs=epochs)

            def needy(path, *, epochs=1) -> Job: return ready
            def trained() -> Job: return model
            def nothing() -> Job: return None
            def crashing() -> Job: raise RuntimeError("no such bucket")
            """,
        "ref_pkg/other.py": """
            import functools, os
            from ref_pkg.train import Job, ready

            def leave_a_mark(*_, **__): open("mark", "w").close(); return ready

            class Job2: ...
            class Settings:
                @property
                def job(self): return leave_a_mark()
                @staticmethod
                def static() -> Job: return ready
                @classmethod
                def of_class(cls) -> Job: return ready
                def __call__(self) -> Job: return leave_a_mark()

            settings = Settings()
            def unannotated(epochs=1): return leave_a_mark()
            def wrong() -> dict[str, int]: return leave_a_mark()
            def quoted_maybe() -> "Job | None": return leave_a_mark()
            def another_quoted() -> "Job2": return leave_a_mark()
            def called_job() -> "leave_a_mark().Job": return leave_a_mark()
            made = functools.partial(leave_a_mark)
            """,
        "ref_pkg/annotated.py": """
            import tfopt
            from ref_pkg import train
            from ref_pkg.train import Job as J, job as imported, ready

            def dotted() -> tfopt.Job: return ready
            def renamed() -> J: return ready
            def quoted_dotted() -> "train.Job": return ready
            """,
        "ref_pkg/later.py": """
            from __future__ import annotations
            from typing import TYPE_CHECKING
            from ref_pkg.train import ready

            if TYPE_CHECKING:
                import tfopt
                from tfopt import Keras

            def unresolved_dotted() -> tfopt.Job: return ready
            def twice_quoted(model: Keras = None) -> "tfopt.Job": return ready
            """,
        "ref_pkg/decorated.py": """
            import functools
            from ref_pkg.train import Job, ready

            def logged(function):
                @functools.wraps(function)
                def wrapper(*args, **named): return function(*args, **named)
                return wrapper

            @logged
            def job(epochs=1) -> Job: return ready.with_(epochs=epochs)
            """,
        "ref_pkg/needs.py": "import not_installed_anywhere\n",
        "ref_pkg/crash.py": "x = 1\nx / 0\n",
        "ref_pkg/typo.py": "def job(:\n",
        "ref_pkg/script.py": "import sys\nsys.exit(0)\n",
        "ref_pkg/refused.py": (
            "from tfopt.errors import CannotCombine\nraise CannotCombine('their own words')\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("ref_pkg"):
            del sys.modules[name]


def refused(reference, arguments=None):
    with pytest.raises(UserError) as caught:
        resolve_job(reference, arguments or {})
    return caught.value


def test_a_job_a_function_and_a_dotted_name(project):
    assert resolve_job("ref_pkg.train:ready", {}).name == "ready"
    assert resolve_job("ref_pkg.train:Holder.inner", {}).name == "inner"
    assert resolve_job("ref_pkg.train:job", {}).name == "job8"
    changed = resolve_job("ref_pkg.train:job", {"width": 16, "epochs": 3})
    assert (changed.name, changed.epochs) == ("job16", 3)


@pytest.mark.parametrize(
    "reference",
    [
        *(f"annotated:{name}" for name in ("dotted", "renamed", "quoted_dotted", "imported")),
        "later:unresolved_dotted",
        "later:twice_quoted",
        "decorated:job",
        "other:Settings.static",
        "other:Settings.of_class",
    ],
)
def test_a_function_that_says_it_returns_a_job(project, reference):
    assert isinstance(resolve_job(f"ref_pkg.{reference}", {}), Job)


SAYS_NOTHING = "{} does not say that it returns a Job, so it is not called."
NO_FUNCTION = "{} is neither a Job nor a function that makes one."


@pytest.mark.parametrize(
    ("reference", "arguments", "what", "received"),
    [
        ("os:system", {"command": "touch mark"}, NO_FUNCTION, "builtin_function_or_method"),
        ("pathlib:Path.touch", {"self": "mark"}, SAYS_NOTHING, "no return annotation"),
        ("ref_pkg.other:unannotated", {"nonsense": 1}, SAYS_NOTHING, "no return annotation"),
        ("ref_pkg.other:wrong", {}, SAYS_NOTHING, "-> dict[str, int]"),
        ("ref_pkg.other:quoted_maybe", {}, SAYS_NOTHING, "-> 'Job | None'"),
        ("ref_pkg.other:another_quoted", {}, SAYS_NOTHING, "-> 'Job2'"),
        ("ref_pkg.other:called_job", {}, SAYS_NOTHING, "-> 'leave_a_mark().Job'"),
        ("ref_pkg.other:made", {}, NO_FUNCTION, "partial"),
        ("ref_pkg.other:settings", {}, NO_FUNCTION, "Settings"),
        (
            "ref_pkg.other:settings.job",
            {},
            "{} looks into an object, which can run code.",
            "'job' of a Settings",
        ),
    ],
)
def test_nothing_else_is_called(project, reference, arguments, what, received):
    error = refused(reference, arguments)
    assert not (project / "mark").exists()
    assert error.what == what.format(reference)
    assert received is None or error.received == received


def test_the_error_says_what_to_write_and_where(project):
    error = refused("ref_pkg.other:unannotated")
    place = project / "ref_pkg" / "other.py"
    line = (
        place.read_text(encoding="utf-8")
        .splitlines()
        .index("def unannotated(epochs=1): return leave_a_mark()")
    )
    assert error.expected == "def unannotated(...) -> tfopt.Job:"
    assert error.fix == (
        f"if it makes a Job, write -> tfopt.Job before the colon of that line ({place}:{line + 1}), "
        "and import tfopt at the top of the file"
    )


def test_the_current_folder_is_importable_as_under_python_m(project, monkeypatch):
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(project)])
    assert resolve_job("ref_pkg.train:job", {}).name == "job8"
    assert sys.path[0] == str(project)


@pytest.mark.parametrize(
    "reference",
    [
        "ref_pkg.train",
        "ref_pkg/train.py:job",
        "ref_pkg.train:",
        "",
        "os:system('true')",
        "..train:job",
    ],
)
def test_a_malformed_reference(project, reference):
    error = refused(reference)
    assert error.what == "The reference is malformed."
    assert error.received == repr(reference)
    assert "ref_pkg" not in sys.modules


@pytest.mark.parametrize("module", ["zzz_nowhere", "ref_pkg.trian", "ref_pkg.train.deeper"])
def test_a_module_that_is_not_there(project, module):
    error = refused(f"{module}:job")
    assert error.what == f"There is no module {module!r}."
    assert error.fix.startswith("run from the folder that holds it")


@pytest.mark.parametrize(
    ("module", "received"),
    [
        ("needs", "ModuleNotFoundError: No module named 'not_installed_anywhere'"),
        ("crash", "ZeroDivisionError: division by zero"),
        # Python's words, which differ between its versions, are cut away below.
        ("typo", "SyntaxError: (typo.py, line 1)"),
        ("script", "SystemExit: 0"),
    ],
)
def test_a_module_that_fails_while_it_is_imported(project, module, received):
    error = refused(f"ref_pkg.{module}:job")
    assert error.what == f"ref_pkg.{module} exists, but importing it failed."
    plain = re.sub(r"(?<=SyntaxError: ).*(?=\()", "", error.received)
    assert plain == received
    assert "__main__" in error.fix


def test_an_error_of_ours_passes_as_it_is(project):
    error = refused("ref_pkg.refused:job")
    assert type(error) is CannotCombine
    assert error.what == "their own words"


NOT_THESE = "{} cannot be called with these arguments: "


@pytest.mark.parametrize(
    ("name", "arguments", "what", "rest"),
    [
        ("jbo", {}, "ref_pkg.train has no 'jbo'.", {"fix": "did you mean job?"}),
        (
            "Holder.iner",
            {},
            "Holder has no 'iner'.",
            {"fix": "did you mean inner?"},
        ),
        ("model", {}, NO_FUNCTION, {"received": "Model"}),
        ("ready", {"epochs": 2}, "{} is a Job, which takes no arguments.", {"received": "epochs"}),
        ("job", {"epoch": 2}, NOT_THESE, {"expected": "epochs, width, title", "received": "epoch"}),
        ("needy", {"epochs": 2}, NOT_THESE, {"expected": "path, epochs"}),
        ("nothing", {}, "{} returned no Job.", {"received": "NoneType"}),
        (
            "trained",
            {},
            "{} returned no Job.",
            {"received": "Model"},
        ),
    ],
)
def test_what_is_named_is_no_job(project, name, arguments, what, rest):
    error = refused(f"ref_pkg.train:{name}", arguments)
    assert error.what.startswith(what.format(f"ref_pkg.train:{name}"))
    assert {key: getattr(error, key) for key in rest} == rest


def test_a_function_that_crashes_is_told(project):
    error = refused("ref_pkg.train:crashing")
    assert error.what == "ref_pkg.train:crashing failed while it made the job."
    assert error.received == "RuntimeError: no such bucket"
    assert isinstance(error.__cause__, RuntimeError)


def test_functions(project):
    assert resolve_function("ref_pkg.train:job")(title="x").name == "x8"
    assert isinstance(resolve_function("ref_pkg.train:Holder")().inner, Job)
    with pytest.raises(UserError, match=r"ref_pkg\.train:number is not a function"):
        resolve_function("ref_pkg.train:number")
