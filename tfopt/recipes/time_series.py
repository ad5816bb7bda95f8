"""Train convolutions on windows of a sensor series: will it be warmer in a few hours?

Run it with ``python -m tfopt.recipes.time_series``.
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfopt import Execution, Job, LearningRate, Pipeline, Quantize, chain
from tfopt.errors import UserError, first_line
from tfopt.job.parts import Data
from tfopt.recipes.plain_job import BINARY, plain_job, require_counts, run_recipe

if TYPE_CHECKING:
    import keras
    import numpy as np

MADE = ("auto", "synthetic")
_TRAIN_SHARE = 0.8

CHAIN = chain(
    LearningRate(peak=0.006, warmup=0.1, decay="cosine"),
    Pipeline(batch_size=64, cache="memory", shuffle=True),
    Execution(steps_per_execution=16),
    Quantize(precision="int8"),
)


def job(
    *,
    data: str = "auto",
    hours: int = 12_000,
    window: int = 48,
    ahead: int = 3,
    width: int = 32,
    batch_size: int = 32,
    epochs: int = 3,
    steps: int | None = None,
    seed: int = 0,
) -> Job:
    """Return the plain job: windows as Keras cuts them, convolutions, Adam at its default rate.

    Args:
        data: "auto" makes a series of three sensors; or a CSV file of numbers under a line of
            names, a row for each hour, whose first column is what is foretold.
        hours: Length of the series that is made; of any, the last fifth is for the test.
        window: Hours that the network sees.
        ahead: How many hours after them the first column is higher, or not.
        width: Filters of a convolution, and units of the dense layer.
    """
    require_counts(hours=hours, window=window, ahead=ahead, width=width)
    if data not in MADE and not Path(data).expanduser().is_file():
        raise UserError(
            "There is no such series.",
            expected=f"{', '.join(MADE)}, or a CSV file",
            received=repr(data),
        )
    build = functools.partial(convolutions, data, window, width)
    load = functools.partial(load_windows, data, hours, window, ahead, batch_size, seed)
    return plain_job("time_series", build, load, batch_size, epochs, steps, seed, loss=BINARY)


def convolutions(data: str, window: int, width: int) -> keras.Model:
    """Return two convolutions over a window of all sensors, a dense layer, a sigmoid."""
    import keras
    from keras import layers

    inputs = keras.Input((window, series_of(data, 1, rows=1).shape[1]), name="window")
    x = inputs
    for _ in range(2):
        x = layers.Conv1D(width, 5, padding="same", activation="relu")(x)
        x = layers.MaxPooling1D(2)(x)
    x = layers.Reshape((math.prod(x.shape[1:]),))(x)  # Keras 3.8 flattens no window of open length
    x = layers.Dense(width, activation="relu")(x)
    outputs = layers.Dense(1, activation="sigmoid", name="head")(x)
    return keras.Model(inputs, outputs, name="time_series")


def load_windows(
    data: str, hours: int, window: int, ahead: int, batch_size: int, seed: int
) -> Data:
    """Return the windows of both parts as datasets of batches; the test is what comes later."""
    import keras

    series = series_of(data, hours)
    if len(series) < 10 * (window + ahead):
        raise UserError(
            "The series is too short for such windows.",
            expected=f"at least {10 * (window + ahead)} hours, ten times window and ahead",
            received=len(series),
        )
    end = round(_TRAIN_SHARE * len(series))
    mean, deviation = series[:end].mean(axis=0), series[:end].std(axis=0)

    def windows(part: Any, **settings: Any) -> Any:
        last, later = part[window - 1 : -ahead, 0], part[window - 1 + ahead :, 0]
        return keras.utils.timeseries_dataset_from_array(
            ((part - mean) / (deviation + 1e-6))[:-ahead],
            (later > last).astype("int32"),
            window,
            batch_size=batch_size,
            **settings,
        )

    where = "made of waves and noise, not real" if data in MADE else data
    note = f"{where}, {len(series):,} hours of {series.shape[1]} sensors in windows of {window}"
    train = windows(series[:end], shuffle=True, seed=seed)
    return Data(train=train, test=windows(series[end:]), name="sensor series", note=note)


def series_of(data: str, hours: int, rows: int | None = None) -> np.ndarray[Any, Any]:
    """Return a row for each hour and a column for each sensor, as float32.

    So many ``hours`` are made; of a file, the first ``rows`` are read, or all.
    """
    import numpy as np

    if data in MADE:
        return made_series(hours)
    try:
        return np.loadtxt(
            Path(data).expanduser(), "float32", delimiter=",", skiprows=1, ndmin=2, max_rows=rows
        )
    except ValueError as error:
        raise UserError(
            f"{data} cannot be read as a series.",
            expected="a line of names, then numbers with commas between them",
            received=first_line(error),
        ) from error


def made_series(hours: int) -> np.ndarray[Any, Any]:
    """Return temperature, pressure and humidity: days, years, weather that lasts, and noise.

    The pressure is ahead of the weather by six hours.
    """
    import numpy as np

    rng = np.random.default_rng(0)
    hour = np.arange(hours)
    lasting = np.convolve(rng.normal(size=hours + 65), 0.95 ** np.arange(60), "valid")
    weather, coming = lasting[:hours], lasting[6 : hours + 6]
    day, year = (np.sin(2 * np.pi * hour / length) for length in (24, 24 * 365))
    temperature = 10 + 8 * year + 3 * day + weather + rng.normal(size=hours) * 0.5
    pressure = 1013 - 2 * coming + rng.normal(size=hours)
    humidity = 60 - 5 * day - 3 * weather + rng.normal(size=hours) * 2
    return np.stack([temperature, pressure, humidity], axis=1).astype("float32")


if __name__ == "__main__":
    run_recipe("time_series", CHAIN, sources=MADE, data="a CSV file, a row for each hour")
