"""TensorBoard scalars, read back as the events that they are."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfopt.errors import UserError
from tfopt.measure.bench_tensorboard import write_scalars


def events(run):
    """Tag, step and value of everything in a folder of events."""
    found = {}
    for path in sorted(run.iterdir()):
        for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    return found


def test_every_figure_is_a_scalar_of_its_variant(gpu, tmp_path):
    runs = write_scalars(gpu, tmp_path / "events")
    assert [run.name for run in runs] == [
        "00_baseline", "01_LearningRate", "02_Pipeline", "03_Execution", "04_Prune",
    ]  # fmt: skip
    variant, found = gpu.variants[4], events(runs[4])
    assert found["step_ms/p99"] == {0: pytest.approx(variant.percentile_ms(99))}
    assert list(found["step_ms/windows"].values()) == pytest.approx(variant.windows_ms)
    assert found["against_reference/low"] == {0: pytest.approx(variant.against_reference.low)}
    assert found["time_split/device_share"] == {0: pytest.approx(0.86)}
    peaks = [block.memory.host_peak_mib for block in variant.blocks]
    assert list(found["memory/host_peak_mib"].values()) == pytest.approx(peaks)
    assert found["quality/points"] == {0: pytest.approx(0.12)}


def test_what_is_none_is_not_written(rough_bench, tmp_path):
    runs = write_scalars(rough_bench, tmp_path)
    assert len(runs) == 2
    first, second = map(events, runs)
    assert not [tag for tag in first if tag.startswith(("against", "quality"))]
    assert not [tag for tag in first if "gpu" in tag]
    # The block that is invalid is not among them.
    assert len(second["step_ms/blocks"]) == 6


def test_a_quick_measurement_says_so_in_every_tag(quick, tmp_path):
    for run in write_scalars(quick, tmp_path):
        assert all(tag.startswith("quick/") for tag in events(run))


def test_events_of_another_measurement_are_not_mixed_in(single, tmp_path):
    write_scalars(single, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="holds events already"):
        write_scalars(single, tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_name_is_never_a_path(hostile_bench, tmp_path):
    target = tmp_path / "events"
    for run in write_scalars(hostile_bench, target):
        assert run.parent == target
        assert run.is_dir()
