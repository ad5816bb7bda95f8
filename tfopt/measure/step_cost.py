"""Count what a training step computes and moves, without training one.

Forward, backward, update and metrics are counted at the batch that ``fit`` gets, for one replica
and one step; what could not be counted is named in the note. Weights, state and seeds stay as they
are; variables that ``fit`` would make are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfopt.data.fit_data import Arrays, read_source
from tfopt.errors import UserError, first_line
from tfopt.measure.graph_cost import GraphCost, graph_cost
from tfopt.report.bench_report import Ceilings, Roofline
from tfopt.report.strict import AboveZero, FromZero

if TYPE_CHECKING:
    from tfopt.run import Prepared

# A step's arithmetic and time under the machine's ceiling.


def roofline(cost: StepCost, step_ms: float, ceilings: Ceilings, basis: str) -> Roofline:
    """Return how much of what the machine can do the step reaches.

    Args:
        cost: Of one step on one replica, that is on one device.
        step_ms: Time of the step; ``basis`` says which.
        ceilings: Of that device, in the dtype of ``cost``.
        basis: Such as "resident step less the host's part".
    """
    achieved = cost.gflop_per_step / step_ms * 1000
    parts = [cost.note]
    if cost.dtype != ceilings.dtype:
        parts.append(f"the products are in {cost.dtype}, the ceiling is that of {ceilings.dtype}")
    if achieved > ceilings.gflops:
        parts.append(
            "faster than the largest product measured: a busy machine while the ceilings were "
            "measured, or operations counted that XLA or TensorFlow had no need to run"
        )
    return Roofline(
        gflop_per_step=cost.gflop_per_step,
        source=cost.source,
        gflops=achieved,
        utilisation=achieved / ceilings.gflops,
        basis=basis,
        ceilings=ceilings,
        note="; ".join(part for part in parts if part),
    )


_GIGA = 1e9
_GIB = 1024**3
_NAMED = 8


@dataclass(frozen=True)
class StepCost:
    """The work of one training step on one replica.

    Attributes:
        gflop_per_step: Floating point operations, in 10^9.
        product_gflop: Of these, matrix products and convolutions.
        gib_per_step: Read and written, if each operation ran by itself and nothing was cached.
        source: What was counted, and how.
        dtype: In which most of the products are computed: which ceiling is the step's.
        note: What the counts leave out, and what they assume.
    """

    gflop_per_step: AboveZero
    product_gflop: FromZero
    gib_per_step: AboveZero
    source: str
    dtype: str
    note: str


def step_cost(ready: Prepared) -> StepCost | str:
    """Return the cost of this training's step, or why it is not known."""
    reason = _own_training_loop(ready.model)
    if reason is not None:
        return reason
    try:
        specs, notes = _batch_specs(ready)
        function = _traced(ready, specs)
    except UserError as error:
        return f"the step's input cannot be read: {error.what}"
    # Whatever the user's own step raises when traced.
    except Exception as error:
        return f"the step cannot be traced: {type(error).__name__}: {first_line(error)}"
    counted = graph_cost(function)
    if counted.flops == 0:
        return "the step's graph holds no floating point operation that can be counted"
    replicas = ready.facts.replicas
    if replicas > 1:
        notes.append(f"one of {replicas} replicas; the exchange between them is not counted")
    return StepCost(
        gflop_per_step=counted.flops / replicas / _GIGA,
        product_gflop=sum(counted.products.values()) / replicas / _GIGA,
        gib_per_step=counted.moved_bytes / replicas / _GIB,
        source="the TensorFlow graph of the step, by XLA's rules",
        dtype=_dtype(counted),
        note="; ".join([*notes, *_left_out(counted)]),
    )


def _own_training_loop(model: Any) -> str | None:
    import keras

    for name in ("fit", "make_train_function"):
        if getattr(type(model), name) is not getattr(keras.Model, name):
            return f"{type(model).__name__} has a {name} of its own: the step is not known"
    return None


def _batch_specs(ready: Prepared) -> tuple[tuple[Any, ...], list[str]]:
    """Return one replica's batch as ``train_step`` gets it, every dimension fixed."""
    import tensorflow as tf

    source = read_source(ready.train_input)
    batch, replicas, notes = ready.facts.batch_size, ready.facts.replicas, []
    if isinstance(source, Arrays):
        batch = min(batch or source.examples, source.examples)
        given = tf.nest.map_structure(
            lambda leaf: tf.TensorSpec((None, *leaf.shape[1:]), leaf.dtype), source.structure
        )
    else:
        given = source.dataset.element_spec
    structure = tf.nest.map_structure(lambda leaf: _of_batch(leaf, batch), given)
    if not all(_is_fixed(leaf) for leaf in tf.nest.flatten(structure)):
        assert not isinstance(source, Arrays)
        structure = tf.nest.map_structure(tf.type_spec_from_value, source.first)
        notes.append("counted for the shapes of the first batch")
    structure = tf.nest.map_structure(lambda leaf: _share(leaf, replicas), structure)
    return (structure if isinstance(structure, tuple) else (structure,)), notes


def _of_batch(spec: Any, batch: int | None) -> Any:
    """Return the same of this many examples, where the spec itself leaves that open."""
    import tensorflow as tf

    if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank or spec.shape[0] is not None:
        return spec
    return tf.TensorSpec((batch, *spec.shape[1:]), spec.dtype)


def _is_fixed(spec: Any) -> bool:
    shape = getattr(spec, "shape", None)
    return shape is not None and bool(shape.is_fully_defined())


def _share(spec: Any, replicas: int) -> Any:
    import tensorflow as tf

    if replicas == 1 or not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
        return spec
    return tf.TensorSpec((spec.shape[0] // replicas, *spec.shape[1:]), spec.dtype)


def _traced(ready: Prepared, specs: tuple[Any, ...]) -> Any:
    """Return the step of this batch, traced."""
    import tensorflow as tf

    model = ready.model
    if model._distribute_strategy is not None:
        # As fit does: under a strategy, variables cannot be made while the step is traced.
        with model.distribute_strategy.scope():
            model._symbolic_build(data_batch=specs)

    @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
    def on_batch(*data: Any) -> Any:
        return model.distribute_strategy.run(model.train_step, args=(data,))

    return tf.function(on_batch, jit_compile=bool(model.jit_compile)).get_concrete_function(*specs)


def _dtype(counted: GraphCost) -> str:
    import keras

    if not counted.products:
        return str(keras.config.floatx())
    return max(counted.products, key=counted.products.__getitem__)


def _left_out(counted: GraphCost) -> list[str]:
    parts = [
        what if times == 1 else f"{what} ({times} times)"
        for what, times in counted.left_out.most_common()
    ]
    if not parts:
        return []
    if len(parts) > _NAMED:
        parts = [*parts[:_NAMED], f"{len(parts) - _NAMED} more kinds"]
    return ["not counted: " + ", ".join(parts)]
