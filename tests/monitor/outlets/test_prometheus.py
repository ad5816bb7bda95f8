"""The Prometheus endpoint, its names, and the dashboard for Grafana that asks for them."""

import dataclasses
import json
import re
import socket
import urllib.request
from pathlib import Path

import pytest
from traces import HEAT, marks, trace

from tfopt import UserError
from tfopt.monitor.outlets import prometheus
from tfopt.monitor.outlets.prometheus import (
    NewestSample,
    prometheus_name,
    serving,
)
from tfopt.monitor.readings import GPU_METRICS, HOST_METRICS, Recording

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

DASHBOARD = json.loads(Path(prometheus.__file__).with_name("grafana.json").read_text())
EVERYTHING = {
    "gpu": [{m.name: 50 for m in GPU_METRICS}, {m.name: 1 for m in GPU_METRICS}],
    "host": {m.name: 50 for m in HOST_METRICS},
}


def families(recording):
    """Return what is served of a recording, by name."""
    registry = CollectorRegistry()
    registry.register(NewestSample(lambda: recording))
    text = generate_latest(registry).decode()
    return {each.name: each for each in text_string_to_metric_families(text)}


def full():
    return trace(steps=marks(examples=320, wait=0.1), **EVERYTHING)


def test_every_metric_of_the_table_is_served_in_base_units():
    served = families(full())
    for device, metrics in (("gpu", GPU_METRICS), ("host", HOST_METRICS)):
        for metric in metrics:
            name, _ = prometheus_name(metric, device)
            assert name.removesuffix("_total") in served, name
            assert name.endswith("_total") == metric.metadata["is_counter"]
            assert not re.search(r"_(mib|mhz|percent|mib_per_s)\b", name), name
    samples = [s for family in served.values() for s in family.samples]
    values = {s.name: s.value for s in samples if s.labels.get("index") == "0"}
    assert values["tfopt_gpu_utilisation_ratio"] == 0.5
    assert values["tfopt_gpu_device_bytes"] == 50 * 2**20
    assert values["tfopt_gpu_sm_clock_hertz"] == 50e6
    assert values["tfopt_gpu_energy_joules_total"] == 50
    assert [s.value for s in samples if s.name == "tfopt_host_cpu_ratio"] == [0.5]
    assert [s.labels for s in samples if s.name == "tfopt_gpu_power_watts"] == [
        {"uuid": "GPU-0", "name": "NVIDIA Trace", "index": "0"},
        {"uuid": "GPU-1", "name": "NVIDIA Trace", "index": "1"},
    ]
    # Training counters are the sums of all marks.
    sums = {s.name: s.value for s in samples if s.name.startswith("tfopt_training")}
    assert sums["tfopt_training_steps_total"] == 600
    assert sums["tfopt_training_examples_total"] == 60 * 320
    assert sums["tfopt_training_input_wait_seconds_total"] == pytest.approx(6)


def test_what_is_not_known_is_left_out_and_never_0():
    served = families(trace(gpu={"power_w": None, "clock_reasons": None}))
    assert "tfopt_gpu_power_watts" not in served
    assert "tfopt_gpu_throttled" not in served
    assert "tfopt_training_steps" not in served
    served = families(trace(gpu={"clock_reasons": (HEAT,)}))
    assert served["tfopt_gpu_throttled"].samples[0].value == 1
    # Without a GPU, and with a driver that went away, the host is left.
    gone = full()
    gone = dataclasses.replace(gone, samples=(dataclasses.replace(gone.samples[-1], gpus=()),))
    for recording in (trace(), gone):
        assert "tfopt_host_rss_bytes" in families(recording)
    assert families(Recording((), (), "nothing yet")) == {}


def test_it_listens_on_loopback_only_and_frees_its_port():
    with serving(full, 0) as port:
        listening = socket.create_connection(("127.0.0.1", port), 30)
        assert listening.getsockname()[0] == "127.0.0.1"
        listening.close()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            assert "tfopt_host_rss_bytes" in answer.read().decode()
        with serving(trace, 0) as second:  # two endpoints of one process do not mix
            assert second != port
        with pytest.raises(UserError, match="cannot listen on"), serving(full, port):
            pass
    with serving(full, port) as again:
        assert again == port


def queries():
    asked = [t["expr"] for panel in DASHBOARD["panels"] for t in panel.get("targets", ())]
    return asked + [v["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]


def test_the_dashboard_asks_only_for_what_the_endpoint_serves():
    served = families(full())
    names = {s.name for f in served.values() for s in f.samples}
    labels = {label for f in served.values() for s in f.samples for label in s.labels}
    asked = {name for query in queries() for name in re.findall(r"tfopt_\w+", query)}
    assert len(asked) >= 25
    assert asked <= names
    by = {label for query in queries() for label in re.findall(r"(\w+)=~", query)}
    assert by <= labels | {"instance"}  # which Prometheus adds
    legends = [t["legendFormat"] for p in DASHBOARD["panels"] for t in p.get("targets", ())]
    assert {x for each in legends for x in re.findall(r"{{(\w+)}}", each)} <= labels | {"instance"}

    # Counters are asked for as rates, and gauges are not.
    for query in queries():
        for name in re.findall(r"tfopt_\w+", query):
            asked_as_rate = f"rate({name}" in query or f"increase({name}" in query
            assert asked_as_rate == name.endswith("_total"), query
