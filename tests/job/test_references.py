"""References: the named job or function, or one error that says which part of it is wrong."""

import sys
import textwrap

import pytest

from tfopt.errors import CannotCombine, UserError
from tfopt.job.references import resolve_function, resolve_job

FILES = {
    "train": """
        from tfopt.job.job import Job

        ready = Job(build=dict, data=dict, compile=dict, name="ready")
        number = 5

        def job(epochs=1, *, width: int = 8, title="job") -> Job:
            return Job(build=dict, data=dict, compile=dict, name=f"{title}{width}", epochs=epochs)

        def needy(path, *, epochs=1) -> Job: return ready
        def nothing() -> Job: return None
        """,
    "other": """
        import functools
        from ref_pkg.train import Job, ready

        def leave_a_mark(*_, **__): open("mark", "w").close(); return ready

        class Settings:
            @property
            def job(self): return leave_a_mark()
            def __call__(self) -> Job: return leave_a_mark()

        settings = Settings()
        def unannotated(epochs=1): return leave_a_mark()
        def wrong() -> dict[str, int]: return leave_a_mark()
        def called_job() -> "leave_a_mark().Job": return leave_a_mark()
        made = functools.partial(leave_a_mark)
        """,
    "later": """
        from __future__ import annotations
        import functools
        from typing import TYPE_CHECKING
        from ref_pkg.train import ready

        if TYPE_CHECKING:
            import tfopt
            from tfopt import Keras

        def unresolved() -> tfopt.Job: return ready
        def twice_quoted(model: Keras = None) -> "tfopt.Job": return ready

        @functools.wraps(unresolved)
        def decorated(*args, **named): return unresolved(*args, **named)
        """,
    "needs": "import not_installed_anywhere",
    "refused": "from tfopt.errors import CannotCombine; raise CannotCombine('their own words')",
}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder with a package, as its user's current folder; import state is put back."""
    (tmp_path / "ref_pkg").mkdir()
    for name, text in FILES.items():
        (tmp_path / "ref_pkg" / f"{name}.py").write_text(textwrap.dedent(text), encoding="utf-8")
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


def test_a_job_and_functions_that_say_that_they_return_one(project):
    assert resolve_job("ref_pkg.train:ready", {}).name == "ready"
    assert sys.path[0] == str(project)  # as under python -m
    changed = resolve_job("ref_pkg.train:job", {"width": 16, "epochs": 3}, seed=4)
    assert (changed.name, changed.epochs, changed.seed) == ("job16", 3, 4)
    for name in ("unresolved", "twice_quoted", "decorated"):
        assert resolve_job(f"ref_pkg.later:{name}", {}).name == "ready"


@pytest.mark.parametrize(
    ("reference", "received"),
    [
        ("os:system", "builtin_function_or_method"),
        ("ref_pkg.other:unannotated", "function"),
        ("ref_pkg.other:wrong", "-> dict[str, int]"),
        ("ref_pkg.other:called_job", "-> leave_a_mark().Job"),
        ("ref_pkg.other:made", "partial"),
        ("ref_pkg.other:settings", "Settings"),
    ],
)
def test_nothing_else_is_called(project, reference, received):
    error = refused(reference, {"command": "touch mark"})
    assert not (project / "mark").exists()
    assert error.what == f"{reference} is not annotated as returning a Job, so it is not called."
    assert error.received == received


def test_a_malformed_reference(project):
    for reference in ("ref_pkg.train", "ref_pkg/train.py:job", "", "a:B.job", "os:system('true')"):
        error = refused(reference)
        assert error.what == "The reference is malformed."
        assert error.received == repr(reference)
    assert "ref_pkg" not in sys.modules


def test_a_module_that_is_not_there_is_named_and_errors_of_the_module_pass_as_they_are(project):
    for module in ("zzz_nowhere", "ref_pkg.trian", "ref_pkg.train.deeper"):
        error = refused(f"{module}:job")
        assert error.what == f"There is no module {module!r}."
        assert error.fix.startswith("run from the folder with the module")
    with pytest.raises(ModuleNotFoundError, match="not_installed_anywhere"):
        resolve_job("ref_pkg.needs:job", {})
    with pytest.raises(CannotCombine, match="their own words"):
        resolve_job("ref_pkg.refused:job", {})


NOT_THESE = "{} cannot be called with these arguments: "


@pytest.mark.parametrize(
    ("name", "arguments", "what", "rest"),
    [
        ("jbo", {}, "ref_pkg.train has no 'jbo'.", {"fix": "did you mean job?"}),
        ("ready", {"epochs": 2}, NOT_THESE, {"expected": "no arguments", "received": "epochs"}),
        ("job", {"epoch": 2}, NOT_THESE, {"expected": "epochs, width, title", "received": "epoch"}),
        ("needy", {"epochs": 2}, NOT_THESE, {"expected": "path, epochs"}),
        ("nothing", {}, "{} returned no Job.", {"received": "NoneType"}),
    ],
)
def test_what_is_named_is_no_job(project, name, arguments, what, rest):
    error = refused(f"ref_pkg.train:{name}", arguments)
    assert error.what.startswith(what.format(f"ref_pkg.train:{name}"))
    assert {key: getattr(error, key) for key in rest} == rest


def test_functions(project):
    assert resolve_function("ref_pkg.train:job")(title="x").name == "x8"
    with pytest.raises(UserError, match=r"ref_pkg\.train:number is not a function"):
        resolve_function("ref_pkg.train:number")
