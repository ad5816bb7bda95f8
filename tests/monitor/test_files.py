"""Files of samples, whole or while a run goes on, as a program without tfopt reads them."""

import csv
import json
import os
from dataclasses import astuple, fields, replace
from types import SimpleNamespace

import pytest
from traces import HEALTHY, HEAT, marks, trace

from tfopt.monitor.readings import (
    GPU_METRICS,
    HOST_METRICS,
    GpuProcess,
    SampledGpu,
    StepMark,
)
from tfopt.monitor.sample_files import CsvLog
from tfopt.monitor.sampler import sampling


def full():
    """Numbers that decimals cannot hold, what is not known, and texts that need quoting."""
    gpu = {metric.name: 0.1 + 1e9 / (3 + n) for n, metric in enumerate(GPU_METRICS)}
    gpu["clock_reasons"] = (HEAT,)
    gpu["processes"] = (GpuProcess(7, 'a "name", with\nlines', 1 / 3), GpuProcess(8, None, None))
    host = {metric.name: 1e-9 + 1 / (3 + n) for n, metric in enumerate(HOST_METRICS)}
    recording = trace(
        1, gpu=[gpu, dict.fromkeys(HEALTHY)], host=host, names=["Ä, board", "Other"],
        steps=marks(3, each=1 / 3, wait=None), missing={"fan_percent": "NVML: Not Supported"},
    )  # fmt: skip
    return replace(recording, host_missing={"disk_read_mib_per_s": "a rate needs two readings"})


@pytest.fixture
def turned():
    """A sampler on a clock that the test turns."""
    now = [0.0]
    with sampling(os.getpid(), clock=lambda: now[0], wanted={}, period_s=60) as sampler:

        def take(moment):
            now[0] = moment
            sampler.take()

        sampler.take_at = take
        yield sampler


def write_csv(recording, path):
    """Write a recording through the log of a sampler that has ended."""

    def since(begun_s):
        return replace(recording, samples=[s for s in recording.samples if s.at_s >= begun_s])

    def marks(begun_s):
        return [mark for mark in recording.steps if mark.ended_s >= begun_s]

    sampler = SimpleNamespace(recording=since, marks=marks, listen=lambda log: None)
    return CsvLog(path, sampler).close()


def of(kind, path):
    """The rows of this kind without what is empty; numbers and JSON are read alike."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        {name: value(name, v) for name, v in row.items() if name != "row" and v not in ("", None)}
        for row in rows
        if row["row"] == kind
    ]


def value(name, given):
    return json.loads(given) if isinstance(given, str) and name not in ("device", "time") else given


def known(reading, **beside):
    """What is known of a reading, as JSON has it."""
    values = {field.name: getattr(reading, field.name) for field in fields(reading)}
    values = beside | {name: v for name, v in values.items() if v is not None}
    return json.loads(json.dumps(values, default=astuple))


@pytest.mark.parametrize("recording", [full(), replace(full(), samples=())])
def test_every_figure_is_in_its_row(tmp_path, recording):
    path = write_csv(recording, tmp_path / "samples.csv")
    samples = recording.samples
    assert of("host", path) == [known(each.host, at_s=each.at_s) for each in samples]
    assert of("gpu", path) == [
        known(reading, at_s=each.at_s, device=gpu.uuid)
        for each in samples
        for gpu, reading in zip(recording.gpus, each.gpus, strict=True)
    ]
    for row in of("gpu", path)[:1]:
        assert row["clock_reasons"] == [[HEAT.description, "heat"]]
        assert row["processes"] == [[7, 'a "name", with\nlines', 1 / 3], [8, None, None]]
    about, *gpus = of("about", path)
    told = {"no_gpu_reason": recording.no_gpu_reason, "host_missing": recording.host_missing}
    assert about["told"] == {"format": 1, **told}
    assert [SampledGpu(row["device"], **row["told"]) for row in gpus] == list(recording.gpus)
    steps = of("step", path)
    assert [StepMark(row.pop("at_s"), **row) for row in steps] == list(recording.steps)


def test_a_log_holds_each_sample_as_soon_as_it_is_taken(tmp_path, turned):
    path = tmp_path / "log.csv"
    path.write_text("of an earlier run")
    log = CsvLog(path, turned)

    def is_whole():
        now, steps = turned.recording(), of("step", path)
        return (
            of("host", path)
            == [
                known(each.host, at_s=each.at_s, time=each.time.isoformat()) for each in now.samples
            ]
            and {StepMark(row.pop("at_s"), **row) for row in steps} == set(now.steps)
            and of("about", path)[-1]["told"]["host_missing"] == now.host_missing
        )

    assert is_whole()
    for moment in (1.0, 2.0, 3.0):
        turned.mark(StepMark(moment - 0.5, steps=3))
        turned.take_at(moment)
        assert is_whole()
    # A mark that comes late, of before the last sample.
    turned.mark(StepMark(2.9, steps=4))
    assert log.close() == log.close() == path
    assert is_whole()
    turned.take_at(4.0)
    assert len(of("host", path)) == 4
    assert path.read_text(encoding="utf-8").startswith("time,row,at_s,device,")
