"""What a training has come to at an epoch's end, in one file to go on from.

Guarantees: the file holds the epoch, the model and the optimizer together, appears whole or not at
all, and is refused where it is another model's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfopt.asynchronous.optimizers import optimizers_of
from tfopt.errors import UserError
from tfopt.files import write_atomically

_NAME = "asynchronous.npz"


def save(folder: Path, epoch: int, model: Any) -> None:
    """Writes the model's and its optimizer's variables after ``epoch`` finished epochs."""
    import numpy as np

    values = {f"v{n}": each.numpy() for n, each in enumerate(_variables(model))}
    write_atomically(folder / _NAME, lambda path: np.savez(path, epoch=epoch, **values))


def go_on(folder: Path, model: Any) -> int:
    """Puts back what is kept in the folder; how many epochs that were, 0 where there is nothing."""
    import numpy as np

    path = folder / _NAME
    if not path.exists():
        return 0
    variables = _variables(model)
    try:
        with np.load(path, allow_pickle=False) as kept:
            epoch = int(kept["epoch"])
            values = [kept[f"v{n}"] for n in range(len(kept.files) - 1)]
    except Exception as error:
        raise UserError(
            f"{path} cannot be read.",
            expected="what an earlier asynchronous training has kept",
            received=f"{type(error).__name__}: {error}",
            fix="delete the file to begin anew, or give another folder",
        ) from error
    shapes = [tuple(each.shape) for each in variables]
    if [value.shape for value in values] != shapes:
        raise UserError(
            f"{path} is another model's.",
            expected=f"{len(shapes)} variables of this model and its optimizer",
            received=f"{len(values)} variables, of other shapes",
            fix="delete the file to begin anew, or give another folder",
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)
    return epoch


def copy(model: Any, other: Any) -> None:
    """Gives ``other``, a second model of the same make, this one's variables."""
    for here, there in zip(_variables(model), _variables(other), strict=True):
        there.assign(here.numpy())


def _variables(model: Any) -> list[Any]:
    slots = (each for one in optimizers_of(model).values() for each in one.variables)
    variables = [*model.variables, *slots]
    return list({id(each): each for each in variables}.values())
