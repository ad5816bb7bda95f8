"""The transforms: scheduled by the run, verified after it, a plain model left."""

import keras
import numpy as np
import pytest
from dense_nets import (
    CLASSES,
    ROWS,
    FirstWeightsAgain,
    StopAtOnce,
    a_job,
    assert_same,
    kernel_layers,
    set_zeros,
    zeros_of,
)
from digits import digit_net, small_digits
from int8_kernels import int8_kernels
from one_transform import run_of

from tfopt import Cluster, Data, Job, Prune, QuantizeAware, RemoveChannels, chain, run
from tfopt.compress.schedules import ConstantSparsity, PolynomialSparsity
from tfopt.errors import UserError


def values(outcome):
    return [len(np.unique(layer.kernel)) for layer in kernel_layers(outcome.model)]


def zeros(outcome):
    return np.mean(np.concatenate([each.ravel() for each in zeros_of(outcome.model)]))


@pytest.mark.parametrize(
    ("transform", "begun", "ended"),
    [
        (
            Prune(0.8, "constant", frequency=3, pattern="1x2"),
            "80% of 224 weights in 2 kernels masked by step 18 of 24",
            "80.4% zeros after training",
        ),
        (
            Prune(0.8, initial_sparsity=0.3, frequency=5, across="model", criterion="lamp"),
            "80% of 224 weights in 2 kernels masked by step 18 of 24",
            "79.9% zeros after training",
        ),
        (
            Cluster(6, begin=0.99),
            "at most 6 values in each of 2 kernels from step 24 of 24",
            "at most 6 values after training",
        ),
    ],
    ids=repr,
)
def test_the_run_ends_as_it_says_with_a_plain_model(tmp_path, transform, begun, ended):
    outcome = run(a_job(), transform)
    if isinstance(transform, Prune):
        assert zeros(outcome) == pytest.approx(0.8, abs=0.01)
    else:
        assert values(outcome) == [6, 6]
    ((applied, effect),) = outcome.effects
    assert applied is transform
    assert effect.acted
    for words in (begun, ended, "left alone: norm (BatchNormalization has no kernel"):
        assert words in effect.note
    assert "missed" not in effect.note
    outcome.save(tmp_path)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert all(v.constraint is None for v in loaded.variables)


def test_a_job_that_begins_with_a_pruned_model_ends_with_its_zeros():
    pruned = a_job().build()
    before = set_zeros(pruned, 0.8)
    pruned.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    job = Job.from_model(pruned, Data(train=(ROWS, CLASSES)), batch_size=8, epochs=2)
    assert_same(zeros_of(run(job, Cluster(6)).model), before)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (Prune(0.8), "the masks were applied again in hidden/kernel, out/kernel"),
        (Cluster(6), "at most 6 values after training"),
    ],
    ids=repr,
)
def test_weights_put_back_at_the_end_are_held_before_they_are_evaluated(transform, words):
    outcome = run(a_job(callbacks=(FirstWeightsAgain,)), transform)
    assert values(outcome) == [6, 6] if words.startswith("at most") else zeros(outcome) > 0.79
    assert words in outcome.effects[0][1].note
    loss = outcome.model.evaluate(ROWS, CLASSES, verbose=0)
    assert outcome.evaluation["loss"] == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (Prune(0.8), "zeros after training; the target of 80% was missed"),
        (Cluster(6), "the training ended before its clusters were formed"),
    ],
    ids=repr,
)
def test_a_training_cut_short_says_so(transform, words):
    outcome = run(a_job(), transform, callbacks=[StopAtOnce()])
    assert outcome.effects[0][1].note.endswith(words)
    assert min(values(outcome)) > 6


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


@pytest.mark.parametrize("transform", [Prune(0.5), Cluster()], ids=repr)
def test_a_training_of_unknown_length_is_refused(transform):
    with pytest.raises(UserError, match="the length of the training"):
        transform.attach(run_of(transform), keras.Sequential())


def test_a_trained_model_becomes_smaller_and_trains_on_with_a_new_optimizer():
    model = a_job().build()
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    model.fit(ROWS, CLASSES, verbose=0)
    outcome = run(
        Job.from_model(model, Data(train=(ROWS, CLASSES)), batch_size=24), RemoveChannels(0.5)
    )
    assert outcome.model.get_layer("hidden").units == 8
    assert model.get_layer("hidden").units == 16
    assert int(outcome.model.optimizer.iterations) == 4
    ((_, effect),) = outcome.effects
    assert "fewer channels in 1 group; left whole: out (" in effect.note


def digits_job(**settings):
    x, y = small_digits(1500)
    conv = keras.layers.Conv2D(8, 3, use_bias=False)
    norm, relu = keras.layers.BatchNormalization(), keras.layers.ReLU()
    model = digit_net(conv, norm, relu, keras.layers.Flatten(), output="out")
    data = Data(train=(x[:1000], y[:1000]), test=(x[1000:], y[1000:]))
    return Job.from_model(model, data, batch_size=32, **settings)


def test_the_file_is_measured_and_the_model_is_plain_again():
    outcome = run(digits_job(epochs=3), QuantizeAware(begin=0.2))
    (artefact,) = outcome.artefacts
    assert artefact.filename == "model_qat_int8.tflite"
    assert artefact.metrics["argmax_agreement"] > 0.98
    accuracy = outcome.evaluation["accuracy"]
    assert artefact.metrics["test_accuracy"] == pytest.approx(accuracy, abs=0.02)
    assert type(outcome.model) is keras.Sequential
    ((_, effect),) = outcome.effects
    assert effect.acted
    assert "2 layers with rounded kernels" in effect.note
    assert "every operator computes with integers" in effect.note


@pytest.mark.parametrize("order", [1, -1])
def test_the_file_is_made_of_masked_weights_whatever_a_callback_put_back(order):
    class PutsBack(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            for variable in self.model.trainable_variables:
                variable.assign(variable + 0.01)

    aware = QuantizeAware(layers="out", freeze_batchnorm=None)
    outcome = run(digits_job(callbacks=(PutsBack,)), chain(*(Prune(0.5), aware)[::order]))
    assert "left alone: conv2d" in dict(outcome.effects)[aware].note
    assert np.mean(outcome.model.get_layer("out").kernel.numpy() == 0) >= 0.49
    (artefact,) = outcome.artefacts
    conv, out = 9 * 8, 6 * 6 * 8 * 10
    for kernel in int8_kernels(artefact.content, (conv, out)).values():
        assert np.mean(kernel == 0) >= 0.49
