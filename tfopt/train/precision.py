"""Train in mixed precision, with everything delicate left in float32.

Output layers and the loss compute in float32, and weights keep their values. A layer whose policy
is not plain float32 (integer, string, quantized, chosen by its author), or whose class would not
pass the policy on to its inner layers, is left as it is and named in the effect.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.errors import UserError, first_line, require_switch
from tfopt.job.from_model import compile_factory, state_of
from tfopt.job.parts import Effect
from tfopt.job.rebuild import ONE_AT_A_TIME
from tfopt.job.transform import Run, Transform
from tfopt.keras_internals import layers_inside, layers_of

if TYPE_CHECKING:
    import keras

# The policies that may be replaced; any other was chosen by the layer's author.
PLAIN = ("float32", "mixed_float16", "mixed_bfloat16")


class Tally:
    """A count of what was retyped and what was left alone."""

    def __init__(self) -> None:
        self.changed = 0
        self.outputs: list[str] = []
        self.left: list[str] = []

    def note(self, policy: str) -> str:
        """Return the tally in words."""
        parts = [f"{self.changed} layers in {policy}"] if self.changed else []
        if self.outputs:
            parts.append(f"output {', '.join(self.outputs)} in float32")
        if self.left:
            parts.append(f"left as they were: {', '.join(self.left)}")
        return "; ".join(parts)


def retyped_config(
    item: dict[str, Any], policy: str, is_output: bool, tally: Tally
) -> dict[str, Any]:
    """Return a serialised layer or model with its policy replaced, outputs kept in float32."""
    config = dict(item.get("config") or {})
    layers = config.get("layers")
    if isinstance(layers, list):
        outputs = _output_names(config) if is_output else frozenset()
        config["layers"] = [
            retyped_config(layer, policy, _layer_name(layer) in outputs, tally) for layer in layers
        ]
    elif item.get("class_name") != "InputLayer":
        target = "float32" if is_output else policy
        obstacle = None if is_output else _obstacle(item, policy)
        if obstacle is not None:
            tally.left.append(f"{_layer_name(item)} ({item['class_name']} {obstacle})")
            return item
        _set_policy(item, config, target, is_output, tally)
        # A wrapper's or RNN's inner layers compute for the same output.
        inner = Tally()
        config = {k: _retyped_inner(v, policy, is_output, inner) for k, v in config.items()}
        tally.left += inner.left
    return {**item, "config": config}


def _retyped_inner(value: Any, policy: str, is_output: bool, tally: Tally) -> Any:
    """Return an entry of a layer's configuration, with the layers that it describes retyped."""
    if isinstance(value, list):
        return [_retyped_inner(part, policy, is_output, tally) for part in value]
    if isinstance(value, dict) and _is_layer(value):
        return retyped_config(value, policy, is_output, tally)
    return value


def _obstacle(item: dict[str, Any], policy: str) -> str | None:
    """Return why a class of the user's own cannot take a policy; Keras's own classes can.

    The layers that it makes for itself may not follow: half-precision inputs would then meet
    float32 layers inside, which fails or gains nothing. Only an instance shows that.
    """
    if str(item.get("module")).split(".")[0] == "keras":
        return None
    if "dtype" not in item["config"]:
        return "has no dtype in its get_config()"
    if _policy_name(item["config"]["dtype"]) not in PLAIN:
        return None  # it keeps its policy in any case, and is named with it
    import keras

    trial = copy.deepcopy(item)
    trial["config"]["dtype"] = policy
    with ONE_AT_A_TIME, warnings.catch_warnings():
        # The rebuilding itself repeats whatever there is to warn of.
        warnings.simplefilter("ignore")
        try:
            layer = keras.saving.deserialize_keras_object(trial, safe_mode=False)
        except Exception:
            return f"does not build in {policy}"
    # A container computes nothing itself; only what it holds has to follow.
    left = [
        inner.name
        for inner in layers_inside(layer)
        if inner.dtype_policy.name in set(PLAIN) - {policy} and not layers_inside(inner)
    ]
    return f"makes layers without passing its dtype on: {', '.join(left)}" if left else None


def _set_policy(
    item: dict[str, Any], config: dict[str, Any], target: str, is_output: bool, tally: Tally
) -> None:
    name = str(config.get("name", item.get("class_name")))
    current = _policy_name(config.get("dtype"))
    if current not in PLAIN:
        if current is not None:
            tally.left.append(f"{name} ({current})")
        return
    config["dtype"] = target
    if is_output:
        tally.outputs.append(name)
    else:
        tally.changed += 1


