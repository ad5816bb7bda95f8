"""The walls of the house that import-linter and ruff do not see."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "tfopt"


def method_calls(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.func.attr


def top_level_imports(path):
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def files():
    return sorted(PACKAGE.rglob("*.py"))


def test_only_run_fits():
    fitting = {
        path.relative_to(PACKAGE).as_posix() for path in files() if "fit" in set(method_calls(path))
    }
    # The worker asks run's own Prepared to fit.
    assert fitting == {"runner.py", "bench/measure.py"}


def test_no_file_loads_tensorflow_when_imported():
    heavy = {
        "tensorflow",
        "keras",
        "tf_keras",
        "tensorflow_datasets",
        "tensorflow_model_optimization",
        "pynvml",
    }
    importing = {
        path.relative_to(PACKAGE).as_posix()
        for path in files()
        if heavy & set(top_level_imports(path))
    }
    for name in importing:
        docstring = ast.get_docstring(ast.parse((PACKAGE / name).read_text()))
        assert "import" in docstring.lower(), f"{name} loads TensorFlow at import without saying so"
    # Classes that must derive from Keras's own.
    assert importing <= {
        "bench/clock.py",
        "compression/held/constraint.py",
        "rematerialisation/state.py",
        "compression/held/kept_zeros.py",
        "compression/clusters/weight_clusters.py",
        "compression/held/model.py",
        "compression/saved_class.py",
        "compression/substitution.py",
        "compression/masks/weight_mask.py",
        "monitor/outlets/callback.py",
        "resuming/callback.py",
        "resuming/keeper.py",
        "workers/replica_times.py",
    }


def test_every_file_opens_by_saying_what_it_is():
    for path in files():
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_files_are_one_thing():
    long = {path.name: len(path.read_text().splitlines()) for path in files()}
    assert {name: length for name, length in long.items() if length > 350} == {}
