"""What masks and clusters have in common: both are held on kernels while a model trains."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import keras
import numpy as np
import pytest
from dense_nets import RNG, assert_pruned, assert_same, compiled, dense_model, fit, loaded
from keras import layers

import tfopt
from tfopt.compress import PolynomialSparsity, clustering_report, pruning_report
from tfopt.compress.cluster import cluster
from tfopt.compress.prune import prune
from tfopt.compress.strip import strip
from tfopt.errors import UserError


def assert_clustered(model):
    rows = [row for row in clustering_report(model) if row.clusters is not None]
    assert rows
    assert {row.values for row in rows} == {5}
    assert {row.bits for row in rows} == {3}


@dataclass(frozen=True)
class Held:
    on: Callable
    check: Callable
    report: Callable


SCHEDULE = PolynomialSparsity(0.8, end_step=6, frequency=2)
MASKS = Held(partial(prune, sparsity=SCHEDULE), assert_pruned, pruning_report)
CLUSTERS = Held(partial(cluster, clusters=5), assert_clustered, clustering_report)
both = pytest.mark.parametrize("held", [MASKS, CLUSTERS], ids=["masks", "clusters"])


@pytest.mark.parametrize(
    ("arguments", "held"),
    [
        ({"optimizer": lambda: keras.optimizers.AdamW(0.01, clipnorm=1.0)}, MASKS),
        ({"optimizer": lambda: keras.optimizers.Adam(gradient_accumulation_steps=2)}, MASKS),
        ({"jit_compile": lambda: True}, MASKS),
        ({"steps_per_execution": lambda: 4}, CLUSTERS),
        ({"run_eagerly": lambda: True}, MASKS),
    ],
    ids=["AdamW", "accumulation", "XLA", "steps_per_execution", "eager"],
)
def test_it_is_held_however_the_step_is_compiled(arguments, held):
    model = dense_model(**{name: make() for name, make in arguments.items()})
    assert held.on(model) is model
    fit(model)
    held.check(model)
    before = np.unique(model.layers[0].kernel)
    fit(model)
    held.check(model)
    # All that is not held has been trained.
    assert np.isin(before, np.unique(model.layers[0].kernel)).sum() == (held is MASKS)


@pytest.mark.parametrize(("policy", "held"), [("mixed_float16", MASKS), ("bfloat16", CLUSTERS)])
def test_it_is_held_in_low_precision(policy, held):
    keras.config.set_dtype_policy(policy)
    try:
        model = held.on(dense_model())
    finally:
        keras.config.set_dtype_policy("float32")
    # float16's first steps may overflow and be skipped, and those do not count.
    fit(model, epochs=3)
    if held is MASKS:
        assert_pruned(model)
    else:
        assert all(row.values <= 5 for row in clustering_report(model))


@pytest.mark.parametrize(
    "attach",
    [
        lambda model: prune(model, PolynomialSparsity(0.8, end_step=14, frequency=3)),
        lambda model: cluster(model, 5, begin_step=4),
        lambda model: cluster(model, 5, begin_step=12),
    ],
    ids=["masks", "clusters made", "clusters to come"],
)
def test_a_saved_model_goes_on_as_if_it_had_not_been_saved(attach, tmp_path):
    model = attach(dense_model(optimizer=keras.optimizers.SGD(0.05)))
    fit(model)
    again = loaded(model, tmp_path)
    fit(model)
    fit(again)
    assert len(np.unique(again.layers[0].kernel)) < 50
    assert_same(model, again, rtol=1e-6)


@both
def test_a_users_constraint_is_obeyed_saved_and_given_back(held, tmp_path):
    own = keras.constraints.NonNeg()
    hidden, sgd = layers.Dense(16, kernel_constraint=own), keras.optimizers.SGD(0.1)
    model = compiled(keras.Input((12,)), hidden, layers.Dense(4), optimizer=sgd)
    fit(held.on(model))
    for each in (model, loaded(model, tmp_path)):
        fit(each)
        kernel = each.layers[0].kernel
        assert kernel.numpy().min() >= 0
        assert len(np.unique(kernel)) <= 40
        strip(each)
        assert type(kernel.constraint) is keras.constraints.NonNeg
        assert each.layers[0].kernel_constraint is kernel.constraint
        assert each.layers[1].kernel_constraint is None
    assert model.layers[0].kernel_constraint is own


@both
def test_depthwise_kernels_are_left_alone_unless_they_are_named(held):
    """They have a few weights for each channel, of which tfmot masks none either."""
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.DepthwiseConv2D(3, name="thin")])
    with pytest.raises(UserError, match=r"depthwise, which loses much.*by layers="):
        held.on(model)
    held.on(model, layers=layers.DepthwiseConv2D)
    assert model.layers[0].kernel.constraint is not None
    model = held.on(dense_model(), layers="^hid")
    _, out = held.report(model)
    verb = "prune" if held is MASKS else "cluster"
    assert out.remark == f"not chosen, or frozen when {verb}() was called"
    assert [layer.kernel.constraint is None for layer in model.layers] == [False, True]


@both
def test_nested_models_and_shared_layers_are_held_once(held):
    shared = layers.Dense(12, name="shared")
    block = keras.Sequential([keras.Input((12,)), layers.Dense(12, name="deep")], name="block")
    inputs = keras.Input((12,))
    model = keras.Model(inputs, layers.Dense(4, name="out")(shared(block(shared(inputs)))))
    model.compile("sgd", "mse", jit_compile=False)
    fit(held.on(model))
    held.check(model)
    paths = sorted(row.path for row in held.report(model))
    assert paths == ["block/deep/kernel", "out/kernel", "shared/kernel"]
    if held is MASKS:
        # A shared layer is one kernel updated once a step.
        shared = next(v for v in model.trainable_variables if "shared/kernel" in v.path)
        assert shared.constraint.step == 9


def test_strip_makes_final_what_is_held_and_the_file_loads_without_tfopt(tmp_path, fresh_python):
    plain = dense_model()
    fit(plain)
    compiled = plain.train_function
    assert strip(plain) is plain
    assert plain.train_function is compiled
    for name, held in (("masks", MASKS), ("clusters", CLUSTERS)):
        model = held.on(dense_model())
        fit(model)
        kept = model.get_weights()
        assert strip(model) is model
        assert_same(kept, model)
        model.save(tmp_path / f"{name}.keras")
        fit(model)
        assert len(np.unique(model.layers[0].kernel)) > 100
    fresh_python(f"""
        import keras, numpy as np, sys
        sys.modules["tfopt"] = None
        masks = keras.models.load_model({str(tmp_path / "masks.keras")!r})
        assert [int(np.sum(layer.kernel == 0)) for layer in masks.layers] == [154, 51]
        clusters = keras.models.load_model({str(tmp_path / "clusters.keras")!r})
        assert [len(np.unique(layer.kernel)) for layer in clusters.layers] == [5, 5]
    """)


def test_weights_put_back_from_elsewhere_obey_what_is_held_once_they_are_stripped():
    for model in (prune(dense_model(), 0.8), cluster(dense_model(), 5)):
        model.set_weights([w + RNG.normal(size=w.shape) * 1e-3 for w in model.get_weights()])
        with pytest.warns(UserWarning, match=r"strip\(\) changes weights of .*hidden/kernel, out/"):
            strip(model)
        assert len(np.unique(model.layers[0].kernel)) <= 39


def test_stripping_before_the_end_of_a_schedule_is_said():
    model = prune(dense_model(), PolynomialSparsity(0.8, end_step=1000))
    fit(model)
    remark = "at step 8 of a schedule that ends at 1000"
    assert {row.remark for row in pruning_report(model)} == {remark}
    said = "masks or clusters of .* before their schedule .*"
    with pytest.warns(UserWarning, match=f"{said}at step 8 of"):
        strip(model)
    before = model.get_weights()
    cluster(model, 5, begin_step=9)
    assert "formed at step 9" in clustering_report(model)[0].remark
    with pytest.warns(UserWarning, match=f"{said}clusters to be formed at step 9"):
        strip(model)
    assert_same(before, model)


def frozen_model():
    model = dense_model()
    model.trainable = False
    return model


def diverged_model():
    model = dense_model()
    model.layers[1].kernel.assign(np.full((16, 4), np.nan))
    return model


@pytest.mark.parametrize(
    ("make", "arguments", "words"),
    [
        (dense_model, {"sparsity": 1.5}, "0 <= sparsity < 1"),
        (dense_model, {"layers": "nowhere"}, "hidden, out"),
        (frozen_model, {}, "not trainable"),
        (diverged_model, {}, "out/kernel"),
        (lambda: keras.Sequential([layers.Dense(3)]), {}, "not built"),
        (dense_model, {"criterion": "size"}, '"magnitude" or "lamp"'),
        (dense_model, {"across": "all"}, '"layer" or "model"'),
        (dense_model, {"step": -1}, "step"),
        (dense_model, {"pattern": "2:4", "across": "model"}, "supports no pattern"),
        (dense_model, {"clusters": 1}, "at least 2"),
        (dense_model, {"clusters": 2.5}, "not a count"),
        (dense_model, {"clusters": 192}, "192 weights for 192 clusters"),
        (dense_model, {"clusters": 8, "begin_step": -1}, "begin_step"),
        (diverged_model, {"clusters": 8}, "out/kernel"),
    ],
)
def test_bad_input_changes_nothing(make, arguments, words):
    model = make()
    before = model.get_weights()
    attach = cluster if "clusters" in arguments else prune
    arguments = {"sparsity": 0.5, **arguments} if attach is prune else arguments
    with pytest.raises(UserError, match=words):
        attach(model, **arguments)
    assert all(v.constraint is None for v in model.variables)
    assert_same(before, model)


def test_two_things_are_never_held_at_once():
    model = cluster(dense_model(), 8)
    for attach in (lambda: cluster(model, 4), lambda: prune(model, 0.5)):
        with pytest.raises(UserError, match=r"WeightClusters on hidden(.|\n)*strip"):
            attach()
    model = prune(dense_model(), 0.5)
    with pytest.raises(UserError, match=r"WeightMask on hidden(.|\n)*strip"):
        cluster(model, 4)
    cluster(strip(model), 4)
    fit(model)
    assert abs(np.mean(model.layers[0].kernel.numpy() == 0) - 0.5) < 0.01


@both
def test_hold_settles_what_keras_has_averaged(held):
    model = dense_model(optimizer=keras.optimizers.Adam(0.05, use_ema=True))
    fit(model)
    held.on(model)
    fit(model)
    assert len(np.unique(model.layers[0].kernel)) == 192
    tfopt.compress.hold(model)
    held.check(model)
