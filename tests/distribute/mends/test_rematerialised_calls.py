"""Keras's RematScope: it fails in fit, or trains something else; mended, it trains the same."""

import keras
import numpy as np
import pytest

import tfopt
from tests.distribute.training import largest as gap
from tfopt.distribute.mends.repairs_roster import mends_in_force
from tfopt.train import rematerialised_calls as repair

L = keras.layers
x = np.random.default_rng(0).normal(size=(32, 8)).astype("float32")
MODES = {
    "full": {},
    "larger_than": {"output_size_threshold": 4},
    "list_of_layers": {"layer_names": ["b", "c"]},
    "activations": {},
}


def trained(mode=None, eagerly=False, **settings):
    keras.utils.set_random_seed(0)
    with keras.RematScope(mode, **settings):
        layers = [L.Dense(8, "relu"), L.Dropout(0.3, name="b"), L.BatchNormalization(name="c")]
        layers += [L.ActivityRegularization(0.01), L.Dense(2)]
        model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False, run_eagerly=eagerly)
    model.fit(x, x[:, :2], batch_size=16, epochs=2, shuffle=False, verbose=0)
    return [variable.numpy().astype("float64") for variable in model.variables]


def defect_and_mend():
    plain = trained()
    found = {"probe": repair.probe(), "fails": [], "mended": {}}
    for mode, settings in MODES.items():
        try:
            trained(mode, **settings)
        except ValueError:
            found["fails"].append(mode)
    found["eagerly"] = gap(plain, trained("full", eagerly=True))

    with repair.mended():
        found["still there"] = repair.probe()
        for mode, settings in MODES.items():
            found["mended"][mode] = gap(plain, trained(mode, **settings))
        found["mended"]["eagerly"] = gap(plain, trained("full", eagerly=True))
    found["behind"] = repair.probe()
    return found


def test_the_defect_and_its_mend(alone):
    found = alone(defect_and_mend)
    assert found["probe"]
    assert set(found["fails"]) >= {"full", "larger_than", "list_of_layers"}
    assert found["eagerly"] > 1e-3
    assert not found["still there"]
    assert found["behind"]
    assert all(each < 1e-6 for each in found["mended"].values())


def under_a_strategy():
    with (
        tfopt.distribute(logical_cpus=2, own_losses="mean", verify=False) as scope,
        mends_in_force(scope.strategy),
    ):
        plain, again = trained(), trained("full")
    try:
        trained("full")
    except ValueError:
        return gap(plain, again)


@pytest.mark.slow
def test_under_a_strategy_it_is_in_force_inside_alone(alone):
    assert alone(under_a_strategy) < 1e-6
