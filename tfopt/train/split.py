"""Train a model that is larger than one GPU: split its layers over several devices.

Activations cross devices where the graph is cut, and so do their gradients. The devices work one
after the other: this adds memory, not speed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from tfopt.data.host_memory import MIB
from tfopt.errors import UserError, hashable, require_count
from tfopt.hooks import ModelHooks, replaced
from tfopt.job.compiled_steps import forget_compiled_steps
from tfopt.job.model_checks import require_built_keras3
from tfopt.job.transform import Run, Transform
from tfopt.keras_internals import WEIGHT_DECAY, auto_jit_compile, graph_of, store, without_scaling
from tfopt.report.format import count
from tfopt.train.memory_estimate import bytes_of
from tfopt.train.out_of_memory import room_on

if TYPE_CHECKING:
    import keras

_XLA = "jit_compile=True compiles by XLA, which runs a step on one device"


def split(
    model: keras.Model, devices: Sequence[str] | None = None, *, batch_size: int = 32
) -> keras.Model:
    """Spread the layers of a built model over several devices, in place, and return that model.

    In the order of the graph the layers become one part per device, such that the largest part is
    as small as possible, by its activations and by its weights with their gradients and two
    optimizer variables each. A part runs forward, backward and its update on its device, the loss
    on the last one. A layer that is called twice is on the device of its first call. A model that
    is loaded, cloned or rebuilt is a plain one. XLA, which runs a step on one device, is off.

    Args:
        model: A built Sequential or Functional model, built outside of strategies, whose optimizer
            has no variables yet. If its weights alone exceed a GPU's memory, build it in
            ``with tf.device("CPU:0")``.
        devices: Names such as ("GPU:0", "GPU:1"). None: all GPUs, or without one all logical CPU
            devices. (): undo it; the weights stay on their devices.
        batch_size: The examples of a step, by which activations are estimated.

    Raises:
        UserError: The model is neither Sequential nor Functional, there are fewer than two devices,
            or a layer is larger than its device.

    Functions that return a new model, such as ``mixed_precision``, return one that is not split:
    call this one after them.

    Example:
        tfopt.split(model, batch_size=64)
        model.compile("adam", "mse")
        model.fit(x, y, batch_size=64)
    """
    plan = None
    if devices is None or len(devices):
        plan = _plan(model, devices, require_count("split(batch_size)", batch_size))
    _SplitHooks.take_off(model)
    if plan is not None:
        _SplitHooks(model, plan).put_on(model)
    forget_compiled_steps(model)
    return model


@dataclass(frozen=True)
class DevicePart:
    """The layers of a model on one device, with their memory in MiB."""

    device: str
    layers: tuple[Any, ...]
    weights_mib: float
    activations_mib: float

    def __str__(self) -> str:
        ends = dict.fromkeys((self.layers[0].name, self.layers[-1].name))
        return (
            f"{self.device} has {' to '.join(ends)} ({count(len(self.layers), 'layer')}): "
            f"{self.weights_mib:,.1f} MiB of weights, {self.activations_mib:,.1f} of activations"
        )


def device_parts(model: Any) -> tuple[DevicePart, ...]:
    """Return the parts of a split model; empty for any other model."""
    placed = _SplitHooks.of(model)
    return () if placed is None else placed.parts


def _plan(model: Any, names: Sequence[str] | None, batch_size: int) -> tuple[DevicePart, ...]:
    """Return the parts of a model; raise if it cannot be split, before anything is changed."""
    from tfopt.train.graph_parts import activations_of, leaves_of

    require_built_keras3(model)
    devices, graph = _devices(names), _graph(model)
    _require_one_way(model)
    leaves = leaves_of(graph)
    if len(leaves) < len(devices):
        raise _cannot(model, f"it has {count(len(leaves), 'layer')} for {len(devices)} devices")
    activations = activations_of(graph, batch_size)
    weights = [bytes_of(_variables(leaf)) for leaf in leaves]
    gradients = [bytes_of(getattr(leaf, "trainable_variables", ())) for leaf in leaves]
    taken = [w + 3 * g + a for w, g, a in zip(weights, gradients, activations, strict=True)]
    parts = []
    for device, (start, end) in zip(devices, pairwise(_cuts(taken, len(devices))), strict=True):
        room, words = room_on(device)
        for place in range(start, end):
            if room is not None and (weights[place] + gradients[place]) / MIB > room:
                name = leaves[place].name
                raise _cannot(model, f"weights and gradients of {name!r} are more than {words}")
        sizes = sum(weights[start:end]) / MIB, sum(activations[start:end]) / MIB
        parts.append(DevicePart(device, tuple(leaves[start:end]), *sizes))
    return tuple(parts)


def _devices(names: Sequence[str] | None) -> list[str]:
    """Return the names of existing devices; raise for fewer than two."""
    existing = [*_logical("GPU"), *_logical("CPU")]
    requested = _default_devices() if names is None else names
    chosen = [str(name).upper().split("DEVICE:")[-1].lstrip("/") for name in requested]
    if isinstance(names, str) or len(chosen) < 2 or len({*chosen} & {*existing}) != len(chosen):
        raise UserError(
            "split() needs at least two existing devices.",
            expected=f"two or more of {', '.join(existing)}",
            received=repr(requested),
            fix="on one card tfopt.remat(model) and tfopt.accumulate(model, steps) save memory",
        )
    return chosen


def _default_devices() -> list[str]:
    return _logical("GPU") or _logical("CPU")


def _logical(kind: str) -> list[str]:
    import tensorflow as tf

    return [device.name.removeprefix("/device:") for device in tf.config.list_logical_devices(kind)]


def _graph(model: Any) -> Any:
    graph = graph_of(model)
    if graph is None:
        raise _cannot(model, "it is a subclassed model, without a graph of its layers")
    return graph


def _require_one_way(model: Any) -> None:
    """Raise for a model under a strategy, compiled by XLA, or with optimizer variables."""
    import tensorflow as tf

    now = tf.distribute.get_strategy()
    if tf.distribute.has_strategy() or model.distribute_strategy is not now:
        raise _cannot(model, "it is under a strategy, which mirrors it on all devices")
    if model.compiled and model.jit_compile and not auto_jit_compile(model):
        raise _cannot(model, _XLA)
    if getattr(getattr(model, "optimizer", None), "built", False):
        raise _cannot(model, "its optimizer has variables already: split it before fit()")


def _cannot(model: Any, why: str) -> UserError:
    return UserError(
        f"{model.name!r} cannot be split: {why}.",
        expected="a Sequential or Functional model of at least as many layers as devices, each "
        "smaller than its device, without a strategy, XLA or variables of an optimizer",
        received=f"{type(model).__name__} {model.name!r}",
    )


def _cuts(sizes: Sequence[int], parts: int) -> tuple[int, ...]:
    """Return the bounds of parts such that the largest part is as small as possible."""
    sums = [0, *accumulate(sizes)]
    best: dict[int, tuple[int, tuple[int, ...]]]
    best = {end: (sums[end], (0, end)) for end in range(1, len(sums))}
    for part in range(1, parts):
        best = {
            end: min(
                (max(best[start][0], sums[end] - sums[start]), (*best[start][1], end))
                for start in range(part, end)
            )
            for end in range(part + 1, len(sums))
        }
    return best[len(sizes)][1]


class _SplitHooks(ModelHooks):
    """The hooks of a split model and its optimizers."""

    attribute = "_split"

    def __init__(self, model: Any, parts: tuple[DevicePart, ...]) -> None:
        from tfopt.train.graph_parts import run_on

        super().__init__()
        self.parts = parts
        placed = [(leaf, part.device) for part in parts for leaf in part.layers]
        device_of = {id(leaf): device for leaf, device in placed}
        # A variable shared by two layers is on the device of the first.
        homes = {id(v): (v, device) for x, device in placed[::-1] for v in _variables(x)}
        for variable, device in homes.values():
            _move(variable, device)
        run_on(_graph(model), device_of, self)
        for step in ("train_step", "test_step"):
            self.replace(model, step, _on(parts[-1].device, getattr(model, step)))
        self._undo.enter_context(replaced(model, supports_jit=False))  # by which "auto" decides
        plain = model.compile

        def compile(*args: Any, **settings: Any) -> None:
            if settings.get("jit_compile") is True:
                raise _cannot(model, _XLA)
            plain(*args, **settings)
            self._place_updates(model.optimizer)

        self.replace(model, "compile", compile)
        if model.compiled:
            if model.jit_compile:
                message = f"XLA is off for {model.name!r}, which runs on several devices."
                warnings.warn(message, RuntimeWarning, stacklevel=3)
            model.jit_compile = False
            self._place_updates(model.optimizer)

    def _place_updates(self, optimizer: Any) -> None:
        """Make the optimizer create its variables and update on the device of the weight."""
        inner = without_scaling(optimizer)
        if inner is None:  # compiled without an optimizer, for evaluate()
            return
        for name in ("add_variable_from_reference", "update_step"):
            self.replace(inner, name, _on(None, getattr(inner, name)))
        decay = _on(None, getattr(inner, WEIGHT_DECAY))

        def apply_weight_decay(variables: Sequence[Any]) -> None:
            for variable in variables:
                decay([variable])

        self.replace(inner, WEIGHT_DECAY, apply_weight_decay)


def _on(device: str | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs on a device; None: on that of its first variable."""
    import keras
    import tensorflow as tf

    def inside(*args: Any, **kwargs: Any) -> Any:
        leaves = () if device else keras.tree.flatten((args, kwargs))
        with tf.device(device or next(x for x in leaves if hasattr(x, "handle")).handle.device):
            return function(*args, **kwargs)

    return inside


def _variables(operation: Any) -> list[Any]:
    return getattr(operation, "variables", [])


def _move(variable: Any, device: str) -> None:
    """Move a Keras variable to a device."""
    import tensorflow as tf

    old, names = variable.value, ("trainable", "aggregation", "synchronization")
    with tf.device(device):
        settings = {name: getattr(old, name) for name in names}
        store(variable, tf.Variable(old, name=variable.name, **settings))


@dataclass(frozen=True, repr=False)
class Split(Transform):
    """Train a model that is larger than one GPU, its layers spread over several devices.

    Example:
        outcome = run(job, Split(("GPU:0", "GPU:1")))

    Attributes:
        devices: Names such as "GPU:0"; None: all GPUs, or without one all logical CPU devices.
    """

    spreads = True
    devices: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", hashable(self.devices))

    def attach(self, run: Run, model: Any) -> None:
        if self.devices is None and len(_default_devices()) < 2:
            run.note(f"not split: {_default_devices()[0]} is the only device", acted=False)
            return
        split(model, self.devices, batch_size=run.facts.batch_size or 32)
        run.note("; ".join([*map(str, device_parts(model)), "XLA is off"]))
