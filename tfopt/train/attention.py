"""Compute attention by cuDNN's fused kernels, which never write the scores to memory.

Keras's TensorFlow backend has no such kernel (keras#19418). Only two methods of a layer, and the
``call`` of its projections, are replaced, on their instances: saved models and copies are plain.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from tfopt.errors import UserError, require_one_of
from tfopt.hooks import Hooks, ModelHooks
from tfopt.job.compiled_steps import forget_compiled_steps
from tfopt.job.model_checks import require_built_keras3
from tfopt.job.transform import Run, Transform
from tfopt.keras_internals import (
    ATTENTION,
    ATTENTION_MASK,
    asks_for_scores,
    layers_inside,
    layers_of,
    scale_of,
)
from tfopt.report.format import count
from tfopt.train.fused_call import MASKED, FusedCall, fused
from tfopt.train.precision import gpu_capabilities

if TYPE_CHECKING:
    import keras

logger = logging.getLogger("tfopt")
Padding = Literal["right"] | None


def dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    bias: Any = None,
    mask: Any = None,
    *,
    lengths: Any = None,
    scale: float | None = None,
    is_causal: bool = False,
) -> Any:
    """Return attention's output, by cuDNN's fused kernels if they support it, else by Keras.

    Args:
        query: Of shape (batch, queries, heads, head size), in float16 or bfloat16.
        key: Of shape (batch, keys, heads, head size).
        value: Of the same shape.
        bias: Added to the scores, of shape (1, heads, queries, keys) if it is trained.
        mask: True where a query may see a key: of shape (batch or 1, heads or 1, queries, keys).
        lengths: The number of keys per example, int32; the rest is padding.
        scale: The factor of the scores; None: one by the root of the head size.
        is_causal: Whether a query sees no later key.

    Supported are GPUs from compute capability 8.0 on, sizes that are known when the step is traced,
    and head sizes that are a multiple of 8 and at most 128 (256 on 9.0); see :func:`refusal`.

    Example:
        output = dot_product_attention(query, key, value, is_causal=True)
    """
    if refusal(query, key, value, bias, mask) is None:
        return _fused(query, key, value, bias, mask, lengths, scale, is_causal)
    import keras

    if lengths is not None:
        positions = keras.ops.arange(keras.ops.shape(key)[1], dtype="int32")
        seen = positions < keras.ops.cast(lengths, "int32")[:, None, None, None]
        mask = seen if mask is None else keras.ops.logical_and(mask, seen)
    return keras.ops.dot_product_attention(
        query, key, value, bias=bias, mask=mask, scale=scale, is_causal=is_causal
    )


def refusal(query: Any, key: Any, value: Any, bias: Any = None, mask: Any = None) -> str | None:
    """Return why cuDNN's kernels do not support these tensors on this machine, or None."""
    shapes = [tuple(tensor.shape) for tensor in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes):
        return "there is not exactly one axis of tokens"
    if shapes[0][::2] != shapes[1][::2] or shapes[1][:3] != shapes[2][:3]:
        return "query, key and value differ in batch, heads or length"
    if query.dtype not in ("float16", "bfloat16") or not query.dtype == key.dtype == value.dtype:
        return f"it computes in {getattr(query.dtype, 'name', query.dtype)}"
    if any(size is None for shape in shapes for size in shape):
        return "the size of a batch, or of its sequences, is not known when the step is traced"
    if shapes[0][-1] != shapes[2][-1]:
        return f"heads of {shapes[0][-1]} for keys and of {shapes[2][-1]} for values"
    odd_head = head_refusal(shapes[0][-1])
    if odd_head is not None:
        return odd_head
    (_, queries, heads, _), (_, keys, _, _) = shapes[:2]
    if queries == keys == 1:
        return "there is one token, and cuDNN has no gradient for it"
    if bias is not None and (mask is not None or tuple(bias.shape) != (1, heads, queries, keys)):
        return f"a bias of shape {tuple(bias.shape)}, or beside a mask"
    if mask is not None and not _is_by_head(tuple(mask.shape), shapes[0]):
        return f"a mask of shape {tuple(mask.shape)}"
    if (bias is not None or mask is not None) and (queries % 2 or keys % 2):
        return f"a bias or a mask on {queries} by {keys} tokens, which must be even"
    return card_refusal()


