"""A training that broke off ends with the weights, bit for bit, of one that never did."""

import random

import keras
import numpy as np
import pyarrow as pa
import pytest
from trainings import (
    BreaksOff,
    Crash,
    X,
    Y,
    assert_equal,
    assert_goes_on,
    assert_same,
    compiled,
    dataset,
    fit,
)

import tfopt
from tfopt.data import ArrowTable


def arrays(**settings):
    return lambda: (
        compiled(None, keras.layers.Dropout(0.4)),
        {"x": X, "y": Y, "batch_size": 8, **settings},
    )


def of(make_dataset, optimizer=None, middle=(), **compiling):
    def make():
        data = make_dataset()
        layers = [each() for each in middle]
        model = compiled(optimizer and optimizer(), *layers, **compiling)
        return model, data if isinstance(data, dict) else {"x": data}

    return make


class Batches(keras.utils.PyDataset):
    """Reshuffles itself between epochs, by a generator of its own."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.rng = np.random.default_rng(2)
        self.order = np.arange(40)

    def __len__(self):
        return 5

    def __getitem__(self, index):
        rows = self.order[index * 8 : index * 8 + 8]
        return X[rows], Y[rows]

    def on_epoch_end(self):
        self.rng.shuffle(self.order)


def table():
    rows = pa.array(X.ravel())
    return pa.table({"x": pa.FixedSizeListArray.from_arrays(rows, X.shape[1]), "y": Y.ravel()})


def scheduled():
    rate = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.8)
    return keras.optimizers.AdamW(rate, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=4)


DATA = {
    "arrays, shuffled": arrays(shuffle=True),
    "a shuffle": of(dataset),
    "a pipeline of arrays": of(lambda: tfopt.pipeline((X, Y), batch_size=8, shuffle=True)),
    "a pipeline of a table": of(
        lambda: tfopt.pipeline(
            ArrowTable(table(), label="y", features="x"),
            batch_size=8,
            map_batch=lambda x, y: (x, y),
        )
    ),
    "without an end": of(lambda: {"x": dataset().repeat(), "steps_per_epoch": 4}),
    "a PyDataset": of(lambda: {"x": Batches(), "shuffle": True}),
    "several steps an execution": of(dataset, steps_per_execution=2),
    "EMA and a schedule": of(dataset, scheduled),
    "BatchNorm, noise and metrics": of(
        dataset,
        None,
        (keras.layers.BatchNormalization, lambda: keras.layers.GaussianNoise(0.3)),
        metrics=["mae", keras.metrics.RootMeanSquaredError()],
    ),
}
# Where the epoch's own end is something else than the end of a batch.
AT_AN_EPOCHS_END = {"arrays, shuffled", "a shuffle", "without an end", "a PyDataset"}


@pytest.mark.parametrize("kind", DATA)
def test_it_goes_on_from_the_exact_batch(kind, tmp_path):
    in_second_epoch = 5 if kind == "several steps an execution" else 7
    at_its_end = ("epoch end",) if kind in AT_AN_EPOCHS_END else ()
    assert_goes_on(
        DATA[kind], tmp_path, breaks=(in_second_epoch, *at_its_end), epochs=2 + bool(at_its_end)
    )


def callbacks_that_remember():
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=0.5),
        keras.callbacks.EarlyStopping("loss", patience=3, min_delta=0.2, restore_best_weights=True),
        Draws(),
    ]


class Draws(keras.callbacks.Callback):
    """Makes the training depend on all the random state that comes back."""

    def on_train_batch_end(self, batch, logs=None):
        drawn = random.random() + np.random.rand()
        bias = self.model.layers[-1].bias
        bias.assign(bias + 0.01 * drawn)


def test_rates_and_what_callbacks_remember_go_on(tmp_path):
    def make():
        return compiled(), {"x": dataset(), "callbacks": callbacks_that_remember()}

    _, expected = assert_goes_on(make, tmp_path, breaks=(3, 9, 13), epochs=8)
    assert len(expected[1].epoch) < 8  # it was stopped early, with the best weights


def test_a_setting_changed_in_the_script_is_the_scripts(tmp_path):
    def make(patience):
        stopping = keras.callbacks.EarlyStopping("loss", patience=patience)
        return lambda: (compiled(), {"x": dataset(), "callbacks": [stopping]}), stopping

    with pytest.raises(Crash):
        fit(make(1)[0], tmp_path, breaks=8)
    longer, stopping = make(7)
    fit(longer, tmp_path)
    assert stopping.patience == 7


@pytest.mark.parametrize("held", ["pruned", pytest.param("quantized", marks=pytest.mark.slow)])
def test_what_is_held_on_a_model_goes_on(held, tmp_path):
    def make():
        model = small()
        if held == "pruned":
            schedule = tfopt.compress.PolynomialSparsity(
                0.8, begin_step=2, end_step=12, frequency=3
            )
            tfopt.prune(model, schedule, across="model")
        else:
            tfopt.quantize_aware(model)
        model.compile(keras.optimizers.Adam(0.02), "mse", jit_compile=False)
        return model, {"x": dataset()}

    assert_goes_on(make, tmp_path, breaks=(1, 6))


def small():
    return keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(1)]
    )


def test_more_epochs_than_before_are_trained_on(tmp_path):
    expected = fit(DATA["a shuffle"], epochs=4)
    fit(DATA["a shuffle"], tmp_path, epochs=2)
    assert_equal(fit(DATA["a shuffle"], tmp_path, epochs=4), expected)
    with pytest.warns(RuntimeWarning, match="Nothing is left to train"):
        again = fit(DATA["a shuffle"], tmp_path, epochs=4)
    assert_equal(again, expected)


def test_a_job_takes_it_as_its_callback(tmp_path):
    job = tfopt.Job(
        build=small,
        data=lambda: tfopt.Data(train=(X, Y)),
        compile=lambda: {"optimizer": "adam", "loss": "mse"},
        batch_size=8,
        epochs=3,
    )
    expected = tfopt.run(job)
    lasting = job.with_(callbacks=(lambda: tfopt.resume(tmp_path, every_steps=2),))
    with pytest.raises(Crash):
        tfopt.run(lasting, callbacks=[BreaksOff(8)])
    found = tfopt.run(lasting)
    assert found.history == expected.history
    assert_same(found.model.get_weights(), expected.model.get_weights())
