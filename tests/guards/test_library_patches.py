"""Compare patches of Keras and TensorFlow, and imports of their private modules, with three lists.

``library_patches.txt`` counts the assignments to attributes of Keras's and TensorFlow's classes and
modules, ``patches_for_a_while.txt`` those that a context undoes (``replaced``), and
``private_imports.txt`` the imports from their private modules. They may only shrink:
``python tests/guards/test_library_patches.py`` rewrites them, and refuses to let them grow unless
it is given ``--grow``, which a review has to agree to.
"""

import ast
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / "tfopt"
LIBRARIES = ("keras", "tensorflow", "tf_keras", "tensorflow_model_optimization")
PRIVATE = (
    "keras.src",
    "tensorflow.compiler",
    "tensorflow.python",
    "tf_keras.src",
    "tensorflow_model_optimization.python",
)
# What a constructor of these makes is an object of the caller's, not a part of the library.
_OBJECTS = ("keras.Model.", "keras.Sequential.", "keras.Variable.")


class Finder(ast.NodeVisitor):
    """Collect (what, line) of patches and private imports in one file.

    Names are followed through imports and plain assignments, scope by scope: ``kind =
    keras.layers.Dense; kind.call = f`` counts as a patch of ``keras.layers.Dense.call``. A loop
    variable over library classes counts as the class's own place: ``for kind in (keras.Model,)``.
    """

    def __init__(self):
        self.scopes = [{}]
        self.patches, self.imports, self.for_a_while = [], [], []

    def library_name(self, node):
        """Return the dotted library name an expression stands for, or None."""
        if isinstance(node, ast.Name):
            for scope in reversed(self.scopes):
                if node.id in scope:
                    return scope[node.id]
            return None
        if isinstance(node, ast.Attribute):
            base = self.library_name(node.value)
            return f"{base}.{node.attr}" if base else None
        of_type = isinstance(node, ast.Call) and ast.unparse(node.func) == "type"
        return self.library_name(node.args[0]) if of_type and len(node.args) == 1 else None

    def visit_Import(self, node):
        for alias in node.names:
            root = alias.name.split(".")[0]
            if root in LIBRARIES:
                self.scopes[-1][alias.asname or root] = alias.name if alias.asname else root
            if alias.name.startswith(PRIVATE):
                self.imports.append((alias.name, node.lineno))

    def visit_ImportFrom(self, node):
        module = node.module or ""
        if module.split(".")[0] not in LIBRARIES:
            return
        for alias in node.names:
            full = f"{module}.{alias.name}"
            self.scopes[-1][alias.asname or alias.name] = full
            if full.startswith(PRIVATE):
                self.imports.append((full, node.lineno))

    def _scoped(self, node):
        # Decorators and defaults belong to the scope around.
        self.scopes.append({})
        arguments = getattr(node, "args", None)
        for each in getattr(arguments, "args", []):
            self.scopes[-1][each.arg] = None
        self.generic_visit(node)
        self.scopes.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _scoped  # noqa: N815

    def visit_Assign(self, node):
        self.visit(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.scopes[-1][target.id] = self.library_name(node.value)
            self._target(target)

    def visit_AugAssign(self, node):
        self._target(node.target)
        self.generic_visit(node)

    def visit_Delete(self, node):
        for target in node.targets:
            self._target(target)

    def visit_For(self, node):
        if isinstance(node.target, ast.Name) and isinstance(node.iter, ast.Tuple | ast.List):
            names = [self.library_name(each) for each in node.iter.elts]
            self.scopes[-1][node.target.id] = next(filter(None, names), None)
        self.generic_visit(node)

    def visit_Call(self, node):
        if isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            base = self.library_name(node.args[0])
            if base:
                attribute = node.args[1]
                named = attribute.value if isinstance(attribute, ast.Constant) else "*"
                self._patch(f"{base}.{named}", node)
        elif isinstance(node.func, ast.Name) and node.func.id == "replaced":
            base = self.library_name(node.args[0])
            names = [f"{base}.{each.arg or '*'}" for each in node.keywords if base]
            self.for_a_while += [(name, node.lineno) for name in names]
        elif (isinstance(node.func, ast.Attribute) and node.func.attr == "import_module") or (
            isinstance(node.func, ast.Name) and node.func.id == "import_module"
        ):
            self._dynamic_import(node)
        self.generic_visit(node)

    def _dynamic_import(self, node):
        name = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
        if str(name).startswith(PRIVATE):
            self.imports.append((name, node.lineno))

    def _target(self, target):
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                self._target(each)
        elif isinstance(target, ast.Attribute):
            name = self.library_name(target)
            if name:
                self._patch(name, target)

    def _patch(self, name, node):
        if not name.startswith(_OBJECTS) or name.count(".") == 2:
            self.patches.append((name, node.lineno))


def found_in(folder):
    """Return (patches, imports, patches for a while): for each name its places as "file:line"."""
    patches, imports, for_a_while = defaultdict(list), defaultdict(list), defaultdict(list)
    for path in sorted(folder.rglob("*.py")):
        finder = Finder()
        finder.visit(ast.parse(path.read_text(encoding="utf-8")))
        each_found = (finder.patches, finder.imports, finder.for_a_while)
        for kept, found in zip((patches, imports, for_a_while), each_found, strict=True):
            for name, line in found:
                kept[name].append(f"{path.relative_to(folder)}:{line}")
    return patches, imports, for_a_while


def read_list(path):
    if not path.exists():
        return Counter()
    rows = (line.rsplit(" ", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return Counter({name: int(count) for name, count in rows})


def write_list(path, found):
    rows = [f"{name} {len(places)}\n" for name, places in sorted(found.items())]
    path.write_text("".join(rows), encoding="utf-8")


LISTS = {"library_patches.txt": 0, "private_imports.txt": 1, "patches_for_a_while.txt": 2}


@pytest.fixture(scope="module")
def found():
    return found_in(PACKAGE)


@pytest.mark.parametrize("name", LISTS)
def test_nothing_is_there_that_the_list_does_not_allow(found, name):
    allowed = read_list(HERE / name)
    new = {
        what: places
        for what, places in found[LISTS[name]].items()
        if len(places) > allowed.get(what, 0)
    }
    assert new == {}, "new: patch this model or a context, not the library; or ask for --grow"


@pytest.mark.parametrize("name", LISTS)
def test_the_list_allows_no_more_than_there_is(found, name):
    allowed = read_list(HERE / name)
    there = Counter({what: len(places) for what, places in found[LISTS[name]].items()})
    assert allowed - there == Counter(), "shrink it: python tests/guards/test_library_patches.py"


@pytest.mark.parametrize(
    ("code", "patch"),
    [
        ("import keras\nkeras.Model.fit = 1", "keras.Model.fit"),
        ("import tensorflow as tf\ntf.roll = 1", "tensorflow.roll"),
        ("def f():\n    from keras.src.trainers import trainer\n    trainer.T.x = 1",
         "keras.src.trainers.trainer.T.x"),
        ("import keras\nsetattr(keras.layers.Dense, 'call', 1)", "keras.layers.Dense.call"),
        ("import keras\nkind = keras.layers.Dense\nkind.call = 1", "keras.layers.Dense.call"),
        ("import keras\nfor kind in (keras.layers.Dense,):\n    kind.call = 1",
         "keras.layers.Dense.call"),
        ("import keras\ndel keras.layers.Dense.call", "keras.layers.Dense.call"),
        ("from keras.src import ops as o\na, o.x = 1, 2", "keras.src.ops.x"),
    ],
)  # fmt: skip
def test_each_way_to_patch_is_found(tmp_path, code, patch):
    (tmp_path / "module.py").write_text(code)
    assert list(found_in(tmp_path)[0]) == [patch]


def test_what_a_context_undoes_is_listed_apart_and_the_caller_s_objects_are_not(tmp_path):
    (tmp_path / "module.py").write_text(
        "import keras\nreplaced(keras.Model, fit=1, **others)\n"
        "def f(model, keras):\n    model.optimizer = 1\n    keras.x = 1"
    )
    patches, _, for_a_while = found_in(tmp_path)
    assert patches == {}
    assert list(for_a_while) == ["keras.Model.fit", "keras.Model.*"]


if __name__ == "__main__":
    for name, which in LISTS.items():
        now = found_in(PACKAGE)[which]
        before = read_list(HERE / name)
        grown = [what for what, places in now.items() if len(places) > before.get(what, 0)]
        if before and grown and "--grow" not in sys.argv:
            sys.exit(f"{name} would grow by {', '.join(grown)}; --grow lets it")
        write_list(HERE / name, now)
