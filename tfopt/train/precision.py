"""Train in mixed precision, with output layers and the loss in float32.

Weights keep their values. A layer whose policy is not a plain one (integer, string, quantized,
chosen by its author), or whose class does not pass the policy on to its inner layers, is left
unchanged and named in the effect.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tfopt.compress.kernels import rebuilder
from tfopt.errors import UserError, require_switch
from tfopt.job.cgroup import cpu_flags
from tfopt.job.compiled_steps import ONE_AT_A_TIME
from tfopt.job.from_model import compile_factory, state_of
from tfopt.job.model_checks import require_built_keras3
from tfopt.job.parts import Effect
from tfopt.job.plain_values import did_you_mean
from tfopt.job.rebuild import blueprint, custom_objects
from tfopt.job.transform import Run, Transform
from tfopt.keras_internals import layers_inside, layers_of, nodes_of
from tfopt.report.format import count

if TYPE_CHECKING:
    import keras

# The policies that may be replaced; any other was chosen by the layer's author.
PLAIN = ("float32", "mixed_float16", "mixed_bfloat16")
# Keras's layers that refuse bfloat16 when they are called
_REFUSING = ("STFTSpectrogram",)


class Tally:
    """The layers that were retyped, and those that were left unchanged."""

    def __init__(self) -> None:
        self.changed = 0
        self.outputs: list[str] = []
        self.left: list[str] = []
        self.obstacles: list[str] = []

    def note(self, policy: str) -> str:
        """Return the tally as a note."""
        parts = [f"{count(self.changed, 'layer')} in {policy}"] if self.changed else []
        if self.outputs:
            parts.append(f"output {', '.join(self.outputs)} in float32")
        if self.left or self.obstacles:
            parts.append(f"unchanged: {', '.join(self.left + self.obstacles)}")
        return "; ".join(parts)


def set_policies(layer: Any, policy: str, is_output: bool, tally: Tally) -> None:
    """Set the policy of a layer or model and of all layers in it, outputs to float32."""
    import keras

    if isinstance(layer, keras.layers.InputLayer):
        return
    if isinstance(layer, keras.Model) and rebuilder(layer, None) is None:
        outputs = _output_layers(layer) if is_output else []
        for inner in layer.layers:
            set_policies(inner, policy, any(inner is output for output in outputs), tally)
        return
    current = layer.dtype_policy.name
    if current not in PLAIN:
        tally.left.append(f"{layer.name} ({current})")
        return
    # Keras adds the penalty to the loss, which is float32, without a cast.
    penalised = layer.activity_regularizer is not None and policy != "float32"
    exact, kind = is_output or penalised, type(layer)
    is_of_keras = kind.__module__.split(".")[0] == "keras" and kind.__name__ not in _REFUSING
    if exact or is_of_keras:
        layer.dtype_policy = "float32" if exact else policy
        # The inner layers of a wrapper or RNN compute the same output.
        inside = Tally()
        for inner in layers_inside(layer, recursive=False):
            set_policies(inner, policy, exact, inside)
        tally.left += inside.left
        tally.obstacles += inside.obstacles
    else:
        before = _plain_policies(layer)
        for inner, _ in before:
            inner.dtype_policy = policy
        obstacle = _obstacle(layer, policy)
        if obstacle is not None:
            _restore(before)
            tally.obstacles.append(f"{layer.name} ({kind.__name__} {obstacle})")
            return
    if is_output:
        tally.outputs.append(layer.name)
    elif penalised:
        tally.left.append(f"{layer.name} (float32, for its activity regularizer)")
    else:
        tally.changed += 1


def _plain_policies(layer: Any) -> list[tuple[Any, Any]]:
    """Return a layer and those in it that have a plain policy, each with its policy."""
    policies = [(inner, inner.dtype_policy) for inner in layers_of(layer)]
    return [(inner, policy) for inner, policy in policies if policy.name in PLAIN]


def _restore(policies: list[tuple[Any, Any]]) -> None:
    for layer, policy in policies:
        layer.dtype_policy = policy


def _obstacle(layer: Any, policy: str) -> str | None:
    """Return why a layer of a custom class cannot take the policy that it has been set to, or None.

    Inner layers that it creates may not follow: half-precision inputs would meet float32 layers,
    which fails or gains nothing. Operations such as ``keras.ops.stft`` do not take them at all.
    Only an instance shows that.
    """
    import keras

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the rebuilding of the model repeats them
        try:
            with (
                custom_objects(layers_of(layer)) as custom,
                keras.saving.custom_object_scope(custom),
            ):
                config = keras.saving.serialize_keras_object(layer)
                if "dtype" not in config["config"]:
                    return "has no dtype in its get_config()"
                in_float32 = copy.deepcopy(config)
                in_float32["config"]["dtype"] = "float32"
                shape = (config.get("build_config") or {}).get("input_shape")
                made, plain = (
                    keras.saving.deserialize_keras_object(form, safe_mode=False)
                    for form in (config, in_float32)
                )
        except Exception:
            return f"does not build in {policy}"
        computes = _is_traced(made, shape) or not _is_traced(plain, shape)
    # A container or an input computes nothing itself; the other layers have to follow.
    left = dict.fromkeys(
        type(created).__name__
        for created in layers_inside(made, recursive=False)
        for inner in layers_of(created)
        if inner.dtype_policy.name in set(PLAIN) - {policy}
        and not (layers_inside(inner) or isinstance(inner, keras.layers.InputLayer))
    )
    if left:
        return f"creates {', '.join(left)} without dtype=self.dtype_policy"
    return None if computes else f"does not compute in {policy}"


def _is_traced(layer: Any, shape: Any) -> bool:
    """Return whether a layer can be called on one input of this shape in its precision.

    What it adds to the loss has to be float32: see ``set_policies``.
    """
    import tensorflow as tf

    try:
        tf.function(layer).get_concrete_function(tf.TensorSpec(shape, layer.compute_dtype))
    except Exception:
        return False
    return all(loss.dtype == "float32" for loss in layer.losses)


def _output_layers(model: Any) -> list[Any]:
    """Return the layers whose results are a model's outputs.

    An operation (``a + b``, ``keras.ops.softmax(x)``) has no policy: it computes in the precision
    of the layers before it, which thus belong to the output too.
    """
    import keras

    if isinstance(model, keras.Sequential):
        return list(model.layers[-1:])
    makers = {id(tensor): node for node in nodes_of(model) for tensor in node.outputs}
    layers: list[Any] = []
    waiting = list(model.outputs)
    while waiting:
        node = makers[id(waiting.pop())]
        if isinstance(node.operation, keras.Layer):
            layers.append(node.operation)
        else:
            waiting += node.input_tensors
    return layers


Policy = Literal["auto", "float32", "mixed_float16", "mixed_bfloat16"]
POLICIES = ("auto", *PLAIN)
_TENSOR_CORES = (7, 0)
_TF32_SINCE = (8, 0)


def mixed_precision(model: keras.Model, policy: Policy = "auto") -> keras.Model:
    """Return a new model with the same weights under ``policy``; the given one is unchanged.

    A compiled model comes back compiled, optimizer state included. "auto" is mixed_float16 if all
    GPUs have tensor cores for it, else float32; with nothing to change, the given model itself
    comes back. Classes of your own that cannot compute in half precision are named in a warning.

    Args:
        model: A built Keras 3 model, compiled or not.
        policy: "auto", "mixed_float16", "mixed_bfloat16" or "float32".

    Raises:
        UserError: The policy is unknown, or a layer of the model cannot be rebuilt from its
            ``get_config()``.

    Example:
        model = tfopt.mixed_precision(model, "mixed_bfloat16")
    """
    _validate(policy)
    chosen = choose_policy()[0] if policy == "auto" else policy
    retyped, effect, failed = _retype(model, chosen)
    if failed:
        text = f"{model.name!r} is not all in {chosen}: {effect.note}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    if effect.acted and model.compiled:
        arguments = compile_factory(model)()
        if chosen == "mixed_float16":
            arguments["optimizer"] = _with_loss_scaling(arguments["optimizer"])
        retyped.compile(**arguments)
        state_of(model)(retyped)
    if effect.acted and chosen == "mixed_float16" and (text := _unscaled(model)):
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return retyped


def choose_policy() -> tuple[Policy, str]:
    """Return the policy that "auto" selects on this machine, and why.

    On a CPU it is float32: bfloat16 makes some models slower there.
    """
    capabilities = gpu_capabilities()
    if not capabilities:
        return "float32", "no GPU; half precision on a CPU is tried by `tfopt tune`, not assumed"
    least = ".".join(map(str, min(capabilities)))
    if min(capabilities) >= _TENSOR_CORES:
        return "mixed_float16", f"GPU compute capability {least} has float16 tensor cores"
    return "float32", f"GPU compute capability {least} is below 7.0: no float16 tensor cores"


def half_precision() -> Policy | None:
    """Return the half precision that this machine computes natively, or None.

    On a CPU it is bfloat16, with AVX512-BF16 or AMX-BF16.
    """
    chosen, _ = choose_policy()
    if chosen != "float32":
        return chosen
    cpu_has_it = not gpu_capabilities() and {*cpu_flags().split()} & {"amx_bf16", "avx512_bf16"}
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
        """Set TensorFloat-32 if requested, and restore it afterwards."""
        if self.tf32 is None:
            yield
            return
        import tensorflow as tf

        before = tf.config.experimental.tensor_float_32_execution_enabled()
        tf.config.experimental.enable_tensor_float_32_execution(self.tf32)
        has_it = any(capability >= _TF32_SINCE for capability in gpu_capabilities())
        why = "" if has_it else ": no effect, no visible GPU has TF32 (Ampere or newer)"
        run.note(f"TF32 {'on' if self.tf32 else 'off'}{why}", acted=has_it)
        try:
            yield
        finally:
            tf.config.experimental.enable_tensor_float_32_execution(before)

    def rebuild(self, run: Run, model: keras.Model) -> keras.Model:
        policy, why = self.policy, ""
        if policy == "auto":
            policy, reason = choose_policy()
            why = f"auto chose {policy}: {reason}; "
        retyped, effect, _ = _retype(model, policy)
        text = _unscaled(model) if effect.acted and policy == "mixed_float16" else ""
        run.note("; ".join(filter(None, [why + effect.note, text])), acted=effect.acted)
        return retyped

    def compile(self, run: Run, arguments: dict[str, Any]) -> dict[str, Any]:
        """Wrap the optimizer for float16, so that a saved model keeps loss scaling.

        compile() wraps it by the model's policy, which a saved Functional model lacks.
        """
        if (choose_policy()[0] if self.policy == "auto" else self.policy) != "mixed_float16":
            return arguments
        run.note("dynamic loss scaling", acted=False)  # only the retyped layers count
        optimizer = arguments.get("optimizer", "rmsprop")
        return {**arguments, "optimizer": _with_loss_scaling(optimizer)}


def _with_loss_scaling(optimizer: Any) -> keras.optimizers.Optimizer:
    import keras

    optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        return optimizer
    return keras.optimizers.LossScaleOptimizer(optimizer, name="loss_scale_optimizer")


def _unscaled(model: keras.Model) -> str:
    """Return a warning if the model's own ``train_step`` does not scale its loss, else ""."""
    code = getattr(inspect.unwrap(type(model).train_step), "__code__", None)
    parts = [code, *filter(inspect.iscode, code.co_consts)] if code else []
    names = {name for part in parts for name in part.co_names}
    # One that calls Keras's own, or has other optimizers, needs no scale.
    if "optimizer" not in names or names & {"scale_loss", "train_step"}:
        return ""
    what = f"{type(model).__name__}.train_step must scale its loss in mixed_float16"
    return f"{what}, or it hardly trains: take the gradients of self.optimizer.scale_loss(loss)"


