"""cuDNN's attention kernels computed on the CPU, by the settings with which XLA would call them."""

import json
from contextlib import contextmanager

import numpy as np
import tensorflow as tf

from tfopt.hooks import replaced
from tfopt.train import attention, fused_call


def as_cudnn_computes(target, operands, results, config):
    """Return what cuDNN's kernels give, by the settings that they are called with."""
    settings = json.loads(config)["cudnn_fmha_backend_config"]
    backward, biased = target.endswith("Backward"), "ScaleBias" in target
    operands = [*operands]
    query, key, value = (heads_first(operands.pop(0)) for _ in range(3))
    statistics, upstream = (operands.pop(0), operands.pop(0)) if backward else (None, None)
    scores = settings["fmha_scale"] * tf.einsum("bnth,bnsh->bnts", query, key)
    if biased:
        scores += tf.cast(operands.pop(0), tf.float32)
    output = operands.pop(0) if backward else None
    if "CAUSAL" in settings["mask_type"]:
        scores = tf.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    if "PADDING" in settings["mask_type"]:
        _, lengths = operands
        seen = tf.sequence_mask(lengths, scores.shape[-1])[:, None, None]
        scores = tf.where(seen, scores, -np.inf)
    if not backward:
        statistics = tf.reduce_logsumexp(scores, axis=-1)
        shares = tf.exp(scores - statistics[..., None])
        found = [tf.einsum("bnts,bnsh->bnth", shares, value), statistics]
    else:
        shares = tf.exp(scores - statistics[..., None])
        upstream, output = heads_first(upstream), heads_first(output)
        of_shares = tf.einsum("bnth,bnsh->bnts", upstream, value)
        of_scores = shares * (of_shares - tf.reduce_sum(upstream * output, -1, keepdims=True))
        scale = settings["fmha_scale"]
        found = [
            scale * tf.einsum("bnts,bnsh->bnth", of_scores, key),
            scale * tf.einsum("bnts,bnth->bnsh", of_scores, query),
            tf.einsum("bnts,bnth->bnsh", shares, upstream),
        ]
        if len(results) == 5:
            found.append(tf.reduce_sum(of_scores, axis=0, keepdims=True))
    found.append(tf.zeros((0,)))
    for tensor, result in zip(found, results, strict=True):
        assert tensor.shape == result.shape
    return [
        tf.cast(tf.transpose(tensor, result.axes), result.dtype)
        for tensor, result in zip(found, results, strict=True)
    ]


def heads_first(tensor):
    return tf.transpose(tf.cast(tensor, tf.float32), (0, 2, 1, 3))


@contextmanager
def on_a_stand_in():
    """Let the process have a GPU whose kernels are computed on the CPU."""
    with (
        replaced(attention, card_refusal=lambda: None, _capability=lambda: (8, 0)),
        replaced(fused_call, custom_call=as_cudnn_computes),
    ):
        fused_call._compiled.cache_clear()
        yield
        fused_call._compiled.cache_clear()
