"""The series recipe: windows as they were cut, a file of yours, and what it refuses."""

import numpy as np
import pytest

from tfopt import Execution, LearningRate, Pipeline, UserError, chain, run
from tfopt.recipes.time_series import job, load_windows, made_series


@pytest.mark.slow
def test_it_learns_more_than_the_hour_of_the_day_tells():
    fast = chain(
        LearningRate(peak=0.01, decay="cosine"),
        Pipeline(batch_size=50, cache="memory", shuffle=True),
        Execution(steps_per_execution=10),
    )
    outcome = run(job(hours=3_000, window=24, epochs=4), fast)
    assert outcome.evaluation["accuracy"] > 0.85  # a vote by the hour: 0.754
    assert "not real" in outcome.data.note


def test_a_window_is_labelled_by_what_comes_after_it(tmp_path):
    rng = np.random.default_rng(0)
    series = rng.normal(size=(200, 2)).astype("float32")
    path = tmp_path / "rows.csv"
    np.savetxt(path, series, delimiter=",", header="heat,rain", comments="")
    data = load_windows(str(path), 1, 4, 2, 8, 0)
    windows, labels = next(iter(data.test))  # in their order, from row 160 on
    assert windows.shape == (8, 4, 2)
    later = series[165:173, 0] > series[163:171, 0]
    np.testing.assert_array_equal(labels, later)
    train = series[:160]
    first = (series[160:164] - train.mean(axis=0)) / train.std(axis=0)
    np.testing.assert_allclose(windows[0], first, atol=1e-4)
    assert f"{path}, 200 hours of 2 sensors in windows of 4" in data.note
    assert sum(len(y) for _, y in data.train) == 160 - 5
    assert job(data=str(path), window=4).build().input_shape == (None, 4, 2)


def test_the_series_is_the_same_each_time():
    series = made_series(500)
    np.testing.assert_array_equal(series, made_series(500))
    assert (series.shape, series.dtype) == ((500, 3), np.float32)


def test_what_is_no_series_is_refused(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text("heat\nwarm\n")
    with pytest.raises(UserError, match="cannot be read as a series"):
        job(data=str(path)).data()
    with pytest.raises(UserError, match="too short"):
        job(hours=100).data()
