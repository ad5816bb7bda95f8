"""Prune as a transform: validated when made, scheduled by the run, verified after it."""

import io
import zipfile

import keras
import numpy as np
import pytest

from tfopt import Data, Job, Quantize, chain, run
from tfopt.compress.prune import Prune, pruning_report
from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity
from tfopt.errors import UserError
from tfopt.job.parts import Facts

RNG = np.random.default_rng(0)
X = RNG.normal(size=(96, 12)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")


def a_job(data=None, **settings):
    def build():
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((12,)),
                layers.Dense(16, "relu", name="hidden"),
                layers.BatchNormalization(name="norm"),
                layers.Dense(2, "softmax", name="out"),
            ]
        )

    return Job(
        build=build,
        data=data or (lambda: Data(train=(X, Y))),
        compile=lambda: {
            "optimizer": "adam",
            "loss": "sparse_categorical_crossentropy",
            "jit_compile": False,
        },
        **{"batch_size": 8, "epochs": 2, **settings},
    )


def facts(steps_per_epoch, epochs=1):
    return Facts(
        replicas=1,
        batch_size=8,
        tuned_batch_size=8,
        steps_per_epoch=steps_per_epoch,
        epochs=epochs,
        seed=0,
    )


@pytest.mark.parametrize(
    "prune",
    [
        Prune(sparsity=0.8),
        Prune(sparsity=0.8, begin=0.5, end=1.0),
        Prune(sparsity=0.8, schedule="constant", frequency=3),
        Prune(sparsity=0.8, initial_sparsity=0.3, frequency=5),
    ],
    ids=repr,
)
def test_the_run_reaches_the_target_and_says_so(prune):
    outcome = run(prune.apply(a_job()))
    for row in pruning_report(outcome.model):
        if row.target is not None:
            assert abs(row.zeros - 0.8 * row.weights) <= 1
    ((transform, effect),) = outcome.effects
    assert transform is prune
    assert effect.acted
    end = round(prune.end * 24)
    assert f"80% of 224 weights in 2 kernels masked by step {end} of 24" in effect.note
    assert "left alone: norm (BatchNormalization has no kernel" in effect.note
    assert "80.4% zeros after training" in effect.note


def test_chosen_layers_only():
    outcome = run(Prune(sparsity=0.5, layers="^hidden$").apply(a_job()))
    reached = [row.sparsity for row in pruning_report(outcome.model)]
    assert reached == [pytest.approx(0.5, abs=0.02), 0, 0]
    assert "out/kernel (not among the layers that were chosen)" in outcome.effects[0][1].note


def nested_in_wrappers():
    layers = keras.layers
    inner = keras.Sequential([layers.Dense(5), layers.Dense(4)])
    cells = [layers.LSTMCell(4), layers.GRUCell(5)]
    x = keras.Input((3, 4))
    h = layers.GroupQueryAttention(4, 4, 2)(x, x)
    h = layers.TimeDistributed(inner)(h)
    h = layers.Bidirectional(layers.RNN(cells))(h)
    h = layers.SpectralNormalization(layers.Dense(6), name="spectral")(h)
    return keras.Model(x, layers.Dense(2, "softmax")(h))


def test_kernels_inside_wrappers_and_stacked_cells_survive_a_file(tmp_path):
    rows = X.reshape(-1, 3, 4)
    job = a_job(lambda: Data(train=(rows, Y))).with_(build=nested_in_wrappers)
    outcome = run(Prune(0.7).apply(job))
    outcome.save(tmp_path)
    report = pruning_report(keras.models.load_model(tmp_path / "model.keras"))
    # Attention four, the nested model two, two cells with two each in two directions, Dense two.
    assert len(report) == 4 + 2 + 8 + 2
    for row in report:
        assert abs(row.zeros - 0.7 * row.weights) <= 1, row
    assert "left alone" not in outcome.effects[0][1].note


def test_a_training_cut_short_is_told_as_a_target_missed():
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    outcome = run(Prune(sparsity=0.8).apply(a_job()), callbacks=[Stop()])
    effect = outcome.effects[0][1]
    assert effect.acted
    hidden = np.mean(outcome.model.get_layer("hidden").kernel.numpy() == 0)
    assert f"the target of 80% was missed in hidden/kernel at {hidden:.1%}" in effect.note


class FirstWeightsAgain(keras.callbacks.Callback):
    """Ends the training with the weights it began with, none of them zero."""

    def on_train_begin(self, logs=None):
        self.first = [np.full_like(w, 0.1) for w in self.model.get_weights()]

    def on_train_end(self, logs=None):
        self.model.set_weights(self.first)


def early_stopping():
    # Nothing is ever better than the first epoch, which is thus put back at the end.
    return keras.callbacks.EarlyStopping(
        "epoch_number", mode="min", patience=99, restore_best_weights=True
    )


