"""What decides which transform could help a job: its machine, its step, its input.

Guarantees: read off a prepared job, nothing changed; a plain value that a report's maker can
judge without TensorFlow.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tfopt.data.sources import INFINITE, Kind, kind_of
from tfopt.job import Transform
from tfopt.runner import Prepared

if TYPE_CHECKING:
    import keras

Half = Literal["mixed_float16", "mixed_bfloat16"]


@dataclass(frozen=True)
class Setting:
    """A variant's circumstances.

    Attributes:
        gpus: How many TensorFlow may use.
        whole_executions: The number of steps that a ``steps_per_execution`` must divide; None
            where it need not.
        jit_compile: Whether the step is compiled by XLA.
        jit_asked: What the job, or a transform, said of it; None where the choice is Keras's.
        half: The half precision that this machine gains from, where the model is all float32.
        source: What the job's training data is.
        endless: Whether it has no end.
        examples: How many a generator yields at most; None where that is unknown, and for
            sources that tell it themselves.
        own_input: Whether the job makes its training input by a function of its own.
    """

    replicas: int
    gpus: int
    steps_per_execution: int
    whole_executions: int | None
    jit_compile: bool
    jit_asked: bool | None
    eager: bool
    half: Half | None
    source: Kind
    endless: bool
    examples: int | None
    own_input: bool


def setting_of(ready: Prepared) -> Setting:
    """Reads it off a job that is ready to train."""
    import tensorflow as tf

    job, facts, model = ready.job, ready.facts, ready.model
    owner = getattr(job.input, "__self__", None)
    return Setting(
        replicas=facts.replicas,
        gpus=len(tf.config.list_logical_devices("GPU")),
        steps_per_execution=model.steps_per_execution,
        whole_executions=job.steps_per_epoch,
        jit_compile=bool(model.jit_compile),
        jit_asked=_jit_asked(ready.asked),
        eager=bool(model.run_eagerly),
        half=_half(model, facts.replicas),
        source=kind_of(ready.data.train),
        endless=_is_endless(ready.data.train),
        examples=_examples(ready),
        own_input=job.input is not None and not isinstance(owner, Transform),
    )


def _jit_asked(arguments: Mapping[str, Any]) -> bool | None:
    """The compiled model cannot tell: Keras keeps what it made of "auto"."""
    asked = arguments.get("jit_compile")
    return None if asked in (None, "auto") else bool(asked)


def _is_endless(part: Any) -> bool:
    kind = kind_of(part)
    if kind == "pydataset":
        return part.num_batches is None
    return kind == "dataset" and int(part.cardinality()) == INFINITE


def _examples(ready: Prepared) -> int | None:
    """A generator without a pipeline has been read through once, to count its batches."""
    facts = ready.facts
    counted = kind_of(ready.data.train) == "generator" and ready.job.steps_per_epoch is None
    if not counted or facts.steps_per_epoch is None or facts.batch_size is None:
        return None
    return facts.steps_per_epoch * facts.batch_size


def _half(model: keras.Model, replicas: int) -> Half | None:
    from tfopt.transforms.precision import choose_policy

    if {layer.compute_dtype for layer in model._flatten_layers()} & {"float16", "bfloat16"}:
        return None
    chosen = choose_policy()[0]
    if chosen == "mixed_bfloat16" or (chosen == "mixed_float16" and replicas == 1):
        return chosen
    # float16 needs loss scaling, which several replicas break; Ampere and newer have the other.
    return "mixed_bfloat16" if chosen == "mixed_float16" and _has_bfloat16() else None


def _has_bfloat16() -> bool:
    import tensorflow as tf

    return all(
        tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0)) >= (8, 0)
        for gpu in tf.config.get_visible_devices("GPU")
    )