def _is_by_head(mask: tuple[int | None, ...], query: tuple[int, ...]) -> bool:
    """Return whether a mask is of shape (batch or 1, heads or 1, queries or 1, keys)."""
    batch, queries, heads, _ = query
    allowed = ((1, batch), (1, heads), (1, queries))
    return len(mask) == 4 and all(size in sizes for size, sizes in zip(mask, allowed, strict=False))


def card_refusal() -> str | None:
    """Return why the GPUs of this process do not have the kernels, or None."""
    import tensorflow as tf

    gpus = tf.config.get_visible_devices("GPU")
    strategy = tf.distribute.get_strategy() if tf.distribute.has_strategy() else None
    devices = strategy.extended.worker_devices if strategy else ()
    if not gpus or any("CPU" in device for device in devices):
        return "it is not computed on a GPU"
    capability = _capability()
    if capability < (8, 0):
        return "the GPU has compute capability {}.{}, and 8.0 is needed".format(*capability)
    return None


def head_refusal(size: int) -> str | None:
    """Return why a head size is not supported, or None; without a GPU, by any GPU."""
    # cuDNN's gradient, on Hopper and on others.
    at_most = 256 if _capability()[0] in (0, 9) else 128
    if size % 8 or size > at_most:
        return f"heads of {size}, and multiples of 8 up to {at_most} are supported"
    return None


def _capability() -> tuple[int, int]:
    return min(gpu_capabilities(), default=(0, 0))


def _fused(
    query: Any,
    key: Any,
    value: Any,
    bias: Any,
    mask: Any,
    lengths: Any,
    scale: float | None,
    is_causal: bool,
) -> Any:
    import tensorflow as tf

    batch, queries, heads, head_size = query.shape
    keys, dtype = key.shape[1], query.dtype.name
    if mask is not None:
        bias = tf.where(tf.cast(mask, tf.bool), 0.0, MASKED[dtype])
        bias = tf.broadcast_to(bias, (*bias.shape[:2], queries, keys))
    if bias is not None:
        bias = tf.cast(bias, query.dtype)
    call = FusedCall(
        batch,
        heads,
        queries,
        keys,
        head_size,
        dtype,
        1 / math.sqrt(head_size) if scale is None else float(scale),
        causal=is_causal,
        has_lengths=lengths is not None,
        bias=None if bias is None else tuple(bias.shape[:2]),
    )
    if lengths is not None:
        # An example of padding only sees its first key: a mean over no keys would be NaN.
        seen = tf.ensure_shape(tf.maximum(tf.cast(lengths, tf.int32), 1), (batch,))
        lengths = (tf.fill((batch,), queries), seen)
    return fused(call, query, key, value, bias, lengths)


class RightPadding(NamedTuple):
    """Keras's mask of padding at the right, with the lengths that it means."""

    mask: Any
    lengths: Any
    causal: bool


class FusedLayer:
    """The attention of one layer, fused if possible.

    Attributes:
        name: The layer's path.
        reason: Why training computes it as Keras does; None if it is fused.
    """

    def __init__(self, layer: Any, padding: Padding, hooks: Hooks) -> None:
        self.name: str = layer.path or layer.name
        self.reason: str | None = "it was not called in training"
        self._layer = layer
        self._keras_attention = getattr(layer, ATTENTION)
        self._keras_mask = getattr(layer, ATTENTION_MASK)
        hooks.replace(layer, ATTENTION, partial(self._attention))
        _merge_examples(layer, hooks)
        own_call = type(layer).call not in [kind.call for kind in _kinds()]  # may use the mask
        if padding == "right" and not own_call and not layer.get_config().get("sliding_window"):
            hooks.replace(layer, ATTENTION_MASK, partial(self._mask))

    def _mask(self, query: Any, value: Any, *_: Any, **masks: Any) -> Any:
        """Return Keras's mask; with the lengths, if it masks padding only."""
        import keras

        mask = self._keras_mask(query, value, *_, **masks)
        seen, of_keys = masks.get("value_mask"), masks.get("key_mask")
        other = of_keys is not None and of_keys is not seen  # layer(x, x, x) gives one mask twice
        if seen is None or other or masks.get("attention_mask") is not None:
            return mask
        lengths = keras.ops.sum(keras.ops.cast(seen, "int32"), axis=-1)
        return RightPadding(mask, lengths, bool(masks.get("use_causal_mask")))

    def _attention(
        self,
        query: Any,
        key: Any,
        value: Any,
        attention_mask: Any = None,
        training: bool | None = None,
        *scores: bool,
        **named: bool,
    ) -> Any:
        import tensorflow as tf

        mask, lengths = attention_mask, None
        causal = bool(named.get("use_causal_mask"))
        if isinstance(attention_mask, RightPadding):
            attention_mask, lengths, causal = attention_mask
            mask = None
        if mask is not None:
            mask = tf.cast(mask, tf.bool)
            while len(mask.shape) < 4:
                mask = tf.expand_dims(mask, -3)
        reason = refusal(query, key, value, mask=mask)
        if any(scores) or named.get("return_attention_scores") or asks_for_scores(self._layer):
            reason = "its scores are returned"
        # Keras says nothing of training to a model whose call() does not take it.
        if training or (training is None and self.reason is not None):
            if reason is not None and reason != self.reason:
                logger.warning("%s is computed as Keras does: %s", self.name, reason)
            self.reason = reason
        if reason is None:
            scale = scale_of(self._layer)
            return _fused(query, key, value, None, mask, lengths, scale, causal), None
        return self._keras_attention(query, key, value, attention_mask, training, *scores, **named)


