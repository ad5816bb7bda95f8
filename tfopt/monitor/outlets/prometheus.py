"""Serve the newest sample to Prometheus: off unless asked for, and on loopback by default.

Names are made from the table of metrics by Prometheus's conventions: base units (bytes, seconds,
hertz, ratios from 0 to 1), ``_total`` after counters. A metric that is None is left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tfopt.errors import UserError, within
from tfopt.monitor.findings.finding import is_throttled
from tfopt.monitor.metrics import GPU_METRICS, HOST_METRICS, OF_A_PART, Metric
from tfopt.monitor.readings import Recording, board_places

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

LOOPBACK = "127.0.0.1"
_GPU_LABELS = ("uuid", "name", "index", "part_of")
# By unit, the base unit as it stands in a name, and the factor.
_BASE_UNITS = {
    "MiB": ("bytes", 2.0**20),
    "MiB/s": ("bytes_per_second", 2.0**20),
    "%": ("ratio", 0.01),
    "MHz": ("hertz", 1e6),
    "°C": ("celsius", 1.0),
    "W": ("watts", 1.0),
    "J": ("joules", 1.0),
    "s": ("seconds", 1.0),
    "": ("", 1.0),
}
_ENDINGS = ("_mib_per_s", "_percent", "_mhz", "_mib", "_c", "_w", "_j", "_s")


def prometheus_name(metric: Metric, device: str) -> str:
    """Return a metric's name, such as ``tfopt_gpu_sm_clock_hertz`` for ``sm_clock_mhz``."""
    bare = metric.name
    if metric.unit:
        bare = next((bare[: -len(end)] for end in _ENDINGS if bare.endswith(end)), bare)
    unit = _BASE_UNITS[metric.unit][0]
    parts = ["tfopt", device, bare, unit, "total" if metric.kind == "counter" else ""]
    return "_".join(part for part in parts if part)


class NewestSample:
    """Collect the last sample of a recording."""

    def __init__(self, recording: Callable[[], Recording]) -> None:
        self._recording = recording

    def collect(self) -> Iterator[Family]:
        """Yield the metrics at each scrape."""
        recording = self._recording()
        if not recording.samples:
            return
        newest = recording.samples[-1]
        for metric in HOST_METRICS:
            value = getattr(newest.host, metric.name)
            if isinstance(value, tuple):
                labelled = [((str(core),), each) for core, each in enumerate(value)]
                yield _family(metric, "host", ("core",), labelled)
            elif value is not None:
                yield _family(metric, "host", (), [((), value)])
        devices = [
            (gpu.uuid, gpu.name, str(place), gpu.part_of or "")
            for place, gpu in enumerate(recording.gpus)
        ]
        # What the parts of a GPU share is served once, so that sums are right.
        boards = {devices[place] for place in board_places(recording.gpus)}
        for metric in GPU_METRICS:
            values = [
                (labels, value)
                for labels, reading in zip(devices, newest.gpus, strict=False)
                if (value := getattr(reading, metric.name)) is not None
                and (labels in boards or metric.name in OF_A_PART)
            ]
            if values:
                yield _family(metric, "gpu", _GPU_LABELS, values)
        yield _throttled(devices, boards, recording)
        yield from _training(recording)


_Labels = tuple[str, str, str, str]


def _family(
    metric: Metric, device: str, labels: tuple[str, ...], values: list[tuple[Any, float]]
) -> Family:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(prometheus_name(metric, device), metric.description, labels=labels)
    for of, value in values:
        family.add_metric(of, value * _BASE_UNITS[metric.unit][1])
    return family


def _throttled(devices: list[_Labels], boards: set[_Labels], recording: Recording) -> Family:
    from prometheus_client.core import GaugeMetricFamily

    description = "Whether heat, power or hardware holds the clocks down"
    family = GaugeMetricFamily("tfopt_gpu_throttled", description, labels=_GPU_LABELS)
    for labels, reading in zip(devices, recording.samples[-1].gpus, strict=False):
        if reading.clock_reasons is not None and labels in boards:
            family.add_metric(labels, float(is_throttled(reading)))
    return family


def _training(recording: Recording) -> Iterator[Family]:
    """Yield the sums of all marks, so that a scrape misses none."""
    from prometheus_client.core import CounterMetricFamily

    for name, description, field in (
        ("tfopt_training_steps", "Training steps", "steps"),
        ("tfopt_training_seconds", "Time that the training steps took", "seconds"),
        ("tfopt_training_examples", "Examples trained on", "examples"),
        ("tfopt_training_input_wait_seconds", "Time that steps waited for input", "input_wait_s"),
    ):
        values = [v for mark in recording.steps if (v := getattr(mark, field)) is not None]
        if values:
            yield CounterMetricFamily(name, description, value=float(sum(values)))


@contextmanager
def serving(recording: Callable[[], Recording], port: int, host: str = LOOPBACK) -> Iterator[int]:
    """Serve ``/metrics`` while the block runs, and yield the port (0 finds a free one)."""
    client = require_client()
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
        # A training that an error has ended may be collected in the server's own thread, which
        # cannot wait for its end.
        if threading.current_thread() is not thread:
            ending.join()


def _end(server: Any, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()


def require_client() -> Any:
    """Return ``prometheus_client``; refuse with what to install for it."""
    try:
        import prometheus_client
    except ImportError as error:
        raise UserError(
            "The Prometheus endpoint needs the package prometheus-client.",
            received=str(error),
            fix="pip install 'tfopt[monitor]'",
        ) from error
    return prometheus_client


def require_port(port: object) -> None:
    """Refuse what is no port."""
    if isinstance(port, bool) or not isinstance(port, int) or not within(port, 0, 65536):
        raise UserError(
            "The Prometheus endpoint's port is none.",
            expected="a whole number from 0 (any free one) to 65535",
            received=repr(port),
        )
