"""A model's configuration under another dtype policy, with its outputs kept in float32.

Guarantees: only plain policies are replaced; a layer left alone is told with the reason; what
gives the model's outputs computes in float32, wrapped, nested or behind plain operations.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

from tfopt.one_at_a_time import ONE_AT_A_TIME

PLAIN = ("float32", "mixed_float16", "mixed_bfloat16")
"""The policies that may be replaced; any other was chosen by the layer's author."""


class Tally:
    """Counts what was retyped and what was left alone, for the note."""

    def __init__(self) -> None:
        self.changed = 0
        self.outputs: list[str] = []
        self.left: list[str] = []

    def tell(self, policy: str) -> str:
        parts = [f"{self.changed} layers in {policy}"] if self.changed else []
        if self.outputs:
            parts.append(f"output {', '.join(self.outputs)} in float32")
        if self.left:
            parts.append(f"left as they were: {', '.join(self.left)}")
        return "; ".join(parts)


def retyped_config(
    item: dict[str, Any], policy: str, is_output: bool, tally: Tally
) -> dict[str, Any]:
    """A serialised layer or model with its policy replaced, outputs kept in float32."""
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
    """An entry of a layer's configuration, with the layers that it describes retyped."""
    if isinstance(value, list):
        return [_retyped_inner(part, policy, is_output, tally) for part in value]
    if isinstance(value, dict) and _is_layer(value):
        return retyped_config(value, policy, is_output, tally)
    return value


def _obstacle(item: dict[str, Any], policy: str) -> str | None:
    """Why a class of the user's own cannot take a policy; Keras's own classes can.

    The layers that it makes for itself may not follow: half-precision inputs would then meet
    float32 layers inside, which fails or gains nothing. Only an instance can tell.
    """
    if str(item.get("module")).split(".")[0] == "keras":
        return None
    if "dtype" not in item["config"]:
        return "has no dtype in its get_config()"
    if _policy_name(item["config"]["dtype"]) not in PLAIN:
        return None  # It keeps its policy in any case, and is told with it.
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
    behind = [
        inner.name
        for inner in layer._flatten_layers(include_self=False)
        if inner.dtype_policy.name in set(PLAIN) - {policy} and not inner._layers
    ]
    return f"makes layers without passing its dtype on: {', '.join(behind)}" if behind else None


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
    """The layers whose results are the model's: the last of a Sequential, those named otherwise.

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
    """The layers named in the part of a configuration that tells what comes from where."""
    if isinstance(value, list | tuple) and len(value) == 3 and isinstance(value[0], str):
        yield value[0]
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _nodes(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _nodes(part)
