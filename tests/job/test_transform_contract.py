"""What every transform in the roster promises; a new one is tested by being listed."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest

import tfopt
from tfopt import Data, Job, chain, run
from tfopt.errors import CannotCombine, UserError
from tfopt.job.roster import ROSTER, transform_class, transform_name

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 6)).astype("float32")
Y = (X.sum(axis=1) > 0).astype("int64")

# Settings with which each transform does something on a CPU.
EXAMPLES = {
    "place": {"gpus": "all"},
    "keep_host_memory": {},
    "mixed_precision": {"policy": "mixed_bfloat16"},
    "distribute": {},
    "pipeline": {"batch_size": 16, "cache": "memory"},
    "execution": {"steps_per_execution": 2},
    "remat": {"layers": "dense"},
    "accumulate": {"steps": 4},
    "learning_rate": {"peak": 0.01, "decay": "cosine"},
    "remove_channels": {"fraction": 0.5},
    "distill": {"teacher": "teacher.keras"},
    "prune": {"sparsity": 0.5},
    "cluster": {"clusters": 4},
    "quantize_aware": {},
    "quantize": {"mode": "dynamic"},
}
NAMES = pytest.mark.parametrize("name", list(ROSTER))
# A third of the pairs, in which each transform is with a third of the others; then the rest.
PAIRS = [
    pytest.param((first, second), marks=[pytest.mark.slow] if (before + after) % 3 else [])
    for (before, first), (after, second) in itertools.combinations(enumerate(ROSTER), 2)
]


@pytest.fixture(scope="module", autouse=True)
def a_teacher(tmp_path_factory):
    """A file for Distill, in the folder that the tests of this file run in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("teacher"))
        a_job().build().save("teacher.keras")
        yield


def example(name):
    return transform_class(name)(**EXAMPLES[name])


def a_job():
    return Job(
        build=lambda: keras.Sequential(
            [keras.Input((6,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(2, "softmax")]
        ),
        data=lambda: Data(train=(X, Y), test=(X, Y)),
        compile=lambda: {
            "optimizer": "adam",
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
        batch_size=16,
        epochs=2,
    )


def test_the_roster_is_complete():
    public = {
        value
        for name in tfopt.__all__
        for value in [getattr(tfopt, name)]
        if isinstance(value, type)
    }
    transforms = {
        c for c in public if issubclass(c, tfopt.job.Transform) and c is not tfopt.job.Transform
    }
    assert transforms == {transform_class(name) for name in ROSTER}
    assert set(EXAMPLES) == set(ROSTER)
    assert [transform_name(example(name)) for name in ROSTER] == list(ROSTER)


@NAMES
def test_it_is_a_frozen_value_that_its_repr_gives_back(name):
    transform = example(name)
    first = dataclasses.fields(transform)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(transform, first, None)
    assert eval(repr(transform), {n: getattr(tfopt, n) for n in tfopt.__all__}) == transform
    assert hash(transform) == hash(example(name))


@NAMES
def test_it_leaves_the_job_alone_and_changes_only_what_it_declares(name):
    job = a_job()
    before = dataclasses.replace(job)
    transform = example(name)
    changed = transform.apply(job)
    assert job == before
    differing = {
        f.name for f in dataclasses.fields(Job) if getattr(job, f.name) != getattr(changed, f.name)
    }
    assert differing <= transform.changes | {"applied"}
    assert changed.applied == (transform,)


@NAMES
def test_an_unknown_field_is_an_error(name):
    with pytest.raises(TypeError, match="nonsense"):
        transform_class(name)(nonsense=1)


@NAMES
def test_two_of_a_kind_are_refused(name):
    twice = chain(example(name), example(name))
    with pytest.raises(CannotCombine, match="twice"):
        twice.apply(a_job())


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_pairs_train_the_same_in_either_order_or_are_refused_by_both_names(pair):
    first, second = map(example, pair)
    weights, refusals = [], []
    for order in ((first, second), (second, first)):
        try:
            outcome = run(chain(*order).apply(a_job().with_(epochs=1)))
        except CannotCombine as caught:
            refusals.append(str(caught))
            continue
        assert [transform for transform, _ in outcome.effects] == list(order)
        weights.append(outcome.model.get_weights())
    for refusal, transform in itertools.product(refusals, (first, second)):
        assert type(transform).__name__ in refusal
    assert len(refusals) != 1, "refused in one order only"
    for one, other in zip(*weights, strict=True) if weights else ():
        np.testing.assert_array_equal(one, other)


@NAMES
def test_one_training_runs_and_the_effect_is_told(name):
    outcome = run(example(name).apply(a_job()))
    ((transform, effect),) = outcome.effects
    assert transform == example(name)
    assert effect.note
    assert np.isfinite(outcome.evaluation["loss"])


def test_all_together_in_one_run():
    # Prune and Cluster refuse each other.
    names = [name for name in ROSTER if name != "cluster"]
    outcome = run(chain(*map(example, names)).apply(a_job()))
    assert [type(transform) for transform, _ in outcome.effects] == [
        transform_class(name) for name in names
    ]
    assert outcome.artefacts
    weights = outcome.model.get_weights()[0]
    assert np.mean(weights == 0) == pytest.approx(0.5, abs=1 / weights.size)


@pytest.mark.parametrize("name", [name for name in ROSTER if transform_class(name).exact])
def test_an_exact_transform_trains_the_same_weights(name):
    order = tfopt.Pipeline(shuffle=False)
    plain = run(chain(order).apply(a_job())).model.get_weights()
    trained = run(chain(example(name), order).apply(a_job())).model.get_weights()
    for expected, got in zip(plain, trained, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_an_unknown_transform_lists_the_known():
    with pytest.raises(UserError, match="prune") as caught:
        transform_class("prunning")
    assert "prunning" in str(caught.value)
