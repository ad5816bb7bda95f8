"""What the outputs of a model mean, read off the losses that it is compiled with.

Guarantees: a loss is known by the function that it is made of, since its name is its user's own;
where nothing is known of a loss, its outputs are values.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

Kind = Literal["classes", "class scores", "yes or no", "yes or no scores", "values"]

CLASSES: tuple[Kind, Kind] = ("classes", "class scores")
YES_OR_NO: tuple[Kind, Kind] = ("yes or no", "yes or no scores")
# The function behind a loss -> what the outputs are, without and with from_logits.
_KINDS: dict[str, tuple[Kind, Kind]] = {
    "categorical_crossentropy": CLASSES,
    "categorical_focal_crossentropy": CLASSES,
    "categorical_generalized_cross_entropy": CLASSES,
    "sparse_categorical_crossentropy": CLASSES,
    "kl_divergence": CLASSES,
    "binary_crossentropy": YES_OR_NO,
    "binary_focal_crossentropy": YES_OR_NO,
}


def kind_of(loss: Any) -> Kind:
    """What one output is, by its loss."""
    import keras

    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    settings = dict(getattr(loss, "_fn_kwargs", {}))
    function = getattr(loss, "fn", loss)
    while isinstance(function, functools.partial):
        settings = {**function.keywords, **settings}
        function = function.func
    found = _KINDS.get(getattr(function, "__name__", ""))
    return "values" if found is None else found[bool(settings.get("from_logits"))]


def ranks_classes(model: Any) -> bool:
    """Whether all outputs that have a loss are scores of classes: logits have no other sign."""
    import keras

    losses = [each for each in keras.tree.flatten(getattr(model, "loss", None)) if each is not None]
    return bool(losses) and all(kind_of(each) in CLASSES for each in losses)
