"""The walls of the house that import-linter and ruff do not see."""

import ast
import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tfopt"
TEXTS = {
    path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {name: ast.parse(text) for name, text in TEXTS.items()}
ENTRIES = sorted(
    path.name for path in PACKAGE.iterdir() if path.name != "__pycache__" and path.name[0] != "."
)
HEAVY = {
    "tensorflow",
    "keras",
    "tf_keras",
    "tensorflow_datasets",
    "tensorflow_model_optimization",
    "pynvml",
    "pydantic",
}


def method_calls(tree):
    """The names of the methods that a file calls."""
    return {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }


def imported_at_top(tree):
    """The packages that a file imports as soon as it is imported."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.split(".")[0]


# What the chief of an asynchronous training works with: ``train`` imports it in the call.
ASYNCHRONOUS = ("building", "chief", "connection", "lost_updates", "saved_progress", "worker_step")


def test_only_run_fits():
    # Whoever reads a training's scores asks run's own Prepared to fit.
    fitting = {name for name, tree in TREES.items() if "fit" in method_calls(tree)}
    assert fitting == {"run.py", "measure/scores.py"}


def test_a_file_loads_tensorflow_when_imported_only_where_it_works_inside_a_step():
    importing = {name for name, tree in TREES.items() if HEAVY & {*imported_at_top(tree)}}
    assert importing <= {
        "compress/codebook.py",
        "compress/constraints.py",
        "compress/saved.py",
        "compress/substitution.py",
        "compress/weight_clusters.py",
        "compress/weight_mask.py",
        *(f"distribute/asynchronous/{name}.py" for name in ASYNCHRONOUS),
        "distribute/models.py",
        "distribute/losses.py",
        "distribute/metrics.py",
        "distribute/model_parts.py",
        "distribute/proof_conditions.py",
        "distribute/proof_data.py",
        "distribute/step.py",
        "distribute/strategy.py",
        "distribute/verify.py",
        "distribute/whole_batch.py",
        "monitor/monitor_callback.py",
        "resume/callback.py",
        "resume/keeper.py",
        "train/accumulate.py",
        "train/graph_parts.py",
        "train/recompute.py",
    }
    for name in importing:
        docstring = ast.get_docstring(TREES[name])
        assert "import" in docstring.lower(), f"{name} loads TensorFlow at import without saying so"


def test_one_file_reads_what_keras_keeps_to_itself():
    """Elsewhere no file has a name that Keras gives a private attribute or method."""
    keras = Path(find_spec("keras").origin).parent / "src"
    texts = [path.read_text("utf-8") for path in keras.rglob("*.py")]
    private = {name for text in texts for name in re.findall(r"(?:def |self\.)(_[a-z]\w+)", text)}
    # TensorFlow's, of datasets and variables, and a named tuple's.
    private -= {"_aggregation", "_asdict", "_batch_size", "_inputs", "_type_spec", "_values"}
    found = []
    for name, tree in TREES.items():
        nodes = list(ast.walk(tree))
        ours = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        ours |= {node.attr for node in nodes if _is_own(node)}
        read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        read |= {node.arg for node in nodes if isinstance(node, ast.keyword)}
        found += [f"{name}: {each}" for each in sorted((read & private) - ours)]
    assert {each.partition(":")[0] for each in found} == {"keras_internals.py"}, found


def _is_own(node):
    """Return whether an attribute is one that a class of tfopt's gives itself."""
    of_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    return of_self and node.value.id == "self"


def test_every_file_opens_by_saying_what_it_is():
    assert [name for name, tree in TREES.items() if not ast.get_docstring(tree)] == []


def test_no_file_is_longer_than_one_reads():
    lengths = {name: len(text.splitlines()) for name, text in TEXTS.items()}
    assert {name: length for name, length in lengths.items() if length > 700} == {}


def test_the_package_is_small_at_its_top():
    assert len(ENTRIES) <= 24, ENTRIES


def test_every_room_has_its_floor():
    """Each file and folder at the top is in the layers that import-linter holds up."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each["type"] == "layers")
    floors = {room.strip() for layer in layers for room in layer.split("|")}
    python = (name.removesuffix(".py") for name in ENTRIES if "." not in name or name[-3:] == ".py")
    assert floors == {f"tfopt.{name}" for name in python if not name.startswith("__")}


def test_tests_mirror_the_rooms():
    rooms = {name for name in ENTRIES if (PACKAGE / name).is_dir()}
    assert rooms <= {path.name for path in (ROOT / "tests").iterdir()}
