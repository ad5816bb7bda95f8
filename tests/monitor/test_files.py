"""Files of samples while a run goes on, as a program without tfopt reads them."""

import csv
import json
import os
from dataclasses import replace
from types import SimpleNamespace

from traces import HEALTHY, HEAT, marks, trace

from tfopt.monitor.readings import GPU_METRICS, HOST_METRICS, GpuProcess, StepMark
from tfopt.monitor.sample_files import CsvLog
from tfopt.monitor.sampler import sampling


def rows_of(kind, path):
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["row"] == kind]


def figures(row, metrics):
    return {m.name: float(row[m.name]) if row[m.name] else None for m in metrics}


def test_every_figure_is_in_its_row(tmp_path):
    """Numbers that decimals cannot hold, what is not known, and texts that need quoting."""
    gpu = {metric.name: 0.1 + 1e9 / (3 + n) for n, metric in enumerate(GPU_METRICS)}
    host = {metric.name: 1e-9 + 1 / (3 + n) for n, metric in enumerate(HOST_METRICS)}
    processes = (GpuProcess(7, 'a "name", with\nlines', 1 / 3), GpuProcess(8, None, None))
    told = {"clock_reasons": (HEAT,), "processes": processes}
    recording = trace(
        1, gpu=[gpu | told, dict.fromkeys(HEALTHY)], host=host, names=["Ä, board", "Other"],
        steps=marks(3, each=1 / 3, wait=None), missing={"fan_percent": "NVML: Not Supported"},
    )  # fmt: skip
    recording = replace(recording, host_missing={"disk_read_mib_per_s": "a rate needs two"})
    ended = SimpleNamespace(recording=lambda *times: recording, listen=lambda log: None)
    path = CsvLog(tmp_path / "samples.csv", ended).close()
    hosts, gpus, steps = (rows_of(kind, path) for kind in ("host", "gpu", "step"))
    assert [figures(row, HOST_METRICS) for row in hosts] == [host, host]
    assert figures(gpus[0], GPU_METRICS) == gpu
    assert set(figures(gpus[1], GPU_METRICS).values()) == {None}
    assert json.loads(gpus[0]["clock_reasons"]) == [[HEAT.description, "heat"]]
    listed = [[7, 'a "name", with\nlines', 1 / 3], [8, None, None]]
    assert json.loads(gpus[0]["processes"]) == listed
    assert [(float(row["at_s"]), float(row["seconds"]), row["input_wait_s"]) for row in steps] == [
        (mark.ended_s, mark.seconds, "") for mark in recording.steps
    ]
    about, *boards = (json.loads(row["told"]) for row in rows_of("about", path))
    missing = {"no_gpu_reason": None, "host_missing": recording.host_missing}
    assert about == {"format": 1, **missing}
    assert [board["name"] for board in boards] == ["Ä, board", "Other"]
    assert boards[0]["missing"] == {"fan_percent": "NVML: Not Supported"}


def test_a_log_holds_each_sample_as_soon_as_it_is_taken(tmp_path):
    now, path = [0.0], tmp_path / "log.csv"
    path.write_text("of an earlier run")
    with sampling(os.getpid(), clock=lambda: now[0], wanted={}, period_s=60) as sampler:
        log = CsvLog(path, sampler)
        for moment in (1.0, 2.0, 3.0):
            now[0] = moment
            sampler.mark(StepMark(moment - 0.5, steps=3))
            sampler.take()
            assert float(rows_of("host", path)[-1]["at_s"]) == moment
            assert float(rows_of("step", path)[-1]["at_s"]) == moment - 0.5
            told = json.loads(rows_of("about", path)[-1]["told"])
            assert told["host_missing"] == sampler.recording().host_missing
        # A mark that comes late, of before the last sample.
        sampler.mark(StepMark(2.9, steps=4))
        assert len(rows_of("step", path)) == 3  # the thread that trains does not write
        assert log.close() == log.close() == path
        sampler.take()
    times = [float(row["at_s"]) for row in rows_of("host", path)]
    assert times == [0.0, 1.0, 2.0, 3.0]
    assert [int(row["steps"]) for row in rows_of("step", path)] == [3, 3, 3, 4]
    assert path.read_text(encoding="utf-8").startswith("time,row,at_s,device,")
