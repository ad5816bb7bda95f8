"""Compare patches of Keras and TensorFlow, and imports of their private modules, with a list.

``library_patches.txt`` counts, by name, the imports from their private modules, and the attributes
of their classes and modules that a context replaces for a while (``replaced``). None is assigned for
good. The list may only shrink, which a review sees: ``python tests/guards/test_library_patches.py``
writes it anew.
"""

import ast
from collections import Counter
from pathlib import Path

LIST = Path(__file__).with_name("library_patches.txt")
PACKAGE = Path(__file__).parents[2] / "tfopt"
LIBRARIES = ("keras", "tensorflow", "tf_keras", "tensorflow_model_optimization")
PRIVATE = (
    "keras.src",
    "tensorflow.compiler",
    "tensorflow.python",
    "tf_keras.src",
    "tensorflow_model_optimization.python",
)


class Library:
    """What one file imports, replaces for a while and assigns of the libraries."""

    def __init__(self, text):
        self.known, self.imports, self.replaced, self.assigned = {}, [], [], []
        nodes = [*ast.walk(ast.parse(text))]
        for node in nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    self.take(alias.asname, alias.name)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self.take(alias.asname or alias.name, f"{node.module}.{alias.name}")
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.known.setdefault(node.targets[0].id, self.name_of(node.value))
        for node in nodes:
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
                self.assigned.append(self.name_of(node))
            elif isinstance(node, ast.Call) and node.args:
                self.call(node, ast.unparse(node.func), node.args[0])
        self.assigned = [*filter(None, self.assigned)]

    def take(self, name, full):
        root = full.split(".")[0]
        if root in LIBRARIES:
            self.known[name or root] = full if name else root
            self.imports += [full] if full.startswith(PRIVATE) else []

    def call(self, node, function, first):
        base = self.name_of(first)
        if function.endswith("import_module") and isinstance(first, ast.Constant):
            self.imports += [first.value] if first.value.startswith(PRIVATE) else []
        elif base and function in ("setattr", "delattr"):
            self.assigned.append(base)
        elif base and function == "replaced":
            self.replaced += [f"{base}.{each.arg or '*'}" for each in node.keywords]

    def name_of(self, node):
        """Return the dotted name of a library's class or module; None for anything else."""
        if isinstance(node, ast.Attribute):
            base = self.name_of(node.value)
            return base and f"{base}.{node.attr}"
        return self.known.get(node.id) if isinstance(node, ast.Name) else None


def found():
    return {
        path.relative_to(PACKAGE).as_posix(): Library(path.read_text("utf-8"))
        for path in PACKAGE.rglob("*.py")
    }


def counted():
    return Counter(name for file in found().values() for name in file.imports + file.replaced)


def test_what_is_there_is_what_the_list_allows():
    rows = [line.rsplit(" ", 1) for line in LIST.read_text("utf-8").splitlines()]
    fix = "new: patch this model or a context, not the library; gone: write the list anew"
    assert counted() == {name: int(count) for name, count in rows}, fix


def test_nothing_of_a_library_is_assigned_for_good():
    assigned = {name: file.assigned for name, file in found().items() if file.assigned}
    assert assigned == {}, "patch this model, or a context by `replaced`"


def test_each_way_to_patch_is_found():
    for code, patch in {
        "import keras\nkeras.Model.fit = 1": "keras.Model.fit",
        "import tensorflow as tf\ntf.roll += 1": "tensorflow.roll",
        "from keras.src import ops as o\na, o.x = 1, 2": "keras.src.ops.x",
        "import keras\nkind = keras.Model\ndel kind.fit": "keras.Model.fit",
        "import keras\nsetattr(keras.Model, 'fit', 1)": "keras.Model",
    }.items():
        assert Library(code).assigned == [patch]
    assert Library("import keras\nreplaced(keras.Model, fit=1)").replaced == ["keras.Model.fit"]
    assert Library("importlib.import_module('keras.src.ops')").imports == ["keras.src.ops"]


if __name__ == "__main__":
    LIST.write_text("".join(f"{name} {count}\n" for name, count in sorted(counted().items())))
