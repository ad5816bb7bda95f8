"""Serve the newest sample to Prometheus, on loopback by default.

Names follow Prometheus's conventions: base units (bytes, seconds, hertz, ratios from 0 to 1),
``_total`` after counters. A metric that is None is left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field
from typing import Any

from tfopt.data.sources.source import needs
from tfopt.errors import UserError, within
from tfopt.monitor.readings import GPU_METRICS, HOST_METRICS, Recording

LOOPBACK = "127.0.0.1"
Values = Sequence[tuple[tuple[str, ...], Any]]  # by the labels of their device
_GPU_LABELS = ("uuid", "name", "index")
_TRAINING = (
    ("tfopt_training_steps", "Training steps", "steps"),
    ("tfopt_training_seconds", "Time that the training steps took", "seconds"),
    ("tfopt_training_examples", "Examples trained on", "examples"),
    ("tfopt_training_input_wait_seconds", "Time that steps waited for input", "input_wait_s"),
)
# By the suffix of a metric's name, that of Prometheus's base unit, and the factor.
_BASE_UNITS = {
    "_mib_per_s": ("_bytes_per_second", 2.0**20),
    "_mib": ("_bytes", 2.0**20),
    "_percent": ("_ratio", 0.01),
    "_mhz": ("_hertz", 1e6),
    "_c": ("_celsius", 1.0),
    "_w": ("_watts", 1.0),
    "_j": ("_joules", 1.0),
}


def prometheus_name(metric: Field[Any], device: str) -> tuple[str, float]:
    """Return a metric's name and factor: for ``sm_clock_mhz`` ``tfopt_gpu_sm_clock_hertz``, 1e6."""
    suffix = next((suffix for suffix in _BASE_UNITS if metric.name.endswith(suffix)), "")
    unit, factor = _BASE_UNITS.get(suffix, ("", 1.0))
    unit += "_total" if metric.metadata["is_counter"] else ""
    return f"tfopt_{device}_{metric.name.removesuffix(suffix)}{unit}", factor


class NewestSample:
    """Collect the last sample of a recording."""

    def __init__(self, recording: Callable[[], Recording]) -> None:
        self._recording = recording

    def collect(self) -> Iterator[Any]:
        """Yield the metrics at each scrape."""
        recording = self._recording()
        if not recording.samples:
            return
        newest = recording.samples[-1]
        for metric in HOST_METRICS:
            yield from _metric(metric, "host", [((), getattr(newest.host, metric.name))])
        labels = [(gpu.uuid, gpu.name, str(place)) for place, gpu in enumerate(recording.gpus)]
        gpus = list(zip(labels, newest.gpus, strict=False))
        for metric in GPU_METRICS:
            yield from _metric(metric, "gpu", [(of, getattr(gpu, metric.name)) for of, gpu in gpus])
        throttled = "Whether heat, power or hardware throttles the clocks"
        known = [(of, gpu.throttled_by != []) for of, gpu in gpus if gpu.clock_reasons is not None]
        yield from _family("tfopt_gpu_throttled", throttled, known)
        for name, description, field in _TRAINING:
            total = getattr(recording.trained, field, None)
            values = [] if total is None else [((), total)]
            yield from _family(f"{name}_total", description, values)


def _metric(metric: Field[Any], device: str, values: Values) -> Iterator[Any]:
    name, factor = prometheus_name(metric, device)
    known = [(of, value * factor) for of, value in values if value is not None]
    return _family(name, metric.metadata["description"], known)


def _family(name: str, description: str, values: Values) -> Iterator[Any]:
    """Yield the family of these values, a counter if its name ends in ``_total``."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    if not values:
        return
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, description, labels=_GPU_LABELS if values[0][0] else ())
    for of, value in values:
        family.add_metric(of, float(value))
    yield family


@contextmanager
def serving(recording: Callable[[], Recording], port: int, host: str = LOOPBACK) -> Iterator[int]:
    """Serve ``/metrics`` while the block runs, and yield the port (0 finds a free one)."""
    client = client_library()
    registry = client.CollectorRegistry()
    registry.register(NewestSample(recording))
    try:
        server, thread = client.start_http_server(port, host, registry)
    except OSError as error:
        raise UserError(
            f"The Prometheus endpoint cannot listen on {host}:{port}.",
            expected="a free port of an address of this machine",
            received=f"{type(error).__name__}: {error.strerror or error}",
            fix="choose another port; 0 finds a free one",
        ) from error
    try:
        yield int(server.server_port)
    finally:
        ending = threading.Thread(target=_end, args=(server, thread))
        ending.start()
        # A failed training may be collected in the server's thread, which cannot join itself.
        if threading.current_thread() is not thread:
            ending.join()


def _end(server: Any, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()


def client_library() -> Any:
    """Return ``prometheus_client``; name the extra that installs it where it is missing."""
    return needs("prometheus_client", "The Prometheus endpoint", "monitor")


def require_port(port: object) -> None:
    """Refuse an invalid port."""
    if isinstance(port, bool) or not isinstance(port, int) or not within(port, 0, 65536):
        raise UserError(
            "Invalid Prometheus port.",
            expected="a whole number from 0 (any free one) to 65535",
            received=repr(port),
        )
