"""What a quantized model is worth on the test part of a job, as figures and as a note.

Guarantees: a value that was not measured is left out, with the reason in the note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tfopt.compression.quantized.result import Quantized
from tfopt.errors import UserError
from tfopt.job import Trained

if TYPE_CHECKING:
    import keras


def metrics(made: Quantized, accuracy: float | None) -> dict[str, float]:
    """What was measured; a value that was not is left out."""
    found: dict[str, float | None] = {"kib": made.kib, "test_accuracy": accuracy}
    if made.parity is not None:
        found["argmax_agreement"] = made.parity.argmax_agreement
        found["max_abs_error"] = made.parity.max_abs_error
        found["relative_error"] = made.parity.relative_error
    return {name: value for name, value in found.items() if value is not None}


def measured_accuracy(made: Quantized, trained: Trained) -> tuple[float | None, str]:
    """The accuracy on the test part, or why it was not measured."""
    from tfopt.compression.examples import labelled_batches, never_ends
    from tfopt.compression.litert.runtime import accuracy

    source = trained.data.test
    if source is None:
        return None, "the job has no test part"
    if len(made.outputs) > 1:
        return None, "the model has several outputs"
    if never_ends(source):
        return None, "the test part repeats without end"
    predict, ports = _predictor(made, trained.model, source)
    try:
        return accuracy(labelled_batches(source, ports), lambda x: predict(list(x))), ""
    except UserError as error:
        return None, error.what


def _predictor(made: Quantized, model: keras.Model, source: Any) -> tuple[Any, Any]:
    """One call for a flat list of inputs, kept over all batches."""
    from tfopt.compression.examples import first_inputs
    from tfopt.compression.litert.runtime import LitertPredictor
    from tfopt.compression.ports import ports_of

    ports = ports_of(model, first_inputs(source))
    if made.model is None:
        litert = LitertPredictor(made.content, inputs=made.inputs, outputs=made.outputs)
        return (lambda x: litert(x)[0]), ports
    quantized = made.model

    def predict(x: list[Any]) -> Any:
        import keras

        result = quantized(ports.pack(x), training=False)
        return keras.ops.convert_to_numpy(keras.tree.flatten(result)[0])

    return predict, ports


def tell(made: Quantized, accuracy: float | None, reason: str) -> str:
    """One phrase for the effect."""
    measured = f"{accuracy:.2%}" if accuracy is not None else f"not measured ({reason})"
    return f"{made}; test accuracy {measured}"
