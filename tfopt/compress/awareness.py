"""The state of quantization-aware training on a model: ranges, the step, the hooks.

Hooks replace the ``call`` of layers on their instances until they are removed. All state is in
non-trainable weights of the model, which files, callbacks and strategies treat as any weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from threading import local
from typing import Any, Literal

from tfopt import keras_internals as internals
from tfopt.compress.float_copy import scope_of_variables
from tfopt.compress.integers.fake_quant import (
    batch_range,
    fake_quantized,
    fake_quantized_kernel,
    moved_range,
    stored,
)
from tfopt.compress.integers.rounded_places import (
    FIXED_RANGES,
    Point,
    kernels_under,
    point_from_config,
)
from tfopt.compress.model_graph import find, kinds
from tfopt.hooks import Hooks

KernelPrecision = Literal["int8", "int4"]


@dataclass(frozen=True)
class LayerQuantization:
    """A layer or operation of a quantization-aware model.

    Attributes:
        path: Its path.
        kind: Its class.
        precision: The precision of its kernels; None without kernels, or if they are left alone.
        output: The current range of its result; None: not rounded, or not observed yet.
        remark: Why it is left alone, or what is left to the conversion.
    """

    path: str
    kind: str
    precision: KernelPrecision | None
    output: tuple[float, float] | None
    remark: str | None


@dataclass(frozen=True)
class AwarenessSettings:
    """The settings of :func:`tfopt.quantize_aware`."""

    bits: int = 8
    begin_step: int = 0
    freeze_batchnorm_step: int | None = None
    momentum: float = 0.99


class Awareness:
    """The points of one model with their ranges and hooks."""

    def __init__(self, model: Any, points: Sequence[Point], settings: AwarenessSettings) -> None:
        self.points = tuple(points)
        self.settings = settings
        self._model = model
        self._hooks = Hooks()
        self._variables: list[Any] = []
        self._ranges: dict[tuple[str, str], Any] = {}
        self._steps = local()  # the replicas of a strategy trace a step in different threads

    def attach(self) -> None:
        """Add the ranges to the model and set the hooks: all of it, or nothing."""
        try:
            with scope_of_variables(self._model):
                self._step = self._add("quantization_step", (), "int32", "only_first_replica")
                for point in self.points:
                    for place in _moving_places(point):
                        name = f"{point.path}/{place}".replace("/", "_")
                        self._ranges[point.path, place] = self._add(name, (2,), "float32", "mean")
            self.hook()
        except BaseException:
            self.remove()
            raise

    def hook(self) -> None:
        """Set the hooks."""
        self._hooks.replace(self._model, "train_step", self._training_step())
        for point in self.points:
            if not point.address:  # the model itself, also if no input is rounded
                self._hooks.replace(self._model, "call", self._counting(point))
                continue
            if point.acts:
                self._hook(find(self._model, point.address), point)
        if self.settings.freeze_batchnorm_step is not None:
            for layer in internals.layers_of(self._model):
                if "BatchNormalization" in kinds(layer):
                    self._hooks.replace(layer, internals.MOMENTS, partial(self._frozen, layer))

    def unhook(self) -> None:
        """Remove the hooks; ranges and step stay."""
        self._hooks.remove()

    def round_kernels(self) -> None:
        """Write the rounded values into the kernels."""
        for point in self.points:
            for kernel in kernels_under(find(self._model, point.address)) if point.kernels else ():
                kernel.variable.assign(fake_quantized_kernel(kernel, self.settings.bits))

    def remove(self) -> None:
        """Remove hooks, ranges and step."""
        self.unhook()
        for variable in self._variables:
            internals.forget_weight(self._model, variable)

    def range_of(self, point: Point, place: str = "output") -> tuple[float, float] | None:
        """Return the range of a point; None: not rounded, or not observed yet."""
        if (point.path, place) in self._ranges:
            low, high = (float(v) for v in self._ranges[point.path, place].numpy())
            return (low, high) if high > low else None
        return FIXED_RANGES.get(point.output or "") if place == "output" else None

    @property
    def step(self) -> int:
        """Return the number of training batches so far."""
        return int(self._step.numpy())

    def get_config(self) -> dict[str, Any]:
        """Return settings and points as plain data; ranges are weights."""
        return {
            "settings": asdict(self.settings),
            "points": [point.get_config() for point in self.points],
        }

    def _add(self, name: str, shape: tuple[int, ...], dtype: str, aggregation: str) -> Any:
        variable = internals.add_weight_late(
            self._model,
            name,
            shape=shape,
            dtype=dtype,
            initializer="zeros",
            trainable=False,
            autocast=False,
            aggregation=aggregation,
        )
        self._variables.append(variable)
        return variable

    def _training_step(self) -> Callable[..., Any]:
        """Return a ``train_step`` that counts the batch, and in which calls train by default.

        A custom step may call the layers instead of the model, and Keras passes ``training=True``
        only to a model whose ``call`` takes it.
        """
        plain = self._model.train_step

        def train_step(*args: Any, **kwargs: Any) -> Any:
            self._step.assign(self._step.value + 1)
            self._steps.inside = True
            try:
                return plain(*args, **kwargs)
            finally:
                self._steps.inside = False

        return train_step

    def _counting(self, point: Point) -> Callable[..., Any]:
        """Return the model's ``call`` with rounded inputs, which counts batches of custom loops."""
        plain = self._model.call

        def call(*args: Any, **kwargs: Any) -> Any:
            import keras

            if self._training() and not self._in_step():
                self._step.assign(self._step.value + 1)
            flat = keras.tree.flatten(args)
            for number in point.inputs:
                if number < len(flat) and flat[number] is not None:
                    values = keras.ops.convert_to_tensor(flat[number])
                    flat[number] = self._rounded(point, values, f"input_{number}")
            return plain(*keras.tree.pack_sequence_as(args, flat), **kwargs)

        return call

    def _hook(self, part: Any, point: Point) -> None:
        from tfopt.compress.substitution import Substitution

        plain = part.call
        kernels = kernels_under(part) if point.kernels else []

        def call(*args: Any, **kwargs: Any) -> Any:
            with Substitution(self._kernel_values(kernels)) if kernels else nullcontext() as other:
                result = plain(*args, **kwargs)
            if other is not None and other.losses:
                part.add_loss(other.losses)
            return self._rounded(point, result, "output") if point.output else result

        call.awareness = self  # type: ignore[attr-defined]
        self._hooks.replace(part, "call", call)

    def _kernel_values(self, kernels: Sequence[Any]) -> list[tuple[Any, Any]]:
        import tensorflow as tf

        def value(kernel: Any) -> Any:
            plain = stored(kernel)
            return self._if_begun(
                lambda: tf.cast(fake_quantized_kernel(kernel, self.settings.bits), plain.dtype),
                plain,
            )

        return [(kernel.variable, value(kernel)) for kernel in kernels]

    def _rounded(self, point: Point, values: Any, place: str) -> Any:
        """Round values to their range, which is observed in training."""
        import tensorflow as tf

        if not (tf.is_tensor(values) and values.dtype.is_floating):
            return values
        variable = self._ranges.get((point.path, place))
        if variable is None:
            low, high = FIXED_RANGES[str(point.output)]
            return self._if_begun(lambda: fake_quantized(values, low, high), values)
        training = self._training()
        seen = variable.value
        if training:
            observed = tf.stop_gradient(values)
            batch = batch_range(observed, positive=place == "output" and point.output == "positive")
            seen = moved_range(seen, batch, self._momentum())
            variable.assign(seen)
        low, high = tf.unstack(seen)
        rounded = self._if_begun(lambda: fake_quantized(values, low, high), values)
        # Without a range the model computes in float.
        return rounded if training else tf.where(high > low, rounded, values)

    def _momentum(self) -> Any:
        """Return the momentum of this step, lower in the first ones.

        There a training moves the ranges most. One that lags behind clips, without a gradient.
        Calls of a part of the model count no steps.
        """
        import tensorflow as tf

        step = tf.cast(self._step.value, tf.float32)
        slow = tf.constant(self.settings.momentum)
        return tf.where(step > 0, tf.minimum(slow, step / (step + 9)), slow)

    def _if_begun(self, rounded: Callable[[], Any], plain: Any) -> Any:
        """Return ``rounded()`` after ``begin_step``, ``plain`` until then."""
        import tensorflow as tf

        if not self.settings.begin_step:
            return rounded()
        begun = self._step.value > self.settings.begin_step
        return tf.cond(begun, rounded, lambda: tf.convert_to_tensor(plain))

    def _frozen(self, layer: Any, inputs: Any, mask: Any) -> Any:
        """Return the batch's moments until the freeze step, then the moving ones."""
        import tensorflow as tf

        batch = getattr(type(layer), internals.MOMENTS)(layer, inputs, mask)
        frozen = self._step.value > self.settings.freeze_batchnorm_step
        moving = (layer.moving_mean, layer.moving_variance)
        return tuple(
            tf.where(frozen, tf.cast(kept.value, now.dtype), now)
            for kept, now in zip(moving, batch, strict=True)
        )

    def _training(self) -> bool:
        training = internals.training_of_call()
        return self._in_step() if training is None else bool(training)

    def _in_step(self) -> bool:
        return getattr(self._steps, "inside", False)


def is_hooked(part: Any) -> bool:
    """Return whether a part has hooks, also of another model that shares it."""
    return hasattr(vars(part).get("call"), "awareness")


def awareness_from_config(model: Any, config: Mapping[str, Any]) -> Awareness:
    """Return the awareness of a configuration, on a built model."""
    points = [point_from_config(point) for point in config["points"]]
    return Awareness(model, points, AwarenessSettings(**config["settings"]))


def _moving_places(point: Point) -> Iterator[str]:
    yield from (f"input_{number}" for number in point.inputs)
    if point.output is not None and point.output not in FIXED_RANGES:
        yield "output"
