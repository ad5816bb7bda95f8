"""The constraint that keeps a kernel's weights in clusters of one value each while it is trained.

After every step the weights of a cluster are equal, bit by bit: sums are taken in float64, in which
equal float32 values add up exactly, and in one order, so that every replica finds the same mean.

This file imports Keras and TensorFlow at its top, since its class only exists inside Keras: import
it inside functions. Importing it registers the class, which ``keras.models.load_model`` needs for a
file saved with clusters on.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfopt.compress.codebook import codebook, nearest, recovered_clusters
from tfopt.compress.constraints import Held, replicated, setting_of
from tfopt.compress.kernels import Axes
from tfopt.compress.reports import most_values


@dataclass(frozen=True)
class Rows:
    """A kernel as rows that are clustered independently: one, or one for each channel."""

    shape: tuple[int, ...]
    channels: Axes | None

    @property
    def size(self) -> tuple[int, int]:
        """Return how many rows there are, and how many weights in each."""
        rows = prod(self.shape[axis] for axis in self.channels or ())
        return rows, prod(self.shape) // rows

    def take(self, kernel: Any) -> Any:
        """Return the kernel's weights as rows."""
        turned = kernel if self.channels is None else tf.transpose(kernel, self._order)
        return tf.reshape(turned, self.size)

    def give(self, rows: Any) -> Any:
        """Return the kernel that the rows were taken from."""
        if self.channels is None:
            return tf.reshape(rows, self.shape)
        turned = tf.reshape(rows, [self.shape[axis] for axis in self._order])
        return tf.transpose(turned, [self._order.index(axis) for axis in range(len(self.shape))])

    @property
    def _order(self) -> list[int]:
        channels = list(self.channels or ())
        return channels + [axis for axis in range(len(self.shape)) if axis not in channels]


def _on_gpu(index: Any) -> bool:
    return "GPU" in (index.device or "")


def _usable(index: Any) -> Any:
    """Return an index kept in a variable, in the type that its device computes with."""
    # TensorFlow computes with int32 on the host, also in the middle of a GPU's step.
    return tf.cast(index, tf.int64 if _on_gpu(index) else tf.int32)


def _sums(rows: Any, index: Any, clusters: int) -> Any:
    """Return what the weights of each row's clusters add up to."""
    if index.dtype == tf.int64:
        lines = rows.shape[0]
        # There is no float64 kernel of DenseBincount on GPUs.
        places = index + clusters * tf.range(lines, dtype=tf.int64)[:, None]
        flat = tf.math.unsorted_segment_sum(rows, places, lines * clusters)
        return tf.reshape(flat, [lines, clusters])
    # Sums of segments take ten times as long on a CPU. A row is summed by one thread, in order.
    return tf.raw_ops.DenseBincount(input=index, size=clusters, weights=rows, binary_output=False)


def _even(rows: Rows, kernel: Any, index: Any, share: Any) -> Any:
    """Return the kernel with the mean of its weights for each cluster."""
    means = _sums(tf.cast(rows.take(kernel), tf.float64), index, share.shape[1]) * share
    values = tf.cast(means, kernel.dtype)
    # A gather without batch dimensions is faster.
    one_row = values.shape[0] == 1
    evened = tf.gather(values[0], index) if one_row else tf.gather(values, index, batch_dims=1)
    return rows.give(evened)


@cache
def _compiled(rows: Rows) -> Any:
    """Return one program for all kernels of the same shape."""

    def even(kernel: Any, index: Any, share: Any) -> Any:
        return _even(rows, kernel, tf.cast(index, tf.int32), share)

    return tf.function(even, jit_compile=True, autograph=False)


@dataclass(frozen=True)
class Layout:
    """How a kernel is clustered: by channels or whole, with a cluster of zeros or without."""

    channels: Axes | None = None
    zeros: bool = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Layout:
        """Return the layout that ``asdict`` described."""
        return cls(config["channels"] and tuple(config["channels"]), config["zeros"])