class FusedLayers(ModelHooks):
    """The layers of a model whose attention is fused, and the reasons of the others."""

    attribute = "_fused_attention"

    def __init__(self, layers: list[Any], earlier: FusedLayers | None) -> None:
        super().__init__()
        fused_before = earlier.supported if earlier is not None else []
        self.layers: list[FusedLayer] = []
        self.supported: list[Any] = []
        self.left: dict[str, str] = {}
        for layer in layers:
            reason = _layer_refusal(layer)
            if reason is None and ATTENTION in vars(layer) and layer not in fused_before:
                reason = "its attention is replaced already"
            if reason is None:
                self.supported.append(layer)
            else:
                self.left[layer.path or layer.name] = reason

    def attach(self, padding: Padding) -> None:
        """Replace the attention of the layers that cuDNN supports."""
        self.layers = [FusedLayer(layer, padding, self) for layer in self.supported]

    def summary(self) -> tuple[bool, str]:
        """Return whether any attention was fused, and a note."""
        traced = {layer.name: layer.reason for layer in self.layers if layer.reason is not None}
        left = self.left | traced
        done = len(self.layers) - len(traced)
        parts = [f"attention fused in {count(done, 'layer')}"] if done else []
        parts += [f"{name} as Keras computes it: {reason}" for name, reason in left.items()]
        return done > 0, "; ".join(parts)


def fused_attention(model: keras.Model, *, padding: Padding = None) -> keras.Model:
    """Compute attention by cuDNN's fused kernels, in place, and return that model.

    It supports ``MultiHeadAttention``, ``GroupQueryAttention`` and their subclasses that keep
    ``_compute_attention``, in float16 or bfloat16, on GPUs from compute capability 8.0 on, without
    dropout on the scores: build the layers with ``dropout=0``. Batches whose size is not known when
    the step is traced, since the last one of an epoch is smaller, are computed as Keras does; so is
    a call that returns scores. A model that is loaded, cloned or rebuilt is a plain one.

    Args:
        model: A built Keras 3 model, compiled or not.
        padding: "right" declares that padding comes after the tokens: masks of the layers' inputs
            become lengths, which cost less. At padding a layer's output then differs from Keras's,
            which averages over padding: a model must exclude padding from its pooling and its loss,
            as Keras's layers that take masks do.

    Raises:
        UserError: No layer of the model is supported on this machine; the reason is in the error.

    Example:
        model = tfopt.mixed_precision(model, "mixed_bfloat16")
        tfopt.fused_attention(model)
        model.fit(dataset.batch(32, drop_remainder=True))
    """
    reason = _attach(model, padding)
    if reason is not None:
        raise UserError(
            f"No attention of {model.name!r} can be fused: {reason}.",
            expected="a MultiHeadAttention or GroupQueryAttention in float16 or bfloat16, without "
            "dropout on its scores, and a GPU from compute capability 8.0 on",
        )
    return model