def _policy_name(dtype: Any) -> str | None:
    if isinstance(dtype, dict):
        return str(dtype.get("config", {}).get("name"))
    return None if dtype is None else str(dtype)


def _is_layer(value: dict[str, Any]) -> bool:
    config = value.get("config")
    return (
        "class_name" in value
        and isinstance(config, dict)
        and "dtype" in config
        and ("name" in config and "trainable" in config)
    )


def _layer_name(layer: dict[str, Any]) -> str:
    return str(layer.get("name") or layer.get("config", {}).get("name"))


def _output_names(config: dict[str, Any]) -> frozenset[str]:
    """Return the layers whose results are the model's: a Sequential's last one, or those named.

    An operation (``a + b``, ``keras.ops.softmax(x)``) has no policy: it computes in that of the
    layers before it, which thus belong to the output too.
    """
    if "output_layers" not in config:
        return frozenset({_layer_name(config["layers"][-1])}) if config["layers"] else frozenset()
    by_name = {_layer_name(layer): layer for layer in config["layers"]}
    names: set[str] = set()
    waiting = list(_nodes(config["output_layers"]))
    while waiting:
        name = waiting.pop()
        if name in names:
            continue
        names.add(name)
        settings = by_name[name]["config"]
        if "dtype" not in settings and "layers" not in settings:
            waiting += _nodes(by_name[name]["inbound_nodes"])
    return frozenset(names)