@dataclass(frozen=True)
class _State:
    """A kernel's clusters: where each weight belongs, and what it adds to its cluster's mean.

    A cluster that is fixed at zero has shares of zero. ``step`` is the batch that will be trained
    next, where the clusters begin later; None once they are there. Until then the index says which
    weights are not zero, where zeros stay.
    """

    kernel: Any
    rows: Rows
    index: Any
    shares: Any
    step: Any

    def with_zeros(self, value: Any) -> Any:
        """Return the kernel with the zeros that it has had since before there were clusters."""
        free = tf.not_equal(self.rows.give(self.index.read_value()), 0)
        return tf.where(free, value, 0)

    def await_clusters(self, local: Any) -> None:
        """Note the zeros that stay until there are clusters."""
        self.index.assign(tf.cast(tf.not_equal(self.rows.take(local), 0), self.index.dtype))

    def project(self, value: Any) -> Any:
        """Return the nearest kernel in which each cluster has one value."""
        share = self.shares.read_value()
        # One pass of machine code instead of an operation for each conversion, sum and look-up:
        # less than half the time. Keras does not use XLA on a Mac either.
        if tf.inside_function() and not _on_gpu(self.index) and sys.platform != "darwin":
            return _compiled(self.rows)(value, self.index.read_value(), share)
        return _even(self.rows, value, _usable(self.index), share)


