"""Write and read files of samples, whole, cut off, or while a run goes on."""

import csv
import os
import resource
import signal
import sys
from dataclasses import replace

import pytest
from pyarrow import parquet

from tfopt.errors import UserError
from tfopt.monitor.metrics import GPU_METRICS, HOST_METRICS
from tfopt.monitor.readings import (
    ClockReason,
    GpuProcess,
    GpuReading,
    HostReading,
    Recording,
    Sample,
    SampledGpu,
    StepMark,
)
from tfopt.monitor.sample_files import CsvLog, read_recording, write_csv, write_parquet
from tfopt.monitor.sampler import sampling


def full():
    """Every metric with a number that decimals cannot hold, None, and texts that need quoting."""
    values = {metric.name: 0.1 + 1e9 / (3 + n) for n, metric in enumerate(GPU_METRICS)}
    gpu = GpuReading(
        **values,
        clock_reasons=(ClockReason("heat, seen by the driver", throttles=True),),
        processes=(GpuProcess(7, 'a "name", with\nlines', 1 / 3), GpuProcess(8, None, None)),
    )
    bare = GpuReading(clock_reasons=(), processes=())
    host = {metric.name: 1e-9 + 1 / (3 + n) for n, metric in enumerate(HOST_METRICS)}
    host |= {"cpu_percent": (1 / 3, 100.0, 0.0)}
    gpus = (
        SampledGpu("GPU-a", "Ä, board", {"fan_percent": "NVML: Not Supported"}),
        SampledGpu("MIG-b", "Part", {}, part_of="GPU-a"),
    )
    return Recording(
        samples=(
            Sample(1 / 3, HostReading(**host), (gpu, bare)),
            Sample(0.7, HostReading(), (GpuReading(), gpu)),
        ),
        gpus=gpus,
        no_gpu_reason=None,
        steps=(StepMark(0.5, 10, 0.1 + 0.2, 640, 0.0), StepMark(0.6)),
        host_missing={"disk_read_mib_per_s": "a rate needs two readings"},
    )


def without_gpus():
    return Recording((Sample(1.0, HostReading(rss_mib=5.5)),), (), "NVML: Driver Not Loaded")


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


@pytest.mark.parametrize("recording", [full(), without_gpus(), replace(full(), samples=())])
def test_what_is_written_is_read(tmp_path, recording):
    assert read_recording(write_csv(recording, tmp_path / "samples.csv")) == recording
    assert read_recording(write_parquet(recording, tmp_path / "samples.parquet")) == recording


def test_a_file_is_a_plain_table_of_the_metrics(tmp_path):
    table = parquet.read_table(write_parquet(full(), tmp_path / "samples.parquet"))
    assert str(table.schema.field("power_w").type) == "double"
    assert str(table.schema.field("steps").type) == "int64"
    with write_csv(full(), tmp_path / "samples.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["row"] == "gpu"]
    assert [row["device"] for row in rows] == ["GPU-a", "MIG-b", "GPU-a", "MIG-b"]
    assert float(rows[0]["power_w"]) == full().samples[0].gpus[0].power_w
    assert [row["power_w"] for row in rows[1:3]] == ["", ""]
    assert {metric.name for metric in (*GPU_METRICS, *HOST_METRICS)} <= set(rows[0])


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = write_csv(without_gpus(), tmp_path / "samples.csv")
    whole = path.read_bytes()
    path.write_bytes(whole + b"host,2.5,,")
    assert read_recording(path) == without_gpus()
    write_csv(full(), path)
    lines = path.read_bytes().splitlines(keepends=True)
    # Cut off within the first sample, between its GPUs: the second has no reading there.
    path.write_bytes(b"".join(lines[:6]) + lines[6][:20])
    (sample,) = read_recording(path).samples
    assert sample == replace(full().samples[0], gpus=(full().samples[0].gpus[0], GpuReading()))


def test_what_cannot_be_read_or_written_is_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no file"):
        read_recording(tmp_path / "nowhere.csv")
    other = tmp_path / "other.csv"
    for text in ("", "a,b\n1,2\n", "row,at_s\nhost,x\n", "row,at_s\nhost,1\n"):
        other.write_text(text)
        with pytest.raises(UserError, match="no samples that can be read"):
            read_recording(other)
    (tmp_path / "not.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="no samples that can be read"):
        read_recording(tmp_path / "not.parquet")
    newer = write_csv(without_gpus(), other).read_text().replace('""format"": 1', '""format"": 9')
    other.write_text(newer)
    with pytest.raises(UserError, match="newer tfopt"):
        read_recording(other)
    with pytest.raises(UserError, match="does not exist"):
        write_csv(full(), tmp_path / "no" / "folder.csv")
    # As where it is not installed: the import system refuses a name that is None.
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for use in (lambda path: write_parquet(full(), path), read_recording):
        with pytest.raises(UserError, match=r"tfopt\[parquet\]"):
            use(tmp_path / "not.parquet")


def test_a_log_holds_each_sample_as_soon_as_it_is_taken(tmp_path, turned):
    path = tmp_path / "log.csv"
    path.write_text("of an earlier run")
    log = CsvLog(path, turned)
    assert read_recording(path) == turned.recording()
    for moment in (1.0, 2.0, 3.0):
        turned.mark(StepMark(moment - 0.5, steps=3))
        turned.take_at(moment)
        assert read_recording(path) == turned.recording()
    # A mark that comes late, of before the last sample.
    turned.mark(StepMark(2.9, steps=4))
    assert log.close() == log.close() == path
    assert read_recording(path) == turned.recording()
    turned.take_at(4.0)
    assert len(read_recording(path).samples) == 4


def test_a_disk_that_was_full_and_has_room_again_leaves_a_file_that_can_be_read(tmp_path, turned):
    log = CsvLog(tmp_path / "log.csv", turned)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # A line begins, and does not end: there is room for some of it.
        room = log.path.stat().st_size + 3
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        with pytest.warns(RuntimeWarning, match="File too large"):
            turned.take_at(1.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    turned.take_at(2.0)
    log.close()
    assert len(turned.recording().samples) == 3
    assert [sample.at_s for sample in read_recording(log.path).samples] == [0.0]


def test_a_run_that_is_killed_leaves_its_samples(tmp_path, fresh_python):
    path = tmp_path / "log.csv"
    code = f"""
        import os, signal, time
        from tfopt.monitor.sample_files import CsvLog
        from tfopt.monitor.sampler import sampling
        with sampling(os.getpid(), clock=time.perf_counter, wanted={{}}, period_s=0.02) as sampler:
            CsvLog({str(path)!r}, sampler)
            while len(sampler.recording().samples) < 5:
                time.sleep(0.01)
            os.kill(os.getpid(), signal.{signal.SIGKILL.name})
    """
    fresh_python(code, fails=True)
    recording = read_recording(path)
    assert len(recording.samples) >= 4
    assert len({sample.at_s for sample in recording.samples}) == len(recording.samples)
    assert recording.no_gpu_reason == "no GPU is in use"
