"""The constraint that keeps a kernel's weights in clusters of one value during the training.

After every step the weights of a cluster are equal bit by bit, on every replica: sums are in
float64, in which equal float32 values add up exactly, and in a fixed order.

This file imports Keras and TensorFlow: import it inside functions. It registers the class for
files saved with clusters.
"""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfopt.compress.codebook import codebook, nearest, recovered_clusters
from tfopt.compress.constraints import Constraint, replicated
from tfopt.compress.reports import count_values


def _sums(weights: Any, index: Any, clusters: int) -> Any:
    # TensorFlow computes int32 on the host, also within a GPU's step.
    return tf.math.unsorted_segment_sum(weights, tf.cast(index, tf.int64), clusters)


def _even(kernel: Any, index: Any, share: Any) -> Any:
    """Return the kernel with the means of its clusters."""
    means = _sums(tf.cast(tf.reshape(kernel, [-1]), tf.float64), index, share.shape[0]) * share
    values = tf.gather(tf.cast(means, kernel.dtype), tf.cast(index, tf.int64))
    return tf.reshape(values, kernel.shape)


@functools.cache
def _compiled(shape: tuple[int, ...]) -> Any:
    """Return ``_even`` compiled by XLA for one shape, in less than half the time on a CPU.

    TensorFlow warns of retracing a function of many shapes; a partial is another function to it.
    """
    return tf.function(functools.partial(_even), jit_compile=True, autograph=False)


@dataclass(frozen=True)
class _State:
    """A kernel's clusters: the weights' indices, and the clusters' factors of their sums.

    A cluster of zeros has the factor 0. ``step`` is the number of the next batch until the clusters
    are formed, then None.
    """

    kernel: Any
    index: Any
    shares: Any
    step: Any

    def project(self, value: Any) -> Any:
        """Return the nearest kernel with one value per cluster."""
        on_cpu = "GPU" not in (self.index.device or "")
        # Keras does not use XLA on macOS either.
        compiles = tf.inside_function() and on_cpu and sys.platform != "darwin"
        even = _compiled(tuple(value.shape)) if compiles else _even
        return even(value, self.index.read_value(), self.shares.read_value())


@keras.saving.register_keras_serializable(package="tfopt")
class WeightClusters(Constraint):
    """A kernel constraint with clusters; the layer's own constraint, if any, is applied first.

    The clusters are not weights of the layer: the first call restores them from a loaded kernel, in
    which equal values are a cluster. In a compiled step that is before the first update; with
    ``run_eagerly=True`` a loaded kernel has had one update by then, its clusters are formed anew,
    and zeros are lost.

    Example:
        layer.kernel_constraint = WeightClusters(16)

    Args:
        clusters: The most values of a kernel.
        inner: The layer's own constraint.
        step: The number of the next batch, counted from 1.
        begin_step: The batch, counted from 1, at which the clusters are formed; 0: at once.
        zeros: Whether one of the clusters is zero.
    """

    one_scale: ClassVar[bool] = True
    """Whether fake quantization uses one scale for a whole kernel."""

    def __init__(
        self,
        clusters: int,
        inner: Any = None,
        step: int = 1,
        *,
        begin_step: int = 0,
        zeros: bool = False,
    ) -> None:
        super().__init__(inner, step)
        self.clusters = clusters
        self.begin_step = begin_step
        self.zeros = zeros

    def bind(self, kernel: Any) -> None:
        """Form a kernel's clusters, unless they are formed later. Not for a compiled step."""
        state = self._state(kernel)
        if state.step is None:
            kernel.assign(state.project(kernel.value))

    def apply_final(self, kernel: Any) -> None:
        """Form the clusters anew if the kernel was assigned too many values."""
        state = self._states.get(id(kernel))
        if state is not None and not self.waits and count_values(kernel) > self.clusters:
            self._form(state, kernel.value)
            kernel.assign(state.project(kernel.value))

    def __call__(self, w: Any) -> Any:
        state = self._state(w)
        value = self._after_inner(w)
        if state.step is None:
            return state.project(value)
        step = tf.convert_to_tensor(state.step.assign_add(1))

        def form() -> Any:
            self._form(state, value)
            return state.project(value)

        def later() -> Any:
            return tf.cond(step == self.begin_step, form, lambda: state.project(value))

        return tf.cond(step < self.begin_step, lambda: value, later)

    @property
    def step(self) -> int:
        """Return the number of the next batch, at most ``begin_step``."""
        for state in self._states.values():
            return self.begin_step if state.step is None else int(state.step.numpy())
        return self._first_step

    @property
    def unfinished(self) -> str | None:
        """Return when the clusters will be formed, or None."""
        return f"clusters to be formed at step {self.begin_step}" if self.waits else None

    @property
    def waits(self) -> bool:
        """Return whether the clusters are not formed yet."""
        return self.step < self.begin_step

    def _new_state(self, kernel: Any, local: Any) -> _State:
        step, waits = self.step, self.waits
        dtype = tf.uint8 if self.clusters <= 256 else tf.int32
        index = replicated(tf.zeros(prod(kernel.shape), dtype), "weight_clusters")
        share = replicated(tf.ones(self.clusters, tf.float64), "weight_clusters_shares")
        counter = replicated(tf.constant(step, tf.int64), "weight_clusters_step") if waits else None
        state = _State(kernel, index, share, counter)
        if not waits:
            self._recover(state, local)
        return state

    def _fit_state(self, state: _State, local: Any) -> None:
        if not self.waits and not tf.reduce_all(state.project(local) == local):
            self._recover(state, local)

    def _recover(self, state: _State, local: Any) -> None:
        """Restore the clusters of clustered weights; form those of others."""
        if count_values(local) > self.clusters:
            self._form(state, local)
        else:
            index = recovered_clusters(tf.reshape(local, [-1]), self.zeros)
            self._assign(state, tf.constant(index))

    def _form(self, state: _State, value: Any) -> None:
        weights = tf.cast(tf.reshape(value, [-1]), tf.float64)
        counted = weights != 0 if self.zeros else tf.ones_like(weights, tf.bool)
        index = nearest(weights, codebook(weights, counted, self.clusters - self.zeros))
        self._assign(state, tf.where(counted, index + 1, 0) if self.zeros else index)

    def _assign(self, state: _State, index: Any) -> None:
        """Assign the clusters; with ``zeros``, cluster 0 is that of the zeros."""
        state.index.assign(tf.cast(index, state.index.dtype))
        sizes = _sums(tf.ones_like(index, tf.float64), state.index, self.clusters)
        share = 1 / tf.maximum(sizes, 1)
        if self.zeros:
            share = tf.concat([tf.zeros(1, share.dtype), share[1:]], axis=0)
        state.shares.assign(share)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "clusters": self.clusters,
            "begin_step": self.begin_step,
            "zeros": self.zeros,
        }