@keras.saving.register_keras_serializable(package="tfopt")
class WeightClusters(Held):
    """A kernel constraint holding clusters; the layer's own constraint, if any, acts first.

    Which weight belongs to which cluster is not among the layer's weights: in a loaded kernel,
    equal values are a cluster. The first call finds them; in a compiled step it comes before the
    first update. Trained with ``run_eagerly=True``, a loaded kernel has already had one update by
    then: its clusters are formed anew, and zeros are gone.

    Example:
        layer.kernel_constraint = WeightClusters(16)

    Args:
        begin_step: The batch, counted from 1, at which the clusters are formed; 0 and 1 mean: at
            once.
        layouts: How each kernel is clustered, by the kernel's name.
    """

    def __init__(
        self,
        clusters: int,
        inner: Any = None,
        step: int = 1,
        *,
        initial: str = "kmeans++",
        begin_step: int = 0,
        layouts: Mapping[str, Layout] | None = None,
    ) -> None:
        super().__init__(inner)
        self.clusters = clusters
        self.initial = initial
        self.begin_step = begin_step
        self.layouts = dict(layouts or {})
        self._first_step = step
        self._fresh = False

    def bind(self, kernel: Any) -> None:
        """Form a kernel's clusters, if they are to be there at once. Not for a compiled step."""
        self._fresh = True
        state = self._state(kernel)
        if state.step is None:
            kernel.assign(state.project(kernel.value))

    def settle(self, kernel: Any) -> None:
        """Form the clusters anew in a kernel that was given too many values from elsewhere."""
        state = self._states.get(id(kernel))
        if state is None:
            return
        if self.waits:
            if self.layout(kernel).zeros:
                kernel.assign(state.with_zeros(kernel.value))
            return
        if most_values(state.rows.take(kernel.value).numpy()) > self.clusters:
            self._form(state, tf.convert_to_tensor(kernel.value))
            kernel.assign(state.project(kernel.value))

    def __call__(self, w: Any) -> Any:
        state = self._state(w)
        value = self._after_inner(w)
        if state.step is None:
            return state.project(value)
        step = tf.convert_to_tensor(state.step.assign_add(1))

        def waiting() -> Any:
            return state.with_zeros(value) if self.layout(w).zeros else value

        def form() -> Any:
            self._form(state, waiting())
            return state.project(waiting())

        def later() -> Any:
            return tf.cond(step == self.begin_step, form, lambda: state.project(value))

        return tf.cond(step < self.begin_step, waiting, later)

    @property
    def step(self) -> int:
        """Return the number of the batch that is trained next; ``begin_step`` from there on."""
        for state in self._states.values():
            return self.begin_step if state.step is None else int(state.step.numpy())
        return self._first_step

    @property
    def one_scale(self) -> bool:
        """Return whether integers for the values should have one scale for a whole kernel."""
        return all(layout.channels is None for layout in self.layouts.values())

    @property
    def waits(self) -> bool:
        """Return whether the clusters are still to be formed."""
        return self.step < self.begin_step

    def layout(self, kernel: Any) -> Layout:
        """Return how a kernel is clustered."""
        return setting_of(self.layouts, kernel) or Layout()

    def _made(self, kernel: Any, local: Any) -> _State:
        layout = self.layout(kernel)
        rows = Rows(tuple(kernel.shape), layout.channels)
        step, waits = self.step, self.waits
        dtype = tf.uint8 if self.clusters <= 256 else tf.uint16
        index = replicated(tf.zeros(rows.size, dtype), "weight_clusters")
        share = replicated(
            tf.ones([rows.size[0], self.clusters], tf.float64), "weight_clusters_shares"
        )
        counter = replicated(tf.constant(step, tf.int64), "weight_clusters_step") if waits else None
        state = _State(kernel, rows, index, share, counter)
        if waits:
            state.await_clusters(local)
        elif self._fresh:
            self._form(state, tf.convert_to_tensor(local))
        else:
            self._recover(state, local)
        return state

    def _fit(self, state: _State, local: Any) -> None:
        if state.step is not None and int(state.step.numpy()) < self.begin_step:
            if 1 < most_values(state.rows.take(local).numpy()) <= self.clusters:
                # Restored weights that have been clustered: the time of waiting is over.
                self._recover(state, local)
                state.step.assign(self.begin_step)
            else:
                state.await_clusters(local)
            return
        if tf.reduce_all(state.project(local) == local):
            return
        self._recover(state, local)

    def _recover(self, state: _State, local: Any) -> None:
        """Find the clusters of weights that have been clustered, and form those of others."""
        rows = state.rows.take(local).numpy()
        if most_values(rows) > self.clusters:
            self._form(state, tf.convert_to_tensor(local))
            return
        found = recovered_clusters(rows, self.layout(state.kernel).zeros)
        self._enter(state, tf.constant(found))

    def _form(self, state: _State, value: Any) -> None:
        rows = tf.cast(state.rows.take(value), tf.float64)
        zeros = self.layout(state.kernel).zeros
        counted = rows != 0 if zeros else tf.ones_like(rows, tf.bool)
        values = codebook(rows, counted, self.clusters - zeros, self.initial)
        index = nearest(rows, values)
        self._enter(state, tf.where(counted, index + 1, 0) if zeros else index)

    def _enter(self, state: _State, index: Any) -> None:
        """Enter where each weight belongs; cluster 0 is that of the zeros, where there is one."""
        state.index.assign(tf.cast(index, state.index.dtype))
        usable = _usable(state.index)
        sizes = _sums(tf.ones(usable.shape, tf.float64), usable, self.clusters)
        share = 1 / tf.maximum(sizes, 1)
        if self.layout(state.kernel).zeros:
            share = tf.concat([tf.zeros_like(share[:, :1]), share[:, 1:]], axis=1)
        state.shares.assign(share)

    def get_config(self) -> dict[str, Any]:
        self.settle_all()
        return {
            "clusters": self.clusters,
            "inner": keras.constraints.serialize(self.inner),
            "step": self.step,
            "initial": self.initial,
            "begin_step": self.begin_step,
            "layouts": {name: asdict(layout) for name, layout in self.layouts.items()},
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> WeightClusters:
        return cls(
            config["clusters"],
            config["inner"],
            config["step"],
            initial=config["initial"],
            begin_step=config["begin_step"],
            layouts={
                name: Layout.from_config(layout) for name, layout in config["layouts"].items()
            },
        )