def _nodes(value: Any) -> Iterator[str]:
    """Yield the layers named in the part of a configuration that says what comes from where."""
    if isinstance(value, list | tuple) and len(value) == 3 and isinstance(value[0], str):
        yield value[0]
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _nodes(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _nodes(part)


Policy = Literal["auto", "float32", "mixed_float16", "mixed_bfloat16"]
POLICIES = ("auto", *PLAIN)
_TENSOR_CORES = (7, 0)
_TF32_SINCE = (8, 0)


def mixed_precision(model: keras.Model, policy: Policy = "auto") -> keras.Model:
    """Return a new model with the same weights under ``policy``; the given one is unchanged.

    A compiled model comes back compiled, optimizer state included. "auto" is mixed_float16 where
    all GPUs have tensor cores for it, else float32; with nothing to change, the given model itself
    comes back.

    Args:
        model: A built Keras 3 model, compiled or not.
        policy: "auto", "mixed_float16", "mixed_bfloat16" or "float32".

    Raises:
        UserError: The policy is unknown, or a layer of the model cannot be made again from its
            ``get_config()``.

    Example:
        model = tfopt.mixed_precision(model, "mixed_bfloat16")
    """
    _validate(policy)
    chosen = choose_policy()[0] if policy == "auto" else policy
    retyped, effect = _retype(model, chosen)
    if effect.acted and model.compiled:
        arguments = compile_factory(model)()
        if chosen == "mixed_float16":
            arguments["optimizer"] = _with_loss_scaling(arguments["optimizer"])
        retyped.compile(**arguments)
        state_of(model)(retyped)
    return retyped


def choose_policy() -> tuple[Policy, str]:
    """Return the policy that "auto" takes on this machine, and why.

    On a CPU that is float32, whatever arithmetic it has: bfloat16 makes some models slower there.
    """
    capabilities = gpu_capabilities()
    if not capabilities:
        return "float32", "no GPU; half precision on a CPU is tried by `tfopt tune`, not assumed"
    least = ".".join(map(str, min(capabilities)))
    if min(capabilities) >= _TENSOR_CORES:
        return "mixed_float16", f"GPU compute capability {least} has float16 tensor cores"
    return "float32", f"GPU compute capability {least} is below 7.0: no float16 tensor cores"


def half_precision() -> Policy | None:
    """Return the half precision that this machine has arithmetic for, which a model may gain from.

    On a CPU that is bfloat16 where it has AVX512-BF16 or AMX-BF16.
    """
    chosen, _ = choose_policy()
    if chosen != "float32":
        return chosen
    cpu_has_it = not gpu_capabilities() and _cpu_flags() & {"amx_bf16", "avx512_bf16"}
    return "mixed_bfloat16" if cpu_has_it else None


@dataclass(frozen=True, repr=False)
class MixedPrecision(Transform):
    """Run the layers in half precision; ``tf32`` switches TensorFloat-32 for the float32 rest.

    Example:
        outcome = run(job, MixedPrecision("mixed_bfloat16"))

    Attributes:
        policy: "auto", "mixed_float16", "mixed_bfloat16" or "float32".
        tf32: Whether float32 products may round to TF32; None keeps TensorFlow's setting.
    """

    policy: Policy = "auto"
    tf32: bool | None = None

    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _validate(self.policy)
        if self.tf32 is not None:
            expected = "True, False or None (leave as it is)"
            require_switch("MixedPrecision.tf32", self.tf32, expected)

    @contextmanager
    def scope(self, run: Run) -> Iterator[None]:
        """Switch TensorFloat-32 where that is asked for, and back afterwards."""
        if self.tf32 is None:
            yield
            return
        import tensorflow as tf

        before = tf.config.experimental.tensor_float_32_execution_enabled()
        tf.config.experimental.enable_tensor_float_32_execution(self.tf32)
        effect = _tf32_effect(self.tf32)
        run.note(effect.note, acted=effect.acted)
        try:
            yield
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(before)

    def rebuild(self, run: Run, model: keras.Model) -> keras.Model:
        policy, why = self.policy, ""
        if policy == "auto":
            policy, reason = choose_policy()
            why = f"auto chose {policy}: {reason}; "
        retyped, effect = _retype(model, policy)
        run.note(why + effect.note, acted=effect.acted)
        return retyped

    def compile(self, run: Run, arguments: dict[str, Any]) -> dict[str, Any]:
        """Wrap the optimizer for float16 explicitly, so that a saved model keeps its scaling.

        compile() would wrap it by the model's policy, which a saved Functional model forgets.
        """
        if (choose_policy()[0] if self.policy == "auto" else self.policy) != "mixed_float16":
            return arguments
        # It serves the retyped layers: without them the policy has done nothing.
        run.note("dynamic loss scaling", acted=False)
        return {**arguments, "optimizer": _with_loss_scaling(arguments["optimizer"])}


def _with_loss_scaling(optimizer: Any) -> keras.optimizers.Optimizer:
    import keras

    optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")


def gpu_capabilities() -> list[tuple[int, int]]:
    """Return the compute capability of each visible GPU."""
    import tensorflow as tf

    return [
        tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
        for gpu in tf.config.get_visible_devices("GPU")
    ]


def _tf32_effect(on: bool) -> Effect:
    switch = "on" if on else "off"
    if any(capability >= _TF32_SINCE for capability in gpu_capabilities()):
        return Effect(True, f"TF32 {switch}")
    return Effect(False, f"TF32 {switch}: no effect, no visible GPU has it (Ampere or newer)")


def _validate(policy: object) -> None:
    if policy not in POLICIES:
        raise UserError(
            "The precision policy is unknown.",
            expected=" | ".join(POLICIES),
            received=repr(policy),
            fix="a pure float16 policy trains badly; mixed_float16 keeps float32 weights",
        )


def _cpu_flags() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return frozenset()
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    return frozenset(next(lines, "").split())


def _retype(model: keras.Model, policy: str) -> tuple[keras.Model, Effect]:
    from tfopt.compress.kernels import rebuilder
    from tfopt.job.rebuild import rebuild, require_built_keras3

    require_built_keras3(model)
    tally = Tally()
    # A model built under a policy that was global then shows it by its layers only.
    present = {layer.dtype_policy.name for layer in layers_of(model)}
    if policy == "float32" and present == {policy}:
        return model, Effect(False, "the model is float32 already")
    maker = rebuilder(model, None)
    if maker is not None:
        return model, Effect(
            False,
            f"{maker} makes its layers itself, and which of them give the output cannot be seen "
            f"from outside: give the inner ones dtype={policy!r} there",
        )
    try:
        retyped = rebuild(model, lambda config: retyped_config(config, policy, True, tally))
    except UserError as error:
        raise UserError(
            f"{model.name!r} cannot be made again under {policy}, which it needs.",
            expected="layers that round-trip through get_config() and from_config()",
            received=", ".join(_not_made_again(model)) or error.what,
            fix=f"keras.config.set_dtype_policy({policy!r}), build the model anew, and give that "
            "set_weights(model.get_weights())",
        ) from error
    if retyped.dtype_policy.name != policy:
        # Sequential and Functional models do not serialise a policy of their own, and compile()
        # reads the model's to decide on loss scaling.
        retyped.dtype_policy = policy
    if not tally.changed:
        return model, Effect(False, f"nothing was changed: {tally.note(policy)}")
    return retyped, Effect(True, tally.note(policy))


def _not_made_again(model: keras.Model) -> Iterator[str]:
    """Yield the layers that cannot be made by their configurations."""
    import keras

    for layer in model.layers:
        try:
            with keras.saving.custom_object_scope({type(layer).__name__: type(layer)}):
                keras.saving.deserialize_keras_object(
                    keras.saving.serialize_keras_object(layer), safe_mode=False
                )
        except Exception as error:
            yield f"{type(layer).__name__} {layer.name!r} ({first_line(error)})"
