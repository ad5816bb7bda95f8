"""Prints which modules each of a user's first imports loads."""

import json
import sys
from importlib import import_module


def loaded_by(name: str) -> list[str]:
    before = set(sys.modules)
    import_module(name)
    return sorted(set(sys.modules) - before)


def kind_of(name: str) -> str:
    """What is found under a public name after the module of that name was imported."""
    package, _, last = name.partition(".")
    import_module(name)
    return type(getattr(sys.modules[package], last)).__name__


def main() -> None:
    found = {
        name: loaded_by(name) for name in ("tfopt", "tfopt.commands.cli", "tfopt.recipes.cnn_mnist")
    }
    functions = {name: kind_of(name) for name in ("tfopt.doctor", "tfopt.run")}
    sys.stdout.write(json.dumps({**found, "functions": functions}))


if __name__ == "__main__":
    main()
