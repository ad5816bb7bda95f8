"""``tfopt.tune(model, data)``: what fresh processes get of it, what is refused, and ``tuned.fit``."""

from dataclasses import asdict
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from made_machine import FACTS, Machine
from toy_jobs import TellData

import tfopt
from tfopt import Data, Execution, UserError, chain
from tfopt.job.recipe_file import read_recipe
from tfopt.job.references import resolve_job
from tfopt.measure.children import carried_out
from tfopt.tune.given_model import SAVED_AS_BATCHES, target_of_model
from tfopt.tune.tune import Tuned

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")
SETTINGS = {"epochs": 3, "batch_size": None}
LAYER = """
import keras

@keras.saving.register_keras_serializable("own")
class Twice(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs

class NotRegistered(Twice):
    pass
"""


def model(*layers, **compiled):
    made = keras.Sequential([keras.Input((6,)), *layers, keras.layers.Dense(2, "softmax")])
    compiled = {"optimizer": "adam", "metrics": ["accuracy"], "jit_compile": False, **compiled}
    made.compile(loss="sparse_categorical_crossentropy", **compiled)
    return made


def batches(count=4):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(64 // count)


def test_arrays_and_the_model_come_back_as_they_are():
    given = model(optimizer=keras.optimizers.SGD(0.25), steps_per_execution=2)
    parts = ({"a": X, "b": [X, X]}, Y, Y.astype("float32"))
    with target_of_model(given, parts, (X, Y), {"epochs": 3, "batch_size": 8}) as (target, remarks):
        folder = Path(target.arguments["folder"])
        job = resolve_job(target.job, dict(target.arguments))
        data, own = job.data(), job.build()
        assert folder.exists()
    assert not folder.exists()
    assert (remarks, job.epochs, job.batch_size) == ((), 3, 8)
    for found, expected in zip(
        keras.tree.flatten(data.train), keras.tree.flatten(parts), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    keras.tree.assert_same_structure(data.train, parts)
    np.testing.assert_array_equal(data.test[0], X)
    for found, expected in zip(own.get_weights(), given.get_weights(), strict=True):
        np.testing.assert_array_equal(found, expected)
    arguments = job.compile()
    assert float(arguments["optimizer"].learning_rate) == 0.25
    assert arguments["steps_per_execution"] == 2


def test_a_dataset_comes_back_batch_by_batch_and_a_source_as_a_source(tmp_path):
    with target_of_model(model(), batches(), None, SETTINGS) as (target, remarks):
        data = resolve_job(target.job, dict(target.arguments)).data()
        found = [x.numpy() for x, _ in data.train]
    assert remarks == (SAVED_AS_BATCHES,)
    np.testing.assert_array_equal(np.stack(found), X.reshape(4, 16, 6))
    assert data.test is None
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n" + "1.0,0\n2.0,1\n" * 8)
    source = tfopt.data.Csv(str(path), label="y")
    with target_of_model(model(), source, None, SETTINGS) as (target, remarks):
        assert resolve_job(target.job, dict(target.arguments)).data().train == source
    assert remarks == ()


def test_a_layer_of_a_module_is_found_by_a_fresh_process(in_toy_folder, monkeypatch):
    Path("own_layers.py").write_text(LAYER)
    monkeypatch.syspath_prepend(str(in_toy_folder))
    from own_layers import NotRegistered, Twice

    made = model(Twice(), NotRegistered())
    with target_of_model(made, (X, Y), None, SETTINGS) as (target, _):
        assert carried_out(target, TellData()) == ""


def in_main(name):
    """A class as a notebook makes it."""
    return type(name, (keras.layers.Layer,), {"__module__": "__main__", "call": lambda s, x: x})


def unbuilt():
    made = keras.Sequential([keras.layers.Dense(2)])
    made.compile("sgd", "mse")
    return made


ENDLESS = batches().repeat()


@pytest.mark.parametrize(
    ("made", "data", "epochs", "words"),
    [
        (lambda: keras.Sequential([keras.Input((6,))]), (X, Y), 3, "needs a compiled model"),
        (unbuilt, (X, Y), 3, "is not built"),
        (model, None, 3, "needs data"),
        (model, (X, Y), None, "needs epochs"),
        (lambda: model(keras.layers.Lambda(lambda x: 2 * x)), (X, Y), 3, "cannot be loaded"),
        (lambda: model(in_main("Mine")()), (X, Y), 3, "made in this notebook"),
        (model, ENDLESS, 3, "has no length"),
        (model, lambda: iter([(X, Y)]), 3, "A generator cannot be handed"),
    ],
)
def test_what_no_fresh_process_can_make_is_refused_with_the_fix(made, data, epochs, words):
    with pytest.raises(UserError, match=words) as caught:
        tfopt.tune(made(), data, epochs=epochs, verbose=False)
    assert caught.value.fix or caught.value.expected


def test_stand_in_a_caller_that_holds_the_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind=None: ["GPU:0"])
    monkeypatch.setattr(tf.config.experimental, "get_memory_growth", lambda gpu: False)
    with pytest.raises(UserError, match="holds the GPU's memory") as caught:
        tfopt.tune(model(), (X, Y), epochs=3)
    assert "TF_FORCE_GPU_ALLOW_GROWTH" in caught.value.fix


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_tuned_fit_trains_under_the_chain_and_leaves_the_model_alone(machine, tmp_path):
    given = model()
    before = [each.copy() for each in given.get_weights()]
    tuned = tfopt.tune(given, batches(), epochs=2, test=(X, Y), exact=True, verbose=False)
    assert any(isinstance(part, Execution) for part in tuned.chain.parts)
    assert SAVED_AS_BATCHES in tuned.notes
    assert tuned.report.title == given.name
    # The folder of the given model is gone.
    recipe = read_recipe(tuned.write_recipe(tmp_path / "tuned.toml"))
    assert (recipe.job, recipe.arguments, recipe.chain) == (None, {}, tuned.chain)
    seen = []
    see = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(epoch))
    data = Data(train=(X, Y), test=(X, Y), validation=(X, Y))
    outcome = tuned.fit(given, data, epochs=2, batch_size=8, callbacks=see)
    assert (len(outcome.history["val_loss"]), seen) == (2, [0, 1])
    assert outcome.evaluation.keys() >= {"accuracy"}
    assert [transform for transform, _ in outcome.effects] == list(tuned.chain.parts)
    for own, other in zip(given.get_weights(), before, strict=True):
        np.testing.assert_array_equal(own, other)
    assert not np.array_equal(outcome.model.get_weights()[0], before[0])
    assert asdict(machine.facts) == asdict(FACTS)