def gpu_capabilities() -> list[tuple[int, int]]:
    """Return the compute capability of each visible GPU."""
    import tensorflow as tf

    return [
        tf.config.experimental.get_device_details(gpu).get("compute_capability", (0, 0))
        for gpu in tf.config.get_visible_devices("GPU")
    ]


def _validate(policy: object) -> None:
    if policy not in POLICIES:
        fix = did_you_mean(str(policy), POLICIES)
        if policy in ("float16", "bfloat16"):
            fix = f'use "mixed_{policy}", which keeps float32 weights'
        raise UserError(
            "Unknown precision policy.",
            expected=" | ".join(POLICIES),
            received=repr(policy),
            fix=fix,
        )


def _retype(model: keras.Model, policy: str) -> tuple[keras.Model, Effect, bool]:
    """Return the model to go on with, what was done, and whether classes could not follow."""
    import keras

    require_built_keras3(model)
    tally = Tally()
    # A global policy at the time of building shows in the layers only.
    present = {layer.dtype_policy.name for layer in layers_of(model)}
    if policy == "float32" and present == {policy}:
        return model, Effect(False, "the model is float32 already"), False
    creator, parts = rebuilder(model, None), [model]
    note = f"{creator} creates its layers itself, and its output layers are not known: set "
    unchanged = model, Effect(False, f"{note}dtype={policy!r} on the inner layers there"), True
    if creator is not None:  # its configuration may hold models, as a KerasHub task its backbone
        inside = layers_inside(model, recursive=False)
        parts = [layer for layer in inside if isinstance(layer, keras.Model)]
        if not parts:
            return unchanged
    try:
        with ONE_AT_A_TIME:
            before = _plain_policies(model)
            try:
                for part in parts:
                    set_policies(part, policy, creator is None, tally)
                build = blueprint(model)
            finally:
                _restore(before)
        retyped = build()
    except UserError as error:
        if creator:
            return unchanged
        raise UserError(
            f"{model.name!r} cannot be rebuilt under {policy}.",
            expected="layers that round-trip through get_config() and from_config()",
            received=error.what,
            fix=f"keras.config.set_dtype_policy({policy!r}), build the model anew, and call its "
            "set_weights(model.get_weights())",
        ) from error
    if creator and all(layer.dtype_policy.name != policy for layer in layers_of(retyped)):
        return unchanged
    if retyped.dtype_policy.name != policy:
        # Sequential and Functional models do not serialise their policy, by which compile()
        # decides on loss scaling.
        retyped.dtype_policy = policy
    if not tally.changed:
        effect = Effect(False, f"nothing was changed: {tally.note(policy)}")
        return model, effect, bool(tally.obstacles)
    own = f"; the other layers as {creator} makes them" if creator else ""
    return retyped, Effect(True, tally.note(policy) + own), bool(tally.obstacles)