def _attach(model: Any, padding: Padding) -> str | None:
    """Fuse the attention of a model, or return why none can be fused."""
    require_built_keras3(model)
    _check_padding(padding)
    layers = _attention_layers(model)
    if not layers:
        return "it has no attention layer of Keras's"
    found = FusedLayers(layers, FusedLayers.of(model))
    card = card_refusal()
    if card is not None or not found.supported:
        reasons = [f"{name}: {reason}" for name, reason in found.left.items()]
        return "; ".join([*reasons, *([card] if card else [])])
    FusedLayers.take_off(model)
    found.attach(padding)
    found.put_on(model)
    forget_compiled_steps(model)
    return None


def _check_padding(padding: object) -> None:
    if padding is not None:
        require_one_of("padding", padding, ("right",))


def _attention_layers(model: Any) -> list[Any]:
    return [layer for layer in layers_of(model) if isinstance(layer, _kinds())]


def _kinds() -> tuple[Any, Any]:
    import keras

    return keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention


def serves(model: Any) -> bool:
    """Return whether some attention of a model could be fused here in half precision."""
    if card_refusal() is not None:
        return False
    return any(_kind_refusal(layer) is None for layer in _attention_layers(model))


def _layer_refusal(layer: Any) -> str | None:
    """Return why a layer's attention cannot be fused for any input, or None."""
    reason = _kind_refusal(layer)
    if reason is None and layer.compute_dtype not in MASKED:
        return f"it computes in {layer.compute_dtype}"
    return reason


def _kind_refusal(layer: Any) -> str | None:
    """Return why a layer's attention cannot be fused in any precision, or None."""
    settings = layer.get_config()
    if getattr(type(layer), ATTENTION) not in [getattr(kind, ATTENTION) for kind in _kinds()]:
        return f"{type(layer).__name__} overrides {ATTENTION}"
    if settings.get("dropout"):
        return f"it has dropout on its scores ({settings['dropout']:g})"
    return head_refusal(settings.get("key_dim") or settings["head_dim"])


@dataclass(frozen=True, repr=False)
class FusedAttention(Transform):
    """Compute attention by cuDNN's fused kernels while the model trains.

    Example:
        outcome = run(job, chain(MixedPrecision("mixed_bfloat16"), FusedAttention()))

    Attributes:
        padding: "right" declares that padding comes after the tokens.
    """

    padding: Padding = None

    def __post_init__(self) -> None:
        _check_padding(self.padding)

    @property
    def whole_batches(self) -> bool:
        return card_refusal() is None

    def attach(self, run: Run, model: Any) -> None:
        reason = _attach(model, self.padding)
        if reason is not None:
            run.note(f"no attention is fused: {reason}", acted=False)

    def finish(self, run: Run, model: Any) -> None:
        replaced = FusedLayers.of(model)
        if replaced is not None:
            acted, note = replaced.summary()
            run.note(note, acted=acted)
            FusedLayers.take_off(model)
            forget_compiled_steps(model)


def _merge_examples(attention: Any, hooks: Hooks) -> None:
    """Make an attention layer project all tokens of a batch by one matrix product.

    Keras multiplies example by example. The gradient of a kernel is then one product for each
    example, rounded to half precision, and a sum over them: three times the memory traffic.
    """
    for layer in layers_inside(attention):
        if _is_projection(layer):
            hooks.replace(layer, "call", partial(_merged, layer.call))


def _is_projection(layer: Any) -> bool:
    """Return whether a layer computes the same for each example and token, and keeps their axes."""
    import keras

    if not isinstance(layer, keras.layers.EinsumDense):
        return False
    inputs, _, rest = layer.equation.partition(",")
    kernel, _, outputs = rest.partition("->")
    examples_and_tokens = inputs[:2]
    return outputs[:2] == examples_and_tokens and not set(examples_and_tokens) & {
        *kernel,
        *(layer.bias_axes or ""),
    }


def _merged(project: Callable[..., Any], inputs: Any, *given: Any, **named: Any) -> Any:
    import keras

    batch, tokens, *features = inputs.shape
    if None in (batch, tokens, *features):
        return project(inputs, *given, **named)
    merged = keras.ops.reshape(inputs, (1, batch * tokens, *features))
    outputs = project(merged, *given, **named)
    return keras.ops.reshape(outputs, (batch, tokens, *outputs.shape[2:]))