class EpochNumber(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        logs["epoch_number"] = epoch


@pytest.mark.parametrize("restorers", [(FirstWeightsAgain,), (EpochNumber, early_stopping)])
def test_weights_put_back_at_the_end_are_masked_before_they_are_evaluated(tmp_path, restorers):
    data = Data(train=(X, Y), test=(X, Y))
    outcome = run(Prune(sparsity=0.8).apply(a_job(lambda: data, callbacks=restorers, epochs=4)))
    for row in pruning_report(outcome.model):
        if row.path.endswith("kernel"):
            assert abs(row.zeros - 0.8 * row.weights) <= 1
    effect = outcome.effects[0][1]
    assert effect.acted
    assert "80.4% zeros after training" in effect.note
    assert "weights that were not zero when fit ended" in effect.note
    outcome.save(tmp_path)
    saved = keras.models.load_model(tmp_path / "model.keras")
    assert outcome.evaluation["loss"] == pytest.approx(saved.evaluate(X, Y, verbose=0), rel=1e-5)


def test_a_job_is_evaluated_once():
    begun = []

    count = keras.callbacks.LambdaCallback()
    count.on_test_begin = lambda logs=None: begun.append(1)

    class Counted(keras.Sequential):
        def evaluate(self, *args, **kwargs):
            return super().evaluate(*args, callbacks=[count], **kwargs)

    plain = a_job(lambda: Data(train=(X, Y), test=(X, Y)))

    def counted():
        return Counted([keras.Input((12,)), *plain.build().layers])

    run(Prune(0.5).apply(plain.with_(build=counted)))
    assert begun == [1]


@pytest.mark.parametrize(
    "parts", [(Prune(0.8), Quantize("keras_int8")), (Quantize("keras_int8"), Prune(0.8))], ids=repr
)
def test_a_quantized_file_has_no_masks_wherever_prune_stands(parts):
    outcome = run(chain(*parts).apply(a_job()))
    (artefact,) = outcome.artefacts
    with zipfile.ZipFile(io.BytesIO(artefact.content)) as archive:
        assert b"WeightMask" not in archive.read("config.json")


@pytest.mark.parametrize(
    ("prune", "steps", "expected"),
    [
        (Prune(0.8), 400, PolynomialSparsity(0.8, 0, 300, 15)),
        (Prune(0.8, begin=0.25, end=1.0), 400, PolynomialSparsity(0.8, 100, 400, 15)),
        (Prune(0.8, "constant", begin=0.1), 400, ConstantSparsity(0.8, 40, 300, 13)),
        (Prune(0.8, begin=0.9, end=1.0), 1, PolynomialSparsity(0.8, 0, 1, 1)),
    ],
)
def test_fractions_become_steps_of_the_run(prune, steps, expected):
    assert prune._schedule(steps) == expected


def test_a_training_of_unknown_length_is_refused():
    with pytest.raises(UserError, match="how long the training is"):
        Prune(sparsity=0.5).attach(keras.Sequential(), facts(None))


@pytest.mark.parametrize(
    "settings",
    [
        {"sparsity": 1.5},
        {"sparsity": -0.1},
        {"sparsity": "0.5"},
        {"sparsity": 0.5, "schedule": "cubic"},
        {"sparsity": 0.5, "initial_sparsity": 0.6},
        {"sparsity": 0.5, "schedule": "constant", "initial_sparsity": 0.2},
        {"sparsity": 0.5, "begin": 0.8, "end": 0.2},
        {"sparsity": 0.5, "begin": 0.5, "end": 0.5},
        {"sparsity": 0.5, "end": 1.5},
        {"sparsity": 0.5, "frequency": 0},
        {"sparsity": 0.5, "layers": "("},
        {"sparsity": 0.5, "layers": 3},
    ],
    ids=repr,
)
def test_a_bad_setting_fails_when_made(settings):
    with pytest.raises(UserError):
        Prune(**settings)


def test_two_of_four_input_channels_are_zero_in_the_trained_model():
    prune = Prune(0.5, schedule="constant", pattern="2:4")
    assert eval(repr(prune)) == prune
    outcome = run(prune.apply(a_job()))
    for layer in (outcome.model.layers[0], outcome.model.layers[2]):
        groups = (layer.kernel.numpy() == 0).reshape(-1, 4, layer.units)
        assert (groups.sum(axis=1) == 2).all()
    assert "50.0% zeros after training" in outcome.effects[0][1].note


def test_blocks_are_zero_as_a_whole_and_a_kernel_too_small_for_one_is_told():
    outcome = run(Prune(0.5, pattern="4x8").apply(a_job()))
    zeros = outcome.model.layers[0].kernel.numpy() == 0
    blocks = zeros.reshape(3, 4, 2, 8).transpose(0, 2, 1, 3).reshape(6, 32)
    assert sorted(blocks.sum(axis=1)) == [0, 0, 0, 32, 32, 32]
    note = outcome.effects[0][1].note
    assert "out/kernel (a block of 4 by 8 is larger than the kernel, 16 by 2)" in note


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sparsity": 0.8, "pattern": "2:4"}, "says itself how much is zero"),
        ({"sparsity": 0.5, "pattern": "2:4"}, "says itself how much is zero"),
        ({"sparsity": 0.5, "pattern": "half"}, "no pattern of zeros"),
        ({"sparsity": 0.5, "pattern": "4:2"}, "leaves nothing to prune"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused_when_it_is_written(wrong, words):
    with pytest.raises(UserError, match=words):
        Prune(**wrong)


@pytest.mark.parametrize("settings", [{"criterion": "movement", "begin": 0.2}, {"across": "model"}])
def test_criterion_and_what_is_ranked_together_reach_the_model(settings):
    outcome = run(Prune(0.75, **settings).apply(a_job(epochs=3)))
    kernels = [layer.kernel.numpy() for layer in outcome.model.layers if hasattr(layer, "kernel")]
    zeros = sum(np.count_nonzero(kernel == 0) for kernel in kernels)
    assert abs(zeros - 0.75 * sum(kernel.size for kernel in kernels)) <= 2
    assert not any("missed" in note for note in map(str, outcome.effects))


@pytest.mark.parametrize(
    "settings",
    [
        {"criterion": "size"},
        {"across": "all"},
        {"across": "model", "pattern": "2:4", "schedule": "constant"},
    ],
)
def test_criteria_that_there_are_not_cannot_be_asked_for(settings):
    with pytest.raises(UserError):
        Prune(0.5, **settings)