@pytest.mark.parametrize("drawn", [False, True])
def test_no_cache_is_tried_for_a_dataset_that_draws_random_numbers(machine, drawn):
    def moved(x, y):
        return (x + tf.random.normal(tf.shape(x)) if drawn else x), y

    tuned = tfopt.tune(model(), batches().map(moved), epochs=2, seeds=0, verbose=False)
    tried = {row.name for row in tuned.report.variants}
    assert ("input pipeline" in tried, "input cache" in tried) == (True, not drawn)
    assert any("drawn once" in note for note in tuned.notes) == drawn


@pytest.mark.slow
def test_a_real_search_finds_that_few_long_calls_are_faster_than_many_short_ones(in_toy_folder):
    """A step of a few units takes no longer than the call around it."""
    many = np.tile(X, (64, 1)), np.tile(Y, 64)
    space = {"steps_per_execution": [8], "jit_compile": [], "precision": [], "input": []}
    asked = {"objective": "step", "exact": True, "space": space, "verbose": False}
    tuned = tfopt.tune(model(), many, epochs=3, budget_s=90, **asked)
    assert tuned.chain == chain(Execution(steps_per_execution=8)), str(tuned)
    assert tuned.comparison.verdict == "faster"
    assert {row.status for row in tuned.report.variants} == {"measured"}


def test_the_chains_xla_flags_are_left_out_where_a_model_exists(capsys):
    found = chain(Execution(steps_per_execution=2, xla=("--xla_gpu_autotune_level=0",)))
    tuned = Tuned(None, {}, found, None, report=None, stopped="")
    with pytest.warns(RuntimeWarning, match="XLA flags are left out"):
        trained = tuned.fit(model(), (X, Y), epochs=1, batch_size=16).model
    assert "4/4" in capsys.readouterr().out
    assert trained.steps_per_execution == 2
