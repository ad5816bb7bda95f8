"""Prints which modules each of a user's first imports, and each help, loads."""

import json
import runpy
import sys
from contextlib import redirect_stdout, suppress
from importlib import import_module
from io import StringIO

# Public functions with the name of a module.
FUNCTIONS = ("tfopt.doctor", "tfopt.export", "tfopt.run", "tfopt.tune")


def loaded_by(name: str) -> list[str]:
    before = set(sys.modules)
    import_module(name)
    return sorted(set(sys.modules) - before)


def kind_of(name: str) -> str:
    """What is found under a public name after the module of that name was imported."""
    package, _, last = name.partition(".")
    import_module(name)
    return type(getattr(sys.modules[package], last)).__name__


def help_of(module: str, *arguments: str) -> dict[str, object]:
    """What a module prints when it is run with these arguments, and what is loaded by then."""
    sys.argv = [module, *arguments]
    with redirect_stdout(StringIO()) as printed, suppress(SystemExit):
        runpy.run_module(module, run_name="__main__")
    return {"printed": printed.getvalue(), "loaded": sorted(sys.modules)}


def main() -> None:
    found = {name: loaded_by(name) for name in ("tfopt", "tfopt.commands.cli")}
    # None of the modules that are run is loaded yet.
    images = ("cnn_mnist", "image_from_scratch", "image_finetuning")
    recipes = (*images, "text_transformer", "time_series", "tabular")
    helped = {name: help_of(f"tfopt.recipes.{name}", "--help") for name in recipes}
    helped["tune"] = help_of("tfopt", "tune", "--help")
    functions = {name: kind_of(name) for name in FUNCTIONS}
    sys.stdout.write(json.dumps({**found, "functions": functions, "help": helped}))


if __name__ == "__main__":
    main()
